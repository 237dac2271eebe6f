"""akter: a Runner as it comes."""

from __future__ import annotations

import signal
import threading
import time

from akter import Actor, Akter, command
from akter.runner import Runner
from benchmarks.crew.program import BATCH, Plan, freeze, main, ready, sample
from benchmarks.crew.ticks import Ticks

_ticks: Ticks | None = None


class Sink(Actor):
    """An actor that does nearly nothing, so that what is measured is how a message gets there."""

    count: int = 0

    @command
    def add(self) -> int:
        if _ticks is not None:
            _ticks.tick()
        self.count += 1
        return self.count

    @command
    def ask(self, many: int) -> None:
        """Send messages, and count oneself up, so that a turn that sends nothing is a whole turn too."""
        self.count += 1
        for number in range(many):
            self.send(self.actor(Sink, str(number)).add)


def _app(plan: Plan, slot: int = 0) -> Akter:
    global _ticks
    _ticks = Ticks(plan.ticks, slot)
    return Akter(plan.url, actors=[Sink], schema=plan.schema)


def fill(plan: Plan, count: int) -> float:
    with _app(plan) as app, app.engine.connect() as connection:
        app.verify()
        began = time.perf_counter()
        for start in range(0, count, BATCH):
            with connection.begin():
                numbers = range(start, min(count, start + BATCH))
                app.within(connection).send_many([(app.actor(Sink, str(number % plan.keys)).add, {}) for number in numbers])
        return count / (time.perf_counter() - began)


def work(plan: Plan, slot: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with _app(plan, slot) as app, Runner(app):
        freeze()
        ready()
        ended.wait()


def send(plan: Plan, samples: int) -> list[float]:
    with _app(plan) as app:
        handle = app.actor(Sink, "1")
        return sample(Ticks(plan.ticks), samples, lambda: app.send(handle.add))


def both(plan: Plan, samples: int) -> list[float]:
    """Send and deliver in one process."""
    with _app(plan) as app, Runner(app):
        time.sleep(1.0)
        handle = app.actor(Sink, "1")
        return sample(Ticks(plan.ticks), samples, lambda: app.send(handle.add))


if __name__ == "__main__":
    # By its own name, so that the actors are the same ones whoever imports them.
    from benchmarks.crew import ours

    main({"fill": ours.fill, "work": ours.work, "send": ours.send, "both": ours.both})
