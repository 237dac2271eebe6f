"""The outbox: what committed turns asked for. Its rows are written in the turn's commit, in one statement however many there are."""

from __future__ import annotations

from sqlalchemy import BigInteger, FromClause, Integer, and_, case, delete, func, literal_column, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.clock import now_ms
from akter.store.rows import source
from akter.tables import IDENTITY, outbox

JOB_KEY = "$job:"
"""What the key of a job starts with in `timer_key`, so that a message and a job may carry the same key."""

_STAGED = (
    *IDENTITY,
    "intent_id",
    "kind",
    "timer_key",
    "target_type",
    "target_id",
    "command",
    "payload",
    "payload_version",
    "caller",
)

WRITTEN = (*_STAGED, "delay_ms", "due_at_ms")
"""What a request is written from."""


def stage() -> ExecutableReturnsRows:
    """Insert requests; a relative delay counts from this statement, not from the turn's start. Returns how many there are."""
    return inserted(source("stage_", WRITTEN, True))


def inserted(rows: FromClause) -> ExecutableReturnsRows:
    """Insert these rows, whichever way they come; what `stage` does."""
    moment = select(now_ms().label("now_ms")).cte("moment")
    due = func.coalesce(rows.c.due_at_ms, moment.c.now_ms + rows.c.delay_ms, type_=BigInteger())
    ready = case((rows.c.kind == literal_column("'job'"), due), else_=literal_column("NULL"))
    chosen = select(*(rows.c[name] for name in _STAGED), due, due, ready).select_from(rows.join(moment, literal_column("true")))
    columns = [*_STAGED, "due_at_ms", "scheduled_at_ms", "ready_at_ms"]
    made = insert(outbox).from_select(columns, chosen)
    # The same id again is the same request, written by a caller who did not learn that the first one arrived.
    once = made.on_conflict_do_nothing(index_elements=["bucket", "routing_key", "intent_id"]).returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(once.cte("staged"))


def cancel() -> ExecutableReturnsRows:
    """Delete the pending requests that carry one of the given keys; a job that an attempt was made of stays. Returns how many."""
    rows = source("cancel_", (*IDENTITY, "timer_key"), True)
    mine = and_(*(outbox.c[name] == rows.c[name] for name in (*IDENTITY, "timer_key")))
    pending = or_(outbox.c.kind != literal_column("'job'"), outbox.c.attempts == literal_column("0"))
    gone = delete(outbox).where(mine, pending).returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(gone.cte("cancelled"))
