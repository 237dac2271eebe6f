"""How much memory akter takes, and what large states cost: `python -m benchmarks.memory`. Each part runs in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from akter import Akter
from benchmarks import footprint, place
from benchmarks.measure import save, table
from benchmarks.pgbench import Pgbench
from benchmarks.turns import Counter, prepare


def run(url: str, arguments: list[str]) -> dict[str, Any]:
    """Run every part on a new database and return the JSON's content."""
    with Akter(url, actors=[Counter], schema=footprint.SCHEMA) as app:
        app.migrate()
        prepare(url, Counter, ['{"count":0}'] * footprint.KEYS)
    found: dict[str, Any] = {"machine": place.machine(url, Pgbench(url, footprint.SCHEMA, 1.0, 0.0).version)}
    for part in footprint.PARTS:
        child = [sys.executable, "-m", "benchmarks.footprint", part, "--url", url, *arguments]
        found[part] = json.loads(subprocess.run(child, stdout=subprocess.PIPE, check=True, text=True).stdout)
    return found


def main() -> None:
    parser = place.parser("The memory of processes that use akter, and states of many sizes.", pairs=7, seconds=1.0)
    parser.add_argument("--first", type=int, default=5_000, help="growth is counted from this turn (default 5000)")
    parser.add_argument("--last", type=int, default=25_000, help="to this one (default 25000)")
    parser.add_argument("--apps", type=int, default=20, help="how many apps are added to find out what one costs (default 20)")
    options = parser.parse_args()
    handed_on = [f"--{name}={getattr(options, name)}" for name in ("pairs", "seconds", "first", "last", "apps")]
    with place.database(options) as url:
        result = run(url, handed_on)
    for part in ("idle", "apps", "growth"):
        print(f"{part}, MiB: " + ", ".join(f"{name} {value:.2f}" for name, value in result[part].items()))
    print()
    print(table(result["states"]["results"]))
    print()
    print(place.said(result["machine"]))
    print(f"written to {save('memory', options.json, result)}")


if __name__ == "__main__":
    main()
