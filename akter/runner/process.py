"""`Runner`: the relay of a process, with everything that runs for it, started and stopped in order."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import event
from sqlalchemy.pool import ConnectionPoolEntry

from akter.app import Akter
from akter.errors import AkterError, ConfigurationError
from akter.identity import shown_id
from akter.importing import check_not_importing
from akter.limits import seconds as checked
from akter.named import Named
from akter.runner import deploying, following
from akter.runner.family import Family
from akter.runner.heartbeat import Heartbeat
from akter.runner.intent import Deliverer
from akter.runner.intents import Intents
from akter.runner.jobs import Jobs
from akter.runner.lane import Lane
from akter.runner.lease import claim_lease
from akter.runner.listener import Listener
from akter.runner.loop import Loop
from akter.runner.message import Held
from akter.runner.overdue import Overdue
from akter.runner.relay import Relay
from akter.runner.retention import Sweeps
from akter.runner.room import own_engine
from akter.runner.settings import EVERY, Settings
from akter.runner.settler import Counts, Report, Settler
from akter.runner.tick import plant

logger = logging.getLogger("akter.runner")

_JOBS_TOGETHER = 128
_LAST = 1.0
"""Seconds that functions of jobs have after they were told to stop."""


class Runner:
    """Carries out what committed turns asked for. Any number of processes may run one; use it as a context manager.

    `lanes` are the seats per work family, `{"intents": 64, "jobs": 64}` unless given: the rows it holds at most. Messages that may not
    share a transaction take a connection each, so no more of them run at once than the engine's pool holds, less two, or four when there
    are jobs; a job's function holds none. `label` is for people; a runner's identity is random. The other options are those of
    `akter.runner.settings.Settings`, all in `docs/production.md`. Constructing it starts nothing; it installs no signal handlers. Raises
    `ConfigurationError` for options out of range, a pool that is too small, and a `claim_lease` shorter
    than a command's time limit.
    """

    def __init__(self, app: Akter, *, lanes: Mapping[str, int] | None = None, label: str | None = None, **options: Any) -> None:
        if lanes is not None:
            # A family that is not named keeps its seats: naming one must not silence another.
            options["lanes"] = {**EVERY, **lanes} if isinstance(cast(object, lanes), Mapping) else lanes
        try:
            self.settings = Settings(**options)
        except TypeError as problem:
            said = str(problem).replace("Settings.__init__() got an unexpected keyword argument", "there is no option")
            raise ConfigurationError(f"Runner: {said}; the options are label, {', '.join(sorted(Settings.__dataclass_fields__))}") from None
        self.app, self.incarnation_id = app, str(uuid.uuid4())
        # Refused now if it is too short.
        self.lease = claim_lease(self.settings.claim_lease, app.actors, app.limits)
        self.label = label or f"{socket.gethostname()}:{os.getpid()}"
        with_jobs = self.settings.lanes.get("jobs", 0) > 0 and any(known.jobs for known in app.actors.values())
        self._engine, room = own_engine(app.engine, jobs=with_jobs)
        around, seats = app.surroundings, self.settings.lanes.get("intents", 0)
        settler = Settler(self._engine, around.statements, self.settings.max_backoff, app.actors, around.keep_ms)
        self._deliverer = Deliverer(self._engine, around, app.limits.execution, self.settings.ride, Held(), settler)
        telling = following.threads(app.actors, self.settings, room)
        self._lane = Lane("intents", seats, min(seats, room - telling), self.settings.group, self._carry_on)
        intents = Intents(around.statements, app.actors, self._deliverer, self._lane, self.settings, self.lease)
        self.jobs = self._jobs() if with_jobs else None
        followed = following.families(app, self._engine, settler, self.settings, telling, self.lease, self.wake, self._carry_on)
        families: list[Family] = [intents, *([self.jobs] if self.jobs is not None else []), *followed]
        self.relay = Relay(self._engine, around.statements, intents, families, self.settings)
        self._overdue = Overdue([intents, *followed], self.label)
        self._loop, self._sweeps = Loop("akter-relay", self._pass), Sweeps(app, self.settings.sweep)
        self._heartbeat = Heartbeat(
            app,
            self._engine,
            self.incarnation_id,
            self.label,
            self.relay.families,
            self._overdue,
            self.jobs,
            self._idle,
            self.settings.heartbeat,
        )
        self._listener = (
            Listener(self._engine, around.statements, self.wake, self.relay.take, app.wakes.me) if self.settings.listen else None
        )
        self._pid, self._report, self._lock, self._stopped = os.getpid(), None, threading.Lock(), threading.Event()
        self._started_at, self._stopping, self._planted = 0.0, False, False
        event.listen(self._engine, "checkin", self._given_back)

    _report: Report | None

    def _jobs(self) -> Jobs:
        seats = self.settings.lanes["jobs"]
        lane = Lane("jobs", seats, seats, _JOBS_TOGETHER, self._carry_on, most=seats // 2)
        return Jobs(self._engine, self.app.surroundings, self.app.actors, lane, self.settings.cancel_check, self.expect)

    def start(self) -> Runner:
        """Check the schema and start the threads. A second call does nothing.

        Raises `SchemaError`, `Unavailable` when the database cannot be reached, after which it may be started again, and `AkterError` after
        a stop.
        """
        self._check_process()
        self.app.verify()
        with self._lock:
            if self._report is not None:
                raise AkterError("this Runner was stopped: make another one")
            if self._started_at:
                return self
            self._plant()
            self._started_at = time.monotonic()
            self.app.wakes.add(self.wake, self.wake)
            self.app.wakes.expect(self.expect)
            if self.jobs is not None:
                self.app.wakes.tell(self.jobs.cancelled)
            self._loop.start()
            self._heartbeat.loop.start()
            self._sweeps.start()
            if self._listener is not None:
                self._listener.loop.start()
        _running.add(self)
        logger.info("runner.started", extra={"akter_runner": self.incarnation_id, "akter_label": self.label})
        return self

    def wake(self, rows: Sequence[Named] = ()) -> None:
        """Look for due work now: for these messages, or for everything."""
        if self.relay.ask(rows):
            self._loop.wake()

    def _pass(self) -> float:
        return self.relay.wait(self._loop.afterwards)

    def _carry_on(self) -> None:
        """Look for what was left for want of seats, now that there are some."""
        self._loop.wake()

    def expect(self, seconds: float) -> None:
        """Look for due work in so many seconds, at the latest."""
        moment = time.monotonic() + seconds
        self.relay.timers.expect(moment)
        self._loop.wake_by(moment)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the runner is stopped; returns whether it is. Raises `AkterError` inside one of its handlers, as `stop` does."""
        self._check_outside("wait")
        end = None if seconds is None else time.monotonic() + seconds
        while not self._stopped.wait(0.5 if end is None else max(0.0, min(0.5, end - time.monotonic()))):
            if end is not None and time.monotonic() >= end:
                return False
        return True

    def drain(self, seconds: float = 300.0) -> None:
        """Deliver until nothing is due and nothing runs, in this thread's time; works whether or not the runner was started.

        Raises `AkterError` when that takes longer than `seconds`, when messages keep asking for more, and inside one of its handlers.
        """
        self._check_process()
        self._check_outside("drain")
        checked("Runner.drain: seconds", seconds)
        self.app.verify()
        with self._lock:
            self._plant()
        self.relay.drain(seconds)

    def _plant(self) -> None:
        if not self._planted:
            plant(self._engine, self.app.surroundings, self.app.actors)
            deploying.bring_up(self._engine, self.app.schema, self.app.actors)
            self._planted = True

    def stop(self, grace: float = 10.0) -> Report:
        """Stop claiming, give back what was not begun, finish what runs within `grace` seconds, and report what was left.

        A second call returns the first one's report. In a process forked after it was made, it does nothing. Raises `AkterError` inside a
        handler that this runner runs, which would wait for itself.
        """
        if os.getpid() != self._pid:
            return Report(True, 0, 0, 0, 0, ())
        self._check_outside("stop")
        checked("Runner.stop: grace", grace)
        with self._lock:
            if self._report is None:
                self._report = self._stop(grace)
            return self._report

    def _stop(self, grace: float) -> Report:
        end = time.monotonic() + grace
        _running.discard(self)
        self._stopping = self._heartbeat.stopping = True
        self.app.wakes.remove(self.wake, self.expect)
        if self.jobs is not None:
            self.app.wakes.remove(self.jobs.cancelled)
        self._loop.stop()
        if self._listener is not None:
            self._listener.stop()
        self._sweeps.stop()
        self._heartbeat.loop.wake()
        self.relay.stop_claiming(grace)
        self._finish(end)
        left = tuple(self.relay.held())
        self.relay.close()
        # The sign of life ends last: while something runs, others must see who runs it.
        self._heartbeat.loop.stop()
        for loop in (self._loop, self._heartbeat.loop, *self._sweeps.loops):
            loop.join(max(1.0, end - time.monotonic()))
        self._heartbeat.leave()
        self._stopped.set()
        self._engine.dispose()
        counts = self.counts
        logger.info(
            "runner.stopped",
            extra={"akter_runner": self.incarnation_id, "akter_left": [shown_id(id) for id in left], "akter_released": counts.released},
        )
        return Report(not left, counts.delivered, counts.retried, counts.parked, counts.released, left)

    def _finish(self, end: float) -> None:
        while (rest := end - time.monotonic()) > 0:
            # A handler past its time limit saves nothing any more, so it is not waited for.
            self._overdue.count()
            if self.relay.wait_for_the_rest(min(rest, 0.2)):
                return
        if self.jobs is not None and not self.relay.wait_for_the_rest(0.0):
            self.jobs.warn()
            self.relay.wait_for_the_rest(_LAST)

    @property
    def counts(self) -> Counts:
        """What it did so far, messages and jobs together."""
        return self._deliverer.counts if self.jobs is None else self._deliverer.counts.with_(self.jobs.counts)

    def abandon(self) -> tuple[str, ...]:
        """Give back everything that is held, even what runs, and return its ids; the process has to end at once, which rolls that back."""
        self._stopping = self._heartbeat.stopping = True
        left = tuple(self.relay.held())
        self.relay.abandon()
        self._heartbeat.leave()
        return left

    def _idle(self) -> float:
        # A relay that never came through a pass has been idle since it started.
        return time.monotonic() - (self._loop.passed_at or self._started_at)

    @property
    def overdue(self) -> int:
        """Threads in handlers past their time limit, as of its last sign of life. They cannot be ended, and do no other work."""
        return sum(family.lane.overdue for family in self.relay.families)

    @property
    def failed(self) -> bool:
        """Whether a part of it cannot do its work now; so is a family all of whose threads are in handlers past their time limit."""
        loops = [self._loop, self._heartbeat.loop, *self._sweeps.loops]
        stuck = any(loop.failures > 0 or not loop.alive for loop in loops) or any(family.lane.hung for family in self.relay.families)
        return stuck and not self._stopped.is_set()

    @property
    def hung(self) -> tuple[str, ...]:
        """The families for which work waits while all their threads are past their time limit: only a new process can do it."""
        return () if self._stopping else self._heartbeat.hung

    @property
    def lost(self) -> tuple[str, ...]:
        """The names of its threads that died, which none should: without them it is not a runner any more."""
        loops = [self._loop, self._heartbeat.loop, *self._sweeps.loops, *([self._listener.loop] if self._listener is not None else [])]
        return () if self._stopping else tuple(loop.name for loop in loops if not loop.alive)

    def _given_back(self, _: Any, record: ConnectionPoolEntry) -> None:
        # Of what still ran when the pool was disposed of; nobody else would close it.
        if self._stopped.is_set():
            record.invalidate()

    def _check_process(self) -> None:
        check_not_importing()
        if os.getpid() != self._pid:
            raise AkterError("this Runner was made before a fork: make and start it in the child, as in gunicorn's post_fork hook")

    def _check_outside(self, verb: str) -> None:
        if self.relay.inside:
            raise AkterError(
                f"Runner.{verb}() inside a handler would wait for that handler: "
                f"set a threading.Event there, and call {verb}() in the thread that started the runner"
            )

    def __enter__(self) -> Runner:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


_running: weakref.WeakSet[Runner] = weakref.WeakSet()


def _stop_all() -> None:
    for runner in list(_running):
        runner.stop(grace=2.0)


atexit.register(_stop_all)
