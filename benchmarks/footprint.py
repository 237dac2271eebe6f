"""What is measured in processes of their own, which have imported nothing yet: `python -m benchmarks.footprint PART` prints JSON."""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from akter import Akter

KEYS = 10_000
SIZES = (256, 1_024, 4_096, 16_384, 61_440)
"""Bytes of text in the state, up to 60 KiB of the 64 KiB that a state may have."""
SCHEMA = "akter"


def resident() -> float:
    """This process's memory in MiB."""
    gc.collect()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except FileNotFoundError:
        told = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
        return int(told.stdout) / 1024


def idle(url: str, _: argparse.Namespace) -> dict[str, float]:
    """A process step by step, until it has an app that has run one turn and now does nothing."""
    steps = {"python": resident()}
    import psycopg  # noqa: F401
    import sqlalchemy  # noqa: F401

    steps["with psycopg and SQLAlchemy"] = resident()
    from benchmarks.turns import Counter

    steps["with akter"] = resident()
    from akter import Akter

    with Akter(url, actors=[Counter], schema=SCHEMA) as app:
        steps["with an app"] = resident()
        app.actor(Counter, "0").increment()
        steps["idle after its first turn"] = resident()
    return steps


def apps(url: str, options: argparse.Namespace) -> dict[str, float]:
    """What one more app costs a process, on an engine that they share, after a turn in each."""
    from akter import Akter
    from akter.engine import engine_for
    from benchmarks.turns import Counter

    engine, _ = engine_for(url)

    def use() -> Akter:
        app = Akter(engine, actors=[Counter], schema=SCHEMA)
        app.actor(Counter, "0").increment()
        return app

    kept = [use()]
    before = resident()
    kept += [use() for _ in range(options.apps)]
    after = resident()
    engine.dispose()
    return {"apps": float(len(kept)), "MiB per app": (after - before) / options.apps}


def growth(url: str, options: argparse.Namespace) -> dict[str, float]:
    """What is kept between two turns that are far apart, with random actors and a new command id each."""
    from akter import Akter
    from benchmarks.turns import Counter

    found, choose = {}, random.Random(0).randrange
    with Akter(url, actors=[Counter], schema=SCHEMA) as app:
        for number in range(1, options.last + 1):
            app.actor(Counter, str(choose(KEYS))).increment()
            if number in (options.first, options.last):
                found[f"after turn {number}"] = resident()
    return {**found, "growth": found[f"after turn {options.last}"] - found[f"after turn {options.first}"]}


def states(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Turns of actors whose state is small or large, beside pgbench writing states as long; and this process's memory."""
    from akter import Actor, Akter, command
    from benchmarks.measure import Comparison, in_threads, interleaved
    from benchmarks.pgbench import TURN, Actors, Pgbench
    from benchmarks.turns import prepare

    class Document(Actor):
        text: str = ""
        edits: int = 0

        @command
        def edit(self) -> int:
            self.edits += 1
            return self.edits

    random_text = random.Random(0)
    warm = min(0.5, options.seconds / 2)
    pgbench = Pgbench(url, SCHEMA, options.seconds, warm)
    before = resident()
    with Akter(url, actors=[Document], schema=SCHEMA) as app:

        def turns(first: int) -> Callable[[], object]:
            choose = random_text.randrange
            return lambda: app.actor(Document, str(first + choose(100))).edit()

        comparisons = []
        texts = ["".join(random_text.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size)) for size in SIZES]
        values = [json.dumps({"text": text, "edits": 0}) for text in texts]
        routing = prepare(url, Document, [values[number // 100] for number in range(100 * len(SIZES))])
        for position, size in enumerate(SIZES):
            first = 100 * position
            actors = Actors("Document", "edit", routing[first : first + 100], values[position], first)
            comparisons.append(
                Comparison(
                    f"state of {size} bytes",
                    lambda first=first: in_threads(1, lambda _: turns(first), options.seconds, warm),  # type: ignore[misc]
                    {"pgbench, 1 client": lambda actors=actors: pgbench.run(TURN, actors, 1)},  # type: ignore[misc]
                )
            )
        results = interleaved(comparisons, options.pairs)
    return {"results": results, "MiB more": resident() - before}


PARTS = {"idle": idle, "apps": apps, "growth": growth, "states": states}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--url")
    for name, kind in (("pairs", int), ("seconds", float), ("first", int), ("last", int), ("apps", int)):
        parser.add_argument(f"--{name}", type=kind)
    options = parser.parse_args()
    json.dump(PARTS[options.part](options.url, options), sys.stdout)


if __name__ == "__main__":
    main()
