"""The family `jobs`: claimed attempts, run in the lane's threads outside any transaction.

Quick jobs share a thread, one after the other, and what waits behind one that turns out to be slow is taken over by another thread.
Of jobs that nothing is known of, a thread that takes one starts the next thread before it: if they are quick, few threads are started.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from akter.definition import Definition
from akter.errors import AkterError
from akter.fault import Crashed
from akter.member import Surroundings
from akter.runner import isolation, verdict
from akter.runner.attempt import Known, Run, Success, Verdict, run_of
from akter.runner.attempts import Attempts, Held
from akter.runner.family import Probe, Taken
from akter.runner.lane import Lane
from akter.runner.reporter import Reporter
from akter.runner.settler import Counts
from akter.runner.suspects import Suspects
from akter.runner.wanted import Wanted
from akter.store import attempt
from akter.store.attempt import Claimed
from akter.store.flight import Line, Row
from akter.store.rows import parameters
from akter.store.wire import Wire

logger = logging.getLogger("akter.job")

_QUICK = 0.001
"""Seconds up to which a job is quick."""
_REMEMBERED = 4
"""Runs in a row that take a little longer until a job counts as slow: on a busy machine a thread may lose its core in any of them."""
_SHARE = 128
"""Quick jobs that are given to one thread, and verdicts that are written together."""
_OFTEN = 0.005
_STALLED = 0.02
"""Seconds after which jobs that wait behind others are given to threads of their own."""
_SECONDS = 30.0


class Jobs:
    """Runs the jobs of `actors`. `check`: seconds between two looks whether a running attempt was cancelled.

    `expect` lets the relay look for due work after some seconds.
    """

    def __init__(
        self,
        engine: Engine,
        around: Surroundings,
        actors: Mapping[str, Definition],
        lane: Lane,
        check: float,
        expect: Callable[[float], None],
    ) -> None:
        self._engine, self._around, self.lane, self._check = engine, around, lane, check
        self._known = {(name, job.name): Known(definition, job) for name, definition in actors.items() for job in definition.jobs.values()}
        self._wanted = Wanted(around, self._known)
        self.durable = self._wanted.at_once
        self.counts = Counts()
        self.attempts = Attempts(around.faults, self._renew, self._give_up, self._stalled, check, lane)
        self.reporter = Reporter(engine, around, self.attempts, lane, self.counts, expect, self._again)
        self._suspects, self._expect = Suspects(self.attempts, expect), expect
        self._ready: deque[Run] = deque()
        self._ended: deque[Verdict] = deque()
        self._moved_at, self._stopping = 0.0, False
        self._quick: dict[tuple[str, str], int] = {}

    def claim(self, probe: Probe) -> Sequence[Line]:
        """The statements that claim attempts, and that look for groups with something due."""
        return self._wanted.claim(probe, self._suspects.room())

    def taken(self, answers: Sequence[Sequence[Row]], probe: Probe, wire: Wire) -> Taken:
        """What was claimed, with what can be had from the groups that have something due."""
        return self._wanted.taken(answers, probe, wire)

    def start(self, rows: Sequence[Claimed], sent: float, *, full: bool) -> None:
        """Run claimed attempts, and settle those that have nothing to run."""
        runs = [run_of(row, self._known[row.actor_type, row.command], sent, self._check) for row in rows]
        begin = [run for run in runs if run.row.running]
        ends = [verdict.claimed(run) for run in runs if not run.row.running]
        for end in ends:
            # Nobody may give it back: it is being settled.
            end.run.begun = end.run.returned = True
        if self._stopping:
            self._give_back(begin)
            return
        apart = [run for run in begin if run.suspect and not self._suspects.admit(run)]
        if apart:
            # Before any other begins: it may take the process with it.
            self._give_back(apart)
            begin = [run for run in begin if not run.given_back]
        self.attempts.add(run for run in runs if not run.given_back)
        self._ready.extend(sorted(begin, key=lambda run: run.row.scheduled_at_ms))
        known = [self._quick.get((run.row.actor_type, run.row.command)) for run in begin]
        quick, slow = sum(map(bool, known)), known.count(0)
        self.lane.sharing = full and quick == len(rows)
        threads = min(self.lane.idle_threads(), slow + -(-quick // _SHARE))
        self._moved_at = time.monotonic()
        if ends:
            self._in_thread(len(ends), lambda: self.reporter.put(ends), [])
        if not begin:
            return
        # A thread that ends just now has looked before these were there, so at least one begins.
        if not self._in_thread(len(begin), self._work, begin):
            return
        for _ in range(threads - 1):
            self._in_thread(0, self._work, [])
        if len(begin) > threads:
            self.attempts.clock.wake()

    def _in_thread(self, rows: int, work: Callable[[], None], runs: Sequence[Run]) -> bool:
        try:
            self.lane.start(rows, work)
        except RuntimeError:
            # The lane is closed, or no thread can be had.
            self._give_back(runs)
            return False
        return True

    def _is_quick(self, run: Run) -> bool:
        return self._quick.get((run.row.actor_type, run.row.command), 0) > 0

    def _remember(self, run: Run, seconds: float) -> None:
        name = run.row.actor_type, run.row.command
        if seconds <= _QUICK:
            self._quick[name] = _REMEMBERED
        else:
            # One that held up others is not asked to share a thread again until it was quick.
            self._quick[name] = 0 if seconds > _STALLED else max(0, self._quick.get(name, 0) - 1)

    def _stalled(self) -> float | None:
        """Give jobs that wait behind slow ones to idle threads, and tell how those before them ended; returns the seconds until it has to
        look again."""
        stands = time.monotonic() - self._moved_at >= _STALLED
        if stands and self._ended:
            self.reporter.soon(self._taken_ends())
        if not self._ready or self._stopping:
            return _STALLED if self._ended else None
        if stands:
            # From here on each thread starts another one, until one of them finds that its job is quick.
            self._quick.clear()
            if self.lane.idle_threads() > 0:
                self._in_thread(0, self._work, [])
            self._moved_at = time.monotonic()
        return _STALLED

    def _taken_ends(self) -> list[Verdict]:
        """How jobs ended that nobody has reported yet, whichever thread they ran in."""
        taken: list[Verdict] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._ended.popleft())
        return taken

    def _work(self) -> None:
        since = time.monotonic()
        while True:
            try:
                run = self._ready.popleft()
            except IndexError:
                break
            if not self._is_quick(run) and self._ready and self.lane.idle_threads() > 0:
                self._in_thread(0, self._work, [])
            if self._ended:
                if self._is_quick(run):
                    # It may be slow this time, and what ended before it must not wait for it.
                    self.attempts.clock.wake_by(since + _STALLED)
                else:
                    self.reporter.put(self._taken_ends())
            found = self._run(run)
            now = self._moved_at = time.monotonic()
            if found is not None:
                if not self._ended:
                    # Whatever it waited before this, for the interpreter most often, no verdict did.
                    since = now
                self._ended.append(found)
            if len(self._ended) >= _SHARE or now - since > _OFTEN or run.suspect:
                self.reporter.put(self._taken_ends())
                since = now
            if run.suspect:
                self._expect(0.0)
        self.reporter.put(self._taken_ends())

    def _run(self, run: Run) -> Verdict | None:
        """Run one attempt; returns its verdict, unless it was told or must not be."""
        faults = self._around.faults
        try:
            faults.at("after_claim", run)
            faults.at("before_execute", run)
            if not self.attempts.begin(run):
                if not run.given_back:
                    logger.warning("job.claim_outlived_its_lease", extra=run.about())
                    self._drop(run)
                return None
            found = self._execute(run)
            faults.at("after_execute", run)
        except Crashed:
            # As if the process were gone: the row waits for the end of its lease.
            self._drop(run)
            return None
        self._remember(run, run.seconds())
        if self.attempts.ended(run):
            return found
        logger.warning("job.returned_late", extra={**run.about(), "akter_seconds": round(run.seconds(), 3)})
        if isinstance(found, Success):
            return found
        self._drop(run)
        return None

    def _drop(self, run: Run) -> None:
        self.attempts.forget([run])
        self.lane.leave(1)

    def _execute(self, run: Run) -> Verdict:
        job = run.known.job
        try:
            arguments = job.call.load(run.row.payload, run.row.payload_version)
        except AkterError as problem:
            return verdict.not_started(run, problem)
        try:
            if job.isolation == "process":
                value = isolation.call(run, arguments)
            else:
                value = contextvars.copy_context().run(job.call.call, run.attempt, arguments)
        except BaseException as problem:  # noqa: BLE001 - whatever a function raises, even an exit, is how its attempt ended
            return verdict.failed(run, problem)
        return verdict.succeeded(run, value, self._around.max_payload_bytes)

    def _again(self) -> bool:
        """Look for a job whose group has a place now, unless others have to."""
        if self._stopping or self.lane.free() <= 0:
            return False
        self.lane.again()
        return True

    def _give_up(self, run: Run, why: str) -> None:
        self.reporter.later(verdict.given_up(run, why))
        if run.suspect:
            self._expect(0.0)

    def _renew(self, runs: Sequence[Run]) -> dict[Held, bool]:
        rows = [{**verdict.token(run), "lease_ms": round(run.lease * 1000)} for run in runs]
        (answer,) = self._fly([self._line(attempt.renew, parameters("renew_", rows, True))], min(run.lease for run in runs))
        return {(row[0], row[1], row[2], row[3]): row[4] for row in answer}

    def _give_back(self, runs: Sequence[Run] | None) -> int:
        """Give back those that nobody has begun, of all or of these; returns how many that are."""
        waiting = self.attempts.take_back(runs)
        if not waiting:
            return 0
        rows = [{**verdict.token(run), **_before(run.row)} for run in waiting]
        try:
            ((released,),) = self._fly([self._line(attempt.release, parameters("free_", rows, True))], _SECONDS)[0]
        except AkterError as problem:
            logger.warning("relay.release_failed", extra={"akter_rows": len(waiting), "akter_reason": str(problem)[:500]})
        else:
            self.counts.add(released=released)
        return len(waiting)

    def _line(self, statement: Any, values: dict[str, Any]) -> Line:
        return Line(self._around.statements.get(statement), values)

    def _fly(self, lines: Sequence[Line], seconds: float) -> list[list[Row]]:
        with Wire(self._engine, self._around.statements) as wire, wire.answering():
            return [answer.rows for answer in wire.transact(lines, seconds)]

    def cancelled(self, ids: Sequence[str]) -> None:
        """Tell attempts of these jobs that run here to stop; a turn of this process cancelled them."""
        self.attempts.cancel(ids)

    def stop(self) -> None:
        """Begin nothing more, and give back what was claimed but not begun."""
        self._stopping = True
        self._ready.clear()
        self.lane.leave(self._give_back(None))

    def warn(self) -> None:
        """Tell what still runs to stop: the time for it is over."""
        self.attempts.tell()

    def abandon(self) -> None:
        """Give back what nobody has begun; what runs is left to its lease, for its end is unknown."""
        self.stop()

    def held(self) -> list[str]:
        """The ids of the jobs this runner holds."""
        return self.attempts.ids()

    def close(self) -> None:
        """End the threads when what they do is done."""
        self.attempts.clock.stop()
        self.attempts.leases.stop()
        self.reporter.close()
        self.lane.close()


def _before(row: Claimed) -> dict[str, Any]:
    return {"ambiguous": row.was_ambiguous, "last_error": row.was_error, "running": row.was_running}
