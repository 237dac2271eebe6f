"""Schedules of a hundred thousand actors: their turns, their ticks, and what a runner pays that waits: `python -m benchmarks.schedules`."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg

from akter import Actor, Akter, Runner, command, cron
from akter.identity import address
from akter.planting import Planted, Planting
from akter.store import turn
from akter.store.flight import Line
from akter.store.wire import Wire
from benchmarks import place
from benchmarks.measure import ratio, rounds, rows, said, save, spread
from benchmarks.turns import SCHEMA

BATCH = 1_000


class Plain(Actor):
    """Has no schedule."""

    beats: int = 0

    @command
    def beat(self) -> None:
        self.beats += 1


class Metronome(Actor):
    """Has one."""

    beats: int = 0

    @command
    def beat(self) -> None:
        self.beats += 1

    @cron("0 0 29 2 *", tz="Europe/Berlin")
    def tick(self) -> None:
        self.beats += 1


class Schedules:
    """Actors with schedules in a database, as many as wanted, and one runner."""

    def __init__(self, url: str, app: Akter, plain: psycopg.Connection[Any], seconds: float) -> None:
        self.app, self._plain, self._seconds = app, plain, seconds
        self.runner = Runner(app, listen=False)
        self._fresh = count()

    def plant(self, actors: int) -> float:
        """Write the rows of this many actors as their first turns do, many in one statement; returns how many in a second."""
        planting, began = Planting(self.app.limits.retry_window_ms), time.perf_counter()
        definition, statements = self.app.actors["Metronome"], self.app.surroundings.statements
        for first in range(0, actors, BATCH):
            known = [address("actor", "default", "Metronome", f"m{number}") for number in range(first, min(first + BATCH, actors))]
            with Wire(self.app.engine, statements) as wire:
                now_ms = int(wire.fly([Line(statements.get(turn.clock), {})], 10.0)[0].rows[0][0])
                wire.fly([planting.line(statements, [Planted(definition, at, 0) for at in known], now_ms)], 60.0)
        took = time.perf_counter() - began
        self._plain.execute("VACUUM ANALYZE")
        return actors / took

    def turns(self, kind: type[Plain] | type[Metronome], *, first: bool) -> Callable[[], float]:
        """Turns in a second by one thread: each the first of its actor, or none of them."""

        def measured() -> float:
            ids = [f"new{next(self._fresh)}" for _ in range(100_000)] if first else ["old"] * 100_000
            self.app.actor(kind, "old").beat()
            end, began = time.perf_counter() + self._seconds, time.perf_counter()
            for done, id in enumerate(ids, start=1):
                self.app.actor(kind, id).beat()
                if time.perf_counter() > end:
                    return done / (time.perf_counter() - began)
            raise RuntimeError("that many turns in so short a time were not expected: give it less --seconds")

        return measured

    def ticks(self, many: int) -> float:
        """Let this many ticks be due now; returns how many were delivered in a second."""
        self._plain.execute(
            f"""UPDATE {SCHEMA}.actor_outbox SET (due_at_ms, scheduled_at_ms) = (SELECT now, now FROM
                (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) clock)
                WHERE ctid = ANY (ARRAY(SELECT ctid FROM {SCHEMA}.actor_outbox WHERE starts_with(actor_id, 'm') LIMIT %s))""".encode(),
            (many,),
        )
        return self._drained(many)

    def messages(self, many: int) -> float:
        """Send a message to this many of the same actors; returns how many were delivered in a second."""
        with self.app.engine.begin() as connection:
            told = [(self.app.actor(Metronome, f"m{number}").beat, {}) for number in range(many)]
            self.app.within(connection).send_many(told)
        return self._drained(many)

    def _drained(self, many: int) -> float:
        before, began = self.runner._deliverer.counts.delivered, time.perf_counter()
        self.runner.drain()
        took = time.perf_counter() - began
        if self.runner._deliverer.counts.delivered - before != many:
            raise RuntimeError("not as many were delivered as were due")
        return many / took

    def passes(self) -> float:
        """The milliseconds of a look for due work when there is none."""
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < self._seconds:
            if self.runner.relay.run_pass().claimed:
                raise RuntimeError("a schedule came while it was measured: try again")
            done += 1
        return (time.perf_counter() - began) / done * 1000


def measure(url: str, actors: int, many: int, pairs: int, seconds: float) -> dict[str, Any]:
    """Everything, on one database."""
    with Akter(url, actors=[Plain, Metronome], schema=SCHEMA, hint=False) as app, place.connect(url) as plain:
        app.migrate()
        found = Schedules(url, app, plain, seconds)
        empty = [found.passes() for _ in range(pairs)]
        planted = found.plant(actors)
        waiting = [found.passes() for _ in range(pairs)]
        turns: dict[str, Callable[[], float]] = {
            "first turns, no schedule": found.turns(Plain, first=True),
            "first turns, a schedule": found.turns(Metronome, first=True),
            "later turns, no schedule": found.turns(Plain, first=False),
            "later turns, a schedule": found.turns(Metronome, first=False),
        }
        rates = rounds(turns, pairs)
        # A command is found to be quick first.
        found.ticks(min(many, 64))
        found.messages(min(many, 64))
        delivered = rounds({"messages": lambda: found.messages(many), "ticks": lambda: found.ticks(many)}, pairs)
        flood = found.ticks(actors)
        found.runner.stop()
    first = {name: spread(runs) for name, runs in (rates | delivered).items()}
    return {
        "actors": actors,
        "rates": first,
        "ratios": {
            "first turns, a schedule": ratio(rates["first turns, a schedule"], rates["first turns, no schedule"]),
            "later turns, a schedule": ratio(rates["later turns, a schedule"], rates["later turns, no schedule"]),
            "ticks": ratio(delivered["ticks"], delivered["messages"]),
        },
        "pass": {"no rows": spread(empty), f"{actors} future ticks": spread(waiting)},
        "planted": planted,
        "flood": {"rate": flood, "seconds": actors / flood},
    }


def tables(found: dict[str, Any]) -> str:
    """The results."""
    lines = [(name, said(one, 0), said(found["ratios"][name]) if name in found["ratios"] else "") for name, one in found["rates"].items()]
    passes = [(name, said(one)) for name, one in found["pass"].items()]
    flood = f"{found['actors']} ticks due at the same moment: the last fired after {found['flood']['seconds']:.0f} s"
    return "\n\n".join(
        (
            rows(("one thread, or one runner", "per s", "ratio to the line before"), lines),
            rows(("a look for due work, beside", "ms"), passes),
            f"{flood}, {found['flood']['rate']:.0f} a second; rows written: {found['planted']:.0f} a second",
        )
    )


def main() -> None:
    parser = place.parser("Schedules: turns of actors that have one, ticks, a runner that waits.", pairs=5, seconds=2.0)
    parser.add_argument("--actors", type=int, default=100_000, help="actors that each have a schedule (default 100000)")
    parser.add_argument("--ticks", type=int, default=3_000, help="ticks, and messages, of one measurement (default 3000)")
    options = parser.parse_args()
    with place.database(options) as url:
        found = measure(url, options.actors, options.ticks, options.pairs, options.seconds)
        found["machine"] = place.machine(url)
    print(tables(found))
    print()
    print(place.said(found["machine"]))
    print(f"{options.pairs} interleaved runs of about {options.seconds} s each; medians (quartiles), also of the ratios")
    print(f"written to {save('schedules', options.json, found)}")


if __name__ == "__main__":
    main()
