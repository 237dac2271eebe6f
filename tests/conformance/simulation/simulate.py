"""Crashes, lost answers, lost connections, stalled processes and a clock that jumps, over a program drawn from a seed.

    python tests/conformance/simulation/simulate.py --seed 1 --count 100
    python tests/conformance/simulation/simulate.py --seed 1 --count 100 --cluster

Runs on a PostgreSQL of its own. Ends with 1 at the first seed that finds something wrong, and names it.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from judge import judge
from plan import Line, program
from world import Failed, World, run

from akter.errors import AkterError


class Simulated(NamedTuple):
    """What a seed did: the program, the faults that met it, and how its operations were answered."""

    lines: list[Line]
    met: list[tuple[str, str, str]]
    answers: dict[str, Any]


def simulate(
    seed: int, url: str, schema: str, lines: list[Line] | None = None, *, prepare: Callable[[World], Any] | None = None
) -> Simulated:
    """Run the program of a seed, or this one, on a migrated database of its own; raises `Failed`, naming the seed."""
    lines = program(seed) if lines is None else lines
    world = World(url, schema, ride=Random(f"ride of {seed}").random() < 0.5)
    try:
        if prepare is not None:
            prepare(world)
        for process in (world.one, world.two):
            if left := process.left():
                raise Failed(f"there were faults before it began: {', '.join(left)}")
        run(lines, world)
        if wrong := judge(world.stored(), lines):
            raise Failed("\n".join(wrong[:20]))
        return Simulated(lines, world.met, world.answers)
    except (Failed, AkterError) as problem:
        raise Failed(f"seed {seed}: {problem}") from problem
    finally:
        world.close()


def main() -> int:
    """Run as many seeds as the command line says."""
    from cluster import simulate_cluster

    from akter.embedded import Server
    from akter.testing.databases import databases

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--cluster", action="store_true", help="on three processes that work all the time")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    with Server.temporary({"max_connections": "200"}) as server, databases(server.url, "postgres", "akter") as clone:
        faults: Counter[str] = Counter()
        for seed in range(given.seed, given.seed + given.count):
            try:
                met = simulate_cluster(seed, clone(), "akter") if given.cluster else simulate(seed, clone(), "akter").met
            except Failed as failed:
                print(failed, flush=True)
                return 1
            faults.update(f"{kind} {point}" for _, kind, point in met)
            print(f"seed {seed}: {len(met)} faults, nothing wrong", flush=True)
        print(*(f"{times:6} {what}" for what, times in faults.most_common()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
