"""A worker process: a runner of the shop, until its standard input ends.

python -m akter.examples.orders.worker SEATS
"""

from __future__ import annotations

import sys

from akter import Runner

from .shop import shop


def main(seats: str) -> None:
    """Run; the first line of the output says that it is at work."""
    with shop() as app, Runner(app, lanes={"jobs": int(seats)}):
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
