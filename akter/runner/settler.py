"""Settle claimed rows: delivered, waiting for the next try, or given back. Every write names its claim, so a late one changes nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from akter.definition import Definition
from akter.errors import (
    AkterError,
    CommandConflict,
    CommandExpired,
    InvalidCommandId,
    NotCreated,
    OutcomeUnknown,
    PayloadInvalid,
    Unauthorized,
    Unavailable,
    UnknownActor,
)
from akter.identity import shown_id
from akter.planting import times
from akter.schedule import CRON_KEY
from akter.store import schedule, settle
from akter.store.claim import Claimed
from akter.store.flight import Line, Lost, StatementFailed
from akter.store.rows import parameters
from akter.store.settle import PARKED_MS
from akter.store.wire import Statements, Wire

logger = logging.getLogger("akter.relay")

_LONG = 2000
_SECONDS = 30.0


class Counts:
    """What a runner did; read by its report and its metrics. `released`: given back before they were begun; `stale`: settles that found
    the row gone or claimed by somebody else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.delivered = self.retried = self.parked = self.released = self.stale = self.groups = 0

    def add(self, **by: int) -> None:
        """Count."""
        with self._lock:
            for name, number in by.items():
                setattr(self, name, getattr(self, name) + number)

    def with_(self, other: Counts) -> Counts:
        """Both together."""
        both = Counts()
        for name in ("delivered", "retried", "parked", "released", "stale", "groups"):
            both.add(**{name: getattr(self, name) + getattr(other, name)})
        return both


@dataclass(frozen=True, slots=True)
class Report:
    """How a runner stopped. `left`: ids of messages that still ran when the time was over; their leases will bring them back."""

    clean: bool
    delivered: int
    retried: int
    parked: int
    released: int
    left: tuple[str, ...]


