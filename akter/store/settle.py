"""What becomes of claimed rows. Every write names the lease that the claim wrote, so a stale runner changes nothing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Integer, and_, delete, func, literal_column, select, update
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.clock import now_ms
from akter.store.rows import source
from akter.tables import outbox

CLAIM = ("bucket", "routing_key", "intent_id", "claimed_until_ms")
"""What names a claim: the row, and the exact end of the lease that the claim wrote."""

PARKED_MS = 2**53 - 1
"""The due time of a row that can never succeed; an operator discards or redirects it."""


def done() -> ExecutableReturnsRows:
    """Delete delivered rows; returns how many were still this runner's."""
    rows = source("done_", CLAIM, True)
    gone = delete(outbox).where(held(rows)).returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(gone.cte("done"))


def back_off() -> ExecutableReturnsRows:
    """Let rows wait `delay_ms` from now, keeping why; returns how many were still this runner's."""
    rows = source("wait_", (*CLAIM, "delay_ms", "last_error"), True)
    parked = literal_column(str(PARKED_MS), BigInteger())
    due = func.least(now_ms() + rows.c.delay_ms, parked, type_=BigInteger())
    moved = update(outbox).values(due_at_ms=due, last_error=rows.c.last_error).where(held(rows)).returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(moved.cte("waiting"))


def explain() -> ExecutableReturnsRows:
    """Keep why claimed rows are not delivered yet; returns how many were still this runner's."""
    rows = source("why_", (*CLAIM, "last_error"), True)
    told = update(outbox).values(last_error=rows.c.last_error).where(held(rows)).returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(told.cte("explained"))


def release() -> ExecutableReturnsRows:
    """Make claimed rows due at once, for another runner, and take back the attempt that was not made (`refund` 1).

    Returns how many were still this runner's.
    """
    rows = source("free_", (*CLAIM, "refund"), True)
    moved = (
        update(outbox).values(due_at_ms=now_ms(), attempts=outbox.c.attempts - rows.c.refund).where(held(rows)).returning(outbox.c.bucket)
    )
    return select(func.count(type_=Integer())).select_from(moved.cte("released"))


def held(rows: Any) -> Any:
    """Whether a row is still what these claims made of it."""
    key = and_(*(outbox.c[name] == rows.c[name] for name in CLAIM[:3]))
    return and_(key, outbox.c.kind != literal_column("'job'"), outbox.c.due_at_ms == rows.c.claimed_until_ms)
