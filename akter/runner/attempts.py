"""The attempts that run here: how long each may run, how long its lease lasts, and who is told to stop.

Two loops watch them. One keeps local time and never waits for the database: it gives up attempts whose time or lease is over. The
other renews the leases of all of them in one statement, and learns from it which were cancelled, and which another runner has now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from akter.errors import AkterError
from akter.fault import Crashed, Faults
from akter.job import Attempt
from akter.runner.attempt import Over, Run
from akter.runner.lane import Lane
from akter.runner.loop import Loop

logger = logging.getLogger("akter.job")

GRACE = 2.0
"""Seconds that a cancelled attempt has to return by itself."""

SHOWN = 20
"""Running attempts whose progress a runner shows."""

_LONGEST_LOOK = 1.0
_FOREVER = float("inf")

Held: TypeAlias = "tuple[int, int, str, int]"
"""An attempt, as its job's row names it: bucket, routing key, id and the attempt's number."""

WHY: dict[Over, str] = {
    "time": "it took longer than its time limit",
    "lease": "its lease could not be renewed in time",
    "cancelled": "it was cancelled, and did not stop by itself",
}


class Attempts:
    """All that is claimed here and not settled.

    `renew` asks the database, and returns the attempts that still hold their jobs, with whether those were cancelled: this runner may have
    the next attempt of a job, too. `give_up` reports an attempt whose function still runs. `stalled` looks after jobs that wait behind
    others, and says in how many seconds to look again. `lane` is told how many threads are in functions past their time.
    """

    def __init__(
        self,
        faults: Faults,
        renew: Callable[[Sequence[Run]], dict[Held, bool]],
        give_up: Callable[[Run, str], None],
        stalled: Callable[[], float | None],
        check: float,
        lane: Lane,
    ) -> None:
        self._faults, self._renew, self._give_up, self._stalled = faults, renew, give_up, stalled
        self._check, self._lane = check, lane
        self._lock = threading.Lock()
        self._runs: dict[Run, None] = {}
        self._next = self._renewal = _FOREVER
        self.clock, self.leases = Loop("akter-deadlines", self._look), Loop("akter-leases", self._renew_all)

    def add(self, runs: Iterable[Run]) -> None:
        """Hold claimed attempts."""
        held = dict.fromkeys(runs)
        first = min((run.renew_at for run in held), default=_FOREVER)
        with self._lock:
            self._runs.update(held)
            sooner = first < self._renewal
            self._renewal = min(first, self._renewal)
        self.clock.start()
        self.leases.start()
        if sooner:
            # Those that are renewed later are found by the look that is planned.
            self.leases.wake()

    def begin(self, run: Run) -> bool:
        """Begin an attempt, unless it was given back or its lease is over by now; returns whether it may run."""
        now = time.monotonic()
        with self._lock:
            if run.given_back or now >= run.until or run.over:
                return False
            run.begun, run.begun_at, run.deadline = True, now, now + run.known.job.timeout + run.starting
            run.called = run.known.job.isolation == "thread"
            row = run.row
            run.attempt = Attempt(
                job_id=row.intent_id,
                number=row.attempts,
                actor_id=row.actor_id,
                tenant=row.tenant_id,
                deadline=run.deadline,
                report=run.report,
            )
            if run.cancelled:
                run.attempt.cancelled.set()
            sooner = (ends := min(run.deadline, run.until)) < self._next
            if sooner:
                # Until the clock has looked, it need not be woken for those that end later.
                self._next = ends
        if sooner:
            self.clock.wake()
        return True

    def frames(self) -> list[dict[str, Any]]:
        """The newest frames of the attempts that run longest, with whose they are."""
        shown = [run for run in self.running() if run.frame is not None and not run.over]
        return [
            {
                "actor": f"{run.row.actor_type}/{run.row.actor_id}",
                "job": run.row.command,
                "job_id": run.id,
                "attempt": run.row.attempts,
                "seconds": round(run.seconds(), 1),
                "progress": run.frame,
            }
            for run in shown[:SHOWN]
        ]

    def ended(self, run: Run) -> bool:
        """Its function returned; returns whether nobody had given it up before."""
        with self._lock:
            # A run and its attempt know each other, which would be one more thing for the collector of garbage.
            run.returned, run.frame, run.attempt = True, None, None
            if run.over:
                self._count()
            return not run.over

    def _count(self) -> None:
        self._lane.overdue = sum(run.begun and bool(run.over) and not run.returned for run in self._runs)

    def holds(self, run: Run) -> bool:
        """Whether it is neither settled nor given up."""
        with self._lock:
            return run in self._runs and not run.over

    def forget(self, runs: Iterable[Run]) -> None:
        """Hold them no more: they are settled, or were given back."""
        with self._lock:
            for run in runs:
                self._runs.pop(run, None)

    def take_back(self, runs: Iterable[Run] | None = None) -> list[Run]:
        """Take those that nobody has begun, of all or of these, away from their threads."""
        with self._lock:
            waiting = [run for run in (self._runs if runs is None else runs) if not run.begun and not run.given_back]
            for run in waiting:
                run.given_back = True
                self._runs.pop(run, None)
        return waiting

    def cancel(self, ids: Iterable[str]) -> None:
        """Tell the attempts of these jobs to stop."""
        wanted = set(ids)
        with self._lock:
            found = [run for run in self._runs if run.id in wanted]
        for run in found:
            self._cancel(run)

    def tell(self) -> None:
        """Tell all that run to stop, without any other consequence: the runner's time is over."""
        for run in self.running():
            _tell(run)

    def _cancel(self, run: Run) -> None:
        with self._lock:
            if run.cancelled or run.returned:
                return
            run.cancelled = True
            run.deadline = min(run.deadline, time.monotonic() + (0.0 if run.kill else GRACE))
            _tell(run)
        self.clock.wake()

    def running(self) -> list[Run]:
        """Those whose functions run, longest first."""
        with self._lock:
            return sorted((run for run in self._runs if run.begun and not run.returned), key=lambda run: run.begun_at)

    def ids(self) -> list[str]:
        """The ids of the jobs whose functions run or are to run, and of those whose end is not written yet."""
        with self._lock:
            return sorted(run.id for run in self._runs)

    def _look(self) -> float:
        """Give up what is over; the local clock's work."""
        now = time.monotonic()
        with self._lock:
            due = [run for run in self._runs if run.begun and not run.returned and not run.over and now >= min(run.deadline, run.until)]
            for run in due:
                run.over = "cancelled" if run.cancelled else "time" if now >= run.deadline else "lease"
            self._count()
        for run in due:
            logger.warning("job.abandoned", extra={**run.about(), "akter_reason": run.over, "akter_seconds": round(run.seconds(), 3)})
            _stop(run)
            late = f"its process did not start within {run.known.job.timeout + run.starting:g} seconds"
            self._give_up(run, late if run.over == "time" and not run.called else WHY[run.over])
        stalled = self._stalled()
        with self._lock:
            ends = (min(run.deadline, run.until) for run in self._runs if run.begun and not run.returned and not run.over)
            first = min(ends, default=_FOREVER)
            self._next = min(first, _FOREVER if stalled is None else now + stalled)
        return max(0.0, min(_LONGEST_LOOK, self._next - time.monotonic()))

    def _renew_all(self) -> float:
        """Renew the leases that are due for it; the other loop's work."""
        now = time.monotonic()
        with self._lock:
            held = [run for run in self._runs if not run.over]
            due = [run for run in held if now >= run.renew_at]
        due = [run for run in due if self._reaches(run)]
        if due:
            try:
                self._renewed(due, now, self._renew(due))
            except AkterError as problem:
                logger.warning("job.renewal_failed", extra={"akter_rows": len(due), "akter_reason": str(problem)[:500]})
                for run in due:
                    run.renew_at = time.monotonic() + min(0.5, run.lease / 10)
        with self._lock:
            first = self._renewal = min((run.renew_at for run in self._runs if not run.over), default=_FOREVER)
        return max(0.0, min(_LONGEST_LOOK, first - time.monotonic()))

    def _reaches(self, run: Run) -> bool:
        try:
            self._faults.at("before_renew", run)
        except Crashed:
            run.renew_at = _FOREVER
            return False
        return True

    def _renewed(self, asked: Sequence[Run], sent: float, found: dict[Held, bool]) -> None:
        for run in asked:
            cancelled = found.get((run.row.bucket, run.row.routing_key, run.row.intent_id, run.row.attempts))
            if cancelled is None:
                self._lose(run)
                continue
            with self._lock:
                # From when it was sent: the lease in the database never ends before this one.
                run.until = max(run.until, sent + run.lease)
                run.renew_at = sent + min(run.lease / 3, self._check)
            if cancelled:
                self._cancel(run)

    def _lose(self, run: Run) -> None:
        with self._lock:
            run.renew_at = _FOREVER
            if run.returned or run not in self._runs:
                return
            run.over = "lost"
        logger.warning("job.lease_lost", extra=run.about())
        _stop(run)


def _stop(run: Run) -> None:
    """Tell a function to stop; a process of its own is ended."""
    # Read once: its thread takes it away when the function has ended.
    kill = run.kill
    _tell(run)
    if kill is not None:
        kill()


def _tell(run: Run) -> None:
    """Tell a function to stop, if it still runs."""
    attempt = run.attempt
    if attempt is not None:
        attempt.cancelled.set()
