"""What emitting costs a turn, and what reading a page costs: `python -m benchmarks.events`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from akter import Actor, Akter, Event, command
from benchmarks import place
from benchmarks.measure import Comparison, Measured, in_threads, interleaved, save, table
from benchmarks.pgbench import Pgbench
from benchmarks.turns import SCHEMA, prepare

KEYS = 10_000
PAGE = 100


class Moved(Event):
    """A small event, as most are."""

    by: int
    total: int


class Meter(Actor):
    """Counts, and tells about it as often as it is asked to."""

    count: int = 0

    @command
    def move(self, by: int, events: int) -> int:
        self.count += by
        for _ in range(events):
            self.emit(Moved(by=by, total=self.count))
        return self.count


class Emitting:
    """The comparisons, on one prepared database."""

    def __init__(self, app: Akter, seconds: float) -> None:
        self._app, self._seconds, self._warm = app, seconds, min(0.5, seconds / 2)

    def comparisons(self) -> list[Comparison]:
        """Turns that emit beside turns that do not, and a page beside a turn."""
        silent = {"akter, turns without events": self._measured(self._turn(0))}
        return [
            Comparison("turns that emit 1 event", self._measured(self._turn(1)), silent),
            Comparison("turns that emit 10 events", self._measured(self._turn(10)), silent),
            Comparison(f"pages of {PAGE} events", self._measured(self._page), silent),
        ]

    def _measured(self, make: Callable[[int], Callable[[], object]]) -> Measured:
        return lambda: in_threads(1, make, self._seconds, self._warm)

    def _turn(self, events: int) -> Callable[[int], Callable[[], object]]:
        def make(thread: int) -> Callable[[], object]:
            app, choose = self._app, random.Random(thread).randrange
            return lambda: app.actor(Meter, str(choose(KEYS))).move(1, events)

        return make

    def _page(self, thread: int) -> Callable[[], object]:
        app, read = self._app, self._app.actor(Meter, "read")
        read.move(1, PAGE)
        return lambda: app.events(read, Moved, limit=PAGE)


def run(url: str, pairs: int, seconds: float) -> dict[str, Any]:
    """Measure on a new database and return the JSON's content."""
    with Akter(url, actors=[Meter], schema=SCHEMA) as app:
        app.migrate()
        prepare(url, Meter, ['{"count":0}'] * KEYS)
        machine = place.machine(url, Pgbench(url, SCHEMA, seconds, 0.0).version)
        results = interleaved(Emitting(app, seconds).comparisons(), pairs)
    return {"machine": machine, "pairs": pairs, "seconds": seconds, "keys": KEYS, "results": results}


def main() -> None:
    options = place.parser("What emitting costs a turn of akter, and what reading a page costs.", pairs=7, seconds=2.0).parse_args()
    with place.database(options) as url:
        result = run(url, options.pairs, options.seconds)
    print(table(result["results"]))
    print()
    print(place.said(result["machine"]))
    print(f"{options.pairs} interleaved pairs of {options.seconds} s; ratios are to the reference: median (quartiles)")
    print(f"written to {save('events', options.json, result)}")


if __name__ == "__main__":
    main()
