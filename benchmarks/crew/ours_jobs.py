"""akter's jobs: a Runner with so many seats."""

from __future__ import annotations

import signal
import threading
import time

from akter import Actor, Akter, Attempt, Job, command
from akter.runner import Runner
from benchmarks.crew.program import Plan, each, freeze, main, ready, sample
from benchmarks.crew.ticks import Ticks

PER_ACTOR = 10
"""Jobs of one actor: they are all over the buckets, as they would be."""
BULK = 1_000
BUSY = 0.05
"""Seconds that a capped job takes."""

_ticks: Ticks | None = None


def tick(attempt: Attempt, key: str) -> None:
    """A job that does nothing but count itself."""
    if _ticks is not None:
        _ticks.tick()


def rest(attempt: Attempt, key: str) -> None:
    """A job that takes a moment."""
    time.sleep(BUSY)


class Maker(Actor):
    """An actor with jobs."""

    noop = Job(tick)

    @command
    def make(self, many: int) -> None:
        """Ask for jobs."""
        for number in range(many):
            self.enqueue(self.noop, key=str(number))


class Crowd(Actor):
    """An actor with jobs of which one runs at a time; a runner that knows such jobs has to look for them, so only some do."""

    capped = Job(rest, concurrency=1)

    @command
    def gather(self, many: int) -> None:
        """Ask for jobs of which one runs at a time."""
        for number in range(many):
            self.enqueue(self.capped, key=str(number))


def _app(plan: Plan, slot: int = 0) -> Akter:
    global _ticks
    _ticks = Ticks(plan.ticks, slot)
    return Akter(plan.url, actors=[Maker, Crowd] if plan.work == "crowded" else [Maker], schema=plan.schema)


def install(plan: Plan) -> None:
    """The tables are there already."""


def fill(plan: Plan, count: int) -> float:
    """Make jobs, a few by each of many actors; returns how many a second a turn can make that makes a thousand."""
    with _app(plan) as app:
        app.verify()
        for start in range(0, count, PER_ACTOR):
            app.actor(Maker, f"m-{start // PER_ACTOR}").make(min(PER_ACTOR, count - start))
    return bulk(plan, 3)


def bulk(plan: Plan, times: int) -> float:
    """Jobs per second in turns that ask for a thousand; what they asked for is taken away again."""
    with _app(plan) as app:
        app.verify()
        began = time.perf_counter()
        for number in range(times):
            app.actor(Maker, f"bulk-{number}").make(BULK)
        rate = times * BULK / (time.perf_counter() - began)
        with app.engine.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM {plan.schema}.actor_outbox WHERE actor_id LIKE 'bulk-%%'")
        return rate


def crowd(plan: Plan, count: int) -> int:
    """Let one actor ask for so many jobs of which one runs at a time."""
    with _app(plan) as app:
        app.actor(Crowd, "crowded").gather(count)
    return count


def work(plan: Plan, slot: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with _app(plan, slot) as app, Runner(app, lanes={"jobs": plan.seats}):
        freeze()
        ready()
        ended.wait()


def send(plan: Plan, samples: int) -> list[float]:
    with _app(plan) as app:
        handle = app.actor(Maker, "one")
        return sample(Ticks(plan.ticks), samples, lambda: handle.make(1))


def single(plan: Plan, count: int) -> float:
    """Turns per second that ask for one job each."""
    with _app(plan) as app:
        return each(count, lambda: app.actor(Maker, "one").make(1))


if __name__ == "__main__":
    # By its own name, so that the actors are the same ones whoever imports them.
    from benchmarks.crew import ours_jobs as program

    commands = {"install": program.install, "fill": program.fill, "work": program.work, "send": program.send}
    main({**commands, "single": program.single, "crowd": program.crowd})