class Settler:
    """Writes what became of claimed rows, many in one statement."""

    def __init__(self, engine: Engine, statements: Statements, max_backoff: float, actors: Mapping[str, Definition], keep_ms: int) -> None:
        self._engine, self._statements, self._max_backoff_ms = engine, statements, round(max_backoff * 1000)
        self._actors, self._keep_ms = actors, keep_ms
        self.counts = Counts()

    def done(self, rows: Sequence[Claimed], now_ms: int) -> list[Line]:
        """The statements that end delivered rows, to ride in their receivers' commit or to be flown after it.

        Messages are deleted; ticks get the time that comes next after `now_ms`, which is at most the database's time.
        """
        ticks = [row for row in rows if is_tick(row)]
        others = [row for row in rows if not is_tick(row)]
        lines = [self._line(settle.done, "done_", [claim_of(row) for row in others])] if others else []
        if ticks:
            lines.append(self._line(schedule.move_on, "next_", [self._next(row, now_ms) for row in ticks], keep_ms=self._keep_ms))
        return lines

    def _next(self, row: Claimed, now_ms: int) -> dict[str, Any]:
        entry = self._actors[row.target_type].schedules[row.timer_key or ""]
        return {**claim_of(row), "command": entry.command.name, **times(entry, now_ms)}

    def end(self, rows: Sequence[Claimed], now_ms: int, wire: Wire) -> None:
        """Do that with delivered rows now; raises `Unavailable`."""
        self._fly(self.done(rows, now_ms), len(rows), wire)

    def set_aside(self, skipped: Sequence[Claimed], given_up: Sequence[Claimed], unknown: Sequence[Claimed]) -> None:
        """Move skipped ticks on, delete those given up, and let those of unknown schedules wait; raises `Unavailable`."""
        lines = self.done(skipped, max((row.claimed_at_ms for row in skipped), default=0))
        if given_up:
            lines.append(self._line(settle.done, "done_", [claim_of(row) for row in given_up]))
        if unknown:
            reason = "this schedule is not in the code of the runner that looked last"
            rows = [{**claim_of(row), "last_error": reason} for row in unknown]
            lines.append(self._line(schedule.put_off, "off_", rows, max_backoff_ms=self._max_backoff_ms))
        with Wire(self._engine, self._statements) as wire:
            self._fly(lines, len(skipped) + len(given_up) + len(unknown), wire)

    def release(self, rows: Sequence[Claimed], *, begun: bool = False) -> int:
        """Make rows due at once, for any runner; returns how many were still this runner's. Raises `Unavailable`.

        A row that nobody has `begun` to deliver gets its attempt back, so that waiting for a thread never looks like failing.
        """
        if not rows:
            return 0
        with Wire(self._engine, self._statements) as wire:
            return self._fly(
                [self._line(settle.release, "free_", [{**claim_of(row), "refund": 0 if begun else 1} for row in rows])], len(rows), wire
            )

    def explain(self, rows: Sequence[Claimed], why: str) -> bool:
        """Keep on rows that are still worked on why they are not done; returns whether that was written."""
        if not rows:
            return True
        line = self._line(settle.explain, "why_", [{**claim_of(row), "last_error": why} for row in rows])
        try:
            with Wire(self._engine, self._statements) as wire:
                self._fly([line], len(rows), wire)
        except AkterError as problem:
            logger.warning("relay.settle_failed", extra={"akter_rows": len(rows), "akter_reason": str(problem)[:500]})
            return False
        return True

    def wait(self, failed: Sequence[tuple[Claimed, BaseException]], wire: Wire | None = None) -> None:
        """Let rows wait for their next try, and park those that can never succeed. What cannot be written waits for its lease's end.

        A tick of an actor that does not exist is not tried again: its schedule goes on with the next time.

        `wire` is the caller's, when it has one that is in no transaction: a second one might not be had.
        """
        if not failed:
            return
        absent = [row for row, problem in failed if is_tick(row) and isinstance(problem, NotCreated)]
        waiting = [self._waiting(row, problem) for row, problem in failed if row not in absent]
        lines = self.done(absent, max((row.claimed_at_ms for row in absent), default=0))
        if waiting:
            lines.append(self._line(settle.back_off, "wait_", waiting))
        try:
            if wire is not None:
                self._fly(lines, len(failed), wire)
                return
            with Wire(self._engine, self._statements) as own:
                self._fly(lines, len(failed), own)
        except AkterError as problem:
            logger.warning("relay.settle_failed", extra={"akter_rows": len(failed), "akter_reason": str(problem)[:500]})

    def _waiting(self, row: Claimed, problem: BaseException) -> dict[str, Any]:
        # A tick is skipped when its time is over, and its schedule goes on.
        never = isinstance(problem, CommandConflict | CommandExpired | InvalidCommandId | Unauthorized) and not is_tick(row)
        delay = PARKED_MS if never else backoff_ms(row.attempts, 1000, self._max_backoff_ms)
        reason, shown = reason_of(problem)
        said = {**about(row), "akter_reason": shown}
        logger.warning(
            "relay.parked" if never else "relay.retry", extra=said, exc_info=None if isinstance(problem, AkterError) else problem
        )
        self.counts.add(**{"parked" if never else "retried": 1})
        return {**claim_of(row), "delay_ms": delay, "last_error": ("parked: " if never else "") + reason}

    def _fly(self, lines: Sequence[Line], rows: int, wire: Wire) -> int:
        try:
            moved = sum(int(answer.rows[0][0]) for answer in wire.transact(lines, _SECONDS))
        except (StatementFailed, Lost) as problem:
            raise Unavailable(f"the outbox could not be written: {problem}") from problem
        if moved != rows:
            self.counts.add(stale=rows - moved)
        return moved

    def _line(self, statement: Any, prefix: str, rows: list[dict[str, Any]], **values: int) -> Line:
        return Line(self._statements.get(statement), {**values, **parameters(prefix, rows, True)})


def backoff_ms(attempts: int, first_ms: float, most_ms: float) -> int:
    """Milliseconds to wait after so many attempts: the first wait, doubled with each attempt, up to the longest."""
    waits = float(first_ms * 2.0 ** min(max(attempts - 1, 0), 31))
    return round(min(waits, most_ms))


def is_tick(row: Claimed) -> bool:
    """Whether a row belongs to a schedule."""
    return row.timer_key is not None and row.timer_key.startswith(CRON_KEY)


def reason_of(problem: BaseException) -> tuple[str, str]:
    """Why a row waits: as it is stored, and as it may be logged."""
    reason = f"{type(problem).__name__}: {problem}".replace("\0", "\\0").encode(errors="replace")[:_LONG].decode(errors="replace")
    # Anything else may quote what the application stores, which belongs into the database only.
    known = isinstance(problem, Unavailable | OutcomeUnknown | UnknownActor | PayloadInvalid)
    return reason, reason if known else type(problem).__name__


def claim_of(row: Claimed) -> dict[str, Any]:
    """What names a claim."""
    return {name: getattr(row, name) for name in settle.CLAIM}


def about(row: Claimed) -> dict[str, Any]:
    """A row, for a line of the log."""
    return {
        "akter_actor": f"{row.target_type}/{row.target_id}",
        "akter_tenant": row.tenant_id,
        "akter_command": row.command,
        "akter_command_id": shown_id(row.intent_id),
        "akter_attempts": row.attempts,
    }
