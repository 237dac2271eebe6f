"""Writes how attempts ended, many in one flight: whoever has something to report reports for all who came meanwhile.

What cannot be written now is tried again while the runner lives, and its leases are renewed until it is. What a crash keeps from being
written was claimed as ambiguous, and stays so.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Engine

from akter.errors import Unavailable
from akter.fault import Crashed
from akter.member import Surroundings
from akter.runner import verdict as verdicts
from akter.runner.attempt import End, Failure, Run, Success, Verdict
from akter.runner.attempts import Attempts
from akter.runner.lane import Lane, Threads
from akter.runner.settler import Counts, backoff_ms
from akter.store import plans, queue, report
from akter.store.flight import Line, Row
from akter.store.queue import Group
from akter.store.rows import parameters
from akter.store.wire import Wire

logger = logging.getLogger("akter.job")

Key = tuple[int, int, str]

_SECONDS = 30.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0
_BLOCKED = 0.5
"""Seconds after which a late success looks again whether the newer attempt has ended."""


class Reporter:
    """Verdicts are counted as ending in their lane until they are written, but for those that are told once more.

    `expect` lets the relay look for due work after some seconds, `again` for jobs now, unless it returns that it cannot.
    """

    def __init__(
        self,
        engine: Engine,
        around: Surroundings,
        attempts: Attempts,
        lane: Lane,
        counts: Counts,
        expect: Callable[[float], None],
        again: Callable[[], bool],
    ) -> None:
        self._engine, self._around, self._attempts, self._lane = engine, around, attempts, lane
        self.counts, self._expect, self._look_again = counts, expect, again
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._pending: list[tuple[Verdict, bool]] = []
        self._closed = threading.Event()
        self._threads = Threads("akter-reports", 1)

    def put(self, ended: Sequence[Verdict]) -> None:
        """Report of functions that have returned, which frees their seats.

        It returns when that is written, or somebody else has taken it over.
        """
        self._lane.ended(len(ended))
        self._add(ended)
        self._flush()

    def later(self, ended: Verdict) -> None:
        """Report, from a thread that must not wait for the database, of an attempt whose function still runs and keeps its seat."""
        # The report is work as well, and whoever waits for the lane waits for it.
        self._lane.hold(1)
        self._soon([ended])

    def soon(self, ended: Sequence[Verdict]) -> None:
        """Report of functions that have returned, from a thread that must not wait for the database."""
        self._lane.ended(len(ended))
        self._soon(ended)

    def _add(self, ended: Sequence[Verdict], *, counted: bool = True) -> None:
        with self._lock:
            self._pending.extend((verdict, counted) for verdict in ended)

    def _soon(self, ended: Sequence[Verdict]) -> None:
        self._add(ended)
        try:
            self._threads.run(self._flush)
        except RuntimeError:
            for verdict in ended:
                logger.warning("job.settle_failed", extra={**verdict.run.about(), "akter_reason": "the runner has stopped"})

    def close(self) -> None:
        """Try no more."""
        self._closed.set()
        self._threads.close()

    def _flush(self) -> None:
        wait = _FIRST_WAIT
        while self._pending and self._flushing.acquire(blocking=False):
            try:
                with self._lock:
                    batch, self._pending = self._pending, []
                left = self._report(batch)
                with self._lock:
                    self._pending[:0] = left
            finally:
                self._flushing.release()
            if left:
                if self._closed.wait(wait):
                    return
                wait = min(_LONGEST_WAIT, wait * 2)

    def _report(self, batch: list[tuple[Verdict, bool]]) -> list[tuple[Verdict, bool]]:
        """Write a batch; returns what has to be tried again."""
        try:
            self._write([verdict for verdict, _ in batch])
        except Unavailable as problem:
            logger.warning("job.settle_failed", extra={"akter_rows": len(batch), "akter_reason": str(problem)[:500]})
            return batch
        except Exception as problem:
            if len(batch) > 1:
                return [kept for one in batch for kept in self._report([one])]
            # Its lease brings it back, as an attempt whose end nobody knows.
            logger.exception("job.settle_failed", extra={**batch[0][0].run.about(), "akter_reason": type(problem).__name__})
        # Of those given up, the functions still run: whoever asks what runs here must hear of them.
        self._attempts.forget(verdict.run for verdict, _ in batch if verdict.run.returned or not verdict.run.over)
        self._lane.written(sum(counted for _, counted in batch))
        return []

    def _write(self, batch: Sequence[Verdict]) -> None:
        successes = [verdict for verdict in batch if isinstance(verdict, Success)]
        failures = [verdict for verdict in batch if isinstance(verdict, Failure)]
        ends = [verdict for verdict in batch if isinstance(verdict, End)]
        functions = [*(success.run for success in successes), *(one.run for one in failures)]
        wakes = Counter(group for run in functions if (group := run.group) is not None)
        told = any(success.command or success.cancel_command for success in successes)
        with Wire(self._engine, self._around.statements) as wire:
            if successes or failures:
                found, failed = self._record(wire, successes, failures, wakes)
                self._check(wire, successes, found)
                ends += self._continue(failures, failed)
            ends = [end for end in ends if self._reaches(end)]
            if ends:
                told |= self._end(wire, ends)
        if told or (wakes and not self._look_again()):
            self._around.wake()

    def _record(
        self, wire: Wire, successes: Sequence[Success], failures: Sequence[Failure], wakes: Counter[Group]
    ) -> tuple[dict[Key, bool], dict[Key, Row]]:
        """Write how functions ended; returns the successes that found their job, with whether they must wait, and the failures."""
        lines = [Line(self._around.statements.get(plans.generic), {})]
        if wakes:
            # First, and before any row is locked: a claim of the group that is under way waits for rows while it holds it.
            locks = [group.lock(self._around.statements.schema) for group in wakes]
            lines.append(Line(self._around.statements.get(queue.lock), {"locks": locks}))
        if successes:
            values = _successes(successes)
            capped, tells = any(values["success_capped"]), any(values["success_caller"])
            lines.append(Line(self._around.statements.get(report.success, capped, tells), values))
        if failures:
            lines.append(self._line(report.failure, "failure_", [_failure(one) for one in failures]))
        if wakes:
            rows = [{**group._asdict(), "count": count} for group, count in wakes.items()]
            lines.append(self._line(queue.wake, "wake_", rows))
        answers = self._fly(wire, lines)[2 if wakes else 1 :]
        found = {row[:3]: row[3] for row in answers.pop(0)} if successes else {}
        failed = {row[:3]: row for row in answers.pop(0)} if failures else {}
        return found, failed

    def _check(self, wire: Wire, successes: Sequence[Success], found: dict[Key, bool]) -> None:
        """What became of successes that did not end their job."""
        ends = [(success, found.get(_key(success.run))) for success in successes]
        late = [success for success, waits in ends if waits is None]
        for success, waits in ends:
            if waits:
                # A newer attempt runs, and its place is counted by this row.
                self._again(success)
        self.counts.add(delivered=len(successes) - len(late))
        if not late:
            return
        self.counts.add(stale=len(late))
        (rows,) = self._fly(wire, [self._line(report.late, "late_", [_late(one) for one in late])])
        marked = {row[0] for row in rows}
        for success in late:
            if success.run.id in marked:
                logger.warning("job.late_success", extra=success.run.about())

    def _again(self, success: Success) -> None:
        """Report it once more after a while, from a thread that does not hold the end of the process; its row is safe."""

        def once_more() -> None:
            self._add([success], counted=False)
            self._flush()

        timer = threading.Timer(_BLOCKED, once_more)
        timer.daemon = True
        timer.start()

    def _continue(self, failures: Sequence[Failure], recorded: dict[Key, Row]) -> list[End]:
        """What follows recorded failures: another attempt, or the end of the job."""
        ends: list[End] = []
        for one in failures:
            row = recorded.get(_key(one.run))
            if row is None:
                self.counts.add(stale=1)
                logger.info("job.stale_failure", extra=one.run.about())
                continue
            end = verdicts.after(one, cancelled=row[3], maybe_applied=row[4])
            if end is not None:
                ends.append(end)
                continue
            self.counts.add(retried=1)
            logger.warning("job.retry", extra={**one.run.about(), "akter_ambiguous": one.ambiguous})
            self._expect(_delay_ms(one.run) / 1000)
        return ends

    def _reaches(self, end: End) -> bool:
        try:
            self._around.faults.at("before_dead_letter_commit", end.run)
        except Crashed:
            return False
        return True

    def _end(self, wire: Wire, ends: Sequence[End]) -> bool:
        rows = [verdicts.ending(end) for end in ends]
        (answer,) = self._fly(wire, [self._line(report.end, "end_", rows)])
        ended = {tuple(row) for row in answer}
        for end, row in zip(ends, rows, strict=True):
            if _key(end.run) not in ended:
                self.counts.add(stale=1)
            elif row["letter"]:
                self._around.telemetry.dead_letter(end.run.row.actor_type, end.run.row.command)
                logger.error("job.dead_letter", extra={**end.run.about(), "akter_ambiguous": row["ambiguous"]})
            else:
                logger.info("job.cancelled", extra={**end.run.about(), "akter_ambiguous": row["ambiguous"]})
        return any(row["command"] for row in rows)

    def _line(self, statement: Any, prefix: str, rows: list[dict[str, Any]]) -> Line:
        return Line(self._around.statements.get(statement), parameters(prefix, rows, True))

    def _fly(self, wire: Wire, lines: Sequence[Line]) -> list[list[Row]]:
        with wire.answering():
            return [answer.rows for answer in wire.transact(lines, _SECONDS)]


def _key(run: Run) -> Key:
    return run.row.bucket, run.row.routing_key, run.row.intent_id


def _successes(ended: Sequence[Success]) -> dict[str, list[Any]]:
    """The parameters of `akter.store.report.success`, column by column: there are many rows, and most of them tell nobody."""
    rows = [one.run.row for one in ended]
    tells = [one.command is not None or one.cancel_command is not None for one in ended]
    return {
        "success_bucket": [row.bucket for row in rows],
        "success_routing_key": [row.routing_key for row in rows],
        "success_intent_id": [row.intent_id for row in rows],
        "success_attempts": [row.attempts for row in rows],
        "success_command": [one.command for one in ended],
        "success_payload": [one.payload for one in ended],
        "success_cancel_command": [one.cancel_command for one in ended],
        "success_cancel_payload": [one.cancel_payload for one in ended],
        "success_caller": [verdicts.teller(one.run) if told else "" for one, told in zip(ended, tells, strict=True)],
        "success_capped": [one.run.known.job.concurrency is not None for one in ended],
    }


def _failure(one: Failure) -> dict[str, Any]:
    return {
        **verdicts.token(one.run),
        "last_error": one.cause,
        "ambiguous": one.ambiguous,
        "final": one.final,
        "delay_ms": _delay_ms(one.run),
    }


def _late(one: Success) -> dict[str, Any]:
    row = one.run.row
    return {
        **verdicts.token(one.run),
        "tenant_id": row.tenant_id,
        "actor_type": row.actor_type,
        "actor_id": row.actor_id,
        "command": row.command,
        "payload": row.payload,
        "payload_version": row.payload_version,
        "cancel_command": one.cancel_command,
        "succeeded": verdicts.told_as_succeeded(one),
        "cause": "an attempt that was taken for dead succeeded",
    }


def _delay_ms(run: Run) -> int:
    retry = run.known.job.retry
    return backoff_ms(run.row.attempts, retry.base * 1000, retry.cap * 1000)
