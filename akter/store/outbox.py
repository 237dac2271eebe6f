"""The outbox: what committed turns asked for. Its rows are written in the turn's commit, in one statement however many there are."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    and_,
    case,
    delete,
    false,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    update,
)
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
    """Insert requests; a relative delay counts from this statement, not from the turn's start. Returns how many there are.

    `ord` counts the turn's requests, and `capped` says that a job's attempts are limited per actor: such jobs keep their order.
    """
    rows = source("stage_", (*WRITTEN, "ord", "capped"), True)
    return inserted(rows, lambda due: case((rows.c.capped, _behind(rows, due)), else_=due), "capped")


def inserted(
    rows: FromClause, ready: Callable[[ColumnElement[int]], ColumnElement[int]] = lambda due: due, *also: str
) -> ExecutableReturnsRows:
    """Insert these rows, whichever way they come; what `stage` does. `ready`: when a job is, by its due time. `also`: other columns."""
    moment = select(now_ms().label("now_ms")).cte("moment")
    due: ColumnElement[int] = func.coalesce(rows.c.due_at_ms, moment.c.now_ms + rows.c.delay_ms, type_=BigInteger())
    ready_at = case((rows.c.kind == literal_column("'job'"), ready(due)), else_=null())
    written = (*_STAGED, *also)
    chosen = select(*(rows.c[name] for name in written), due, due, ready_at).select_from(rows.join(moment, literal_column("true")))
    columns = [*written, "due_at_ms", "scheduled_at_ms", "ready_at_ms"]
    made = insert(outbox).from_select(columns, chosen)
    # The same id again is the same request, written by a caller who did not learn that the first one arrived.
    once = made.on_conflict_do_nothing(index_elements=["bucket", "routing_key", "intent_id"]).returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(once.cte("staged"))


def _behind(rows: FromClause, due: ColumnElement[int]) -> ColumnElement[int]:
    """A place behind every job of the group that was due no later, and behind those of the same turn that were asked for before."""

    def last(running: bool) -> ColumnElement[int]:
        earlier = outbox.alias("running" if running else "queued")
        mine = and_(
            *(earlier.c[name] == rows.c[name] for name in (*IDENTITY, "command")),
            earlier.c.kind == literal_column("'job'"),
            earlier.c.capped,
        )
        state = earlier.c.running if running else not_(earlier.c.running)
        found = select(earlier.c.ready_at_ms).where(mine, state, earlier.c.scheduled_at_ms <= due)
        newest = found.order_by(earlier.c.ready_at_ms.desc()).limit(literal_column("1")).scalar_subquery()
        return func.coalesce(newest, literal_column("0"), type_=BigInteger()) + literal_column("1")

    return func.greatest(due, last(True), last(False), type_=BigInteger()) + rows.c.ord


def cancel() -> ExecutableReturnsRows:
    """Delete the pending requests that carry one of the given keys. Returns the ids of jobs that run, and were only told to stop.

    A job that an attempt was made of loses its key, and is settled as cancelled: by the next claim, or by whoever runs it.
    """
    rows = source("cancel_", (*IDENTITY, "timer_key"), True)
    mine = and_(*(outbox.c[name] == rows.c[name] for name in (*IDENTITY, "timer_key")))
    key = ("bucket", "routing_key", "intent_id")
    # Locked first: a claim that is under way must be seen by both of what follows, or by neither.
    found = (
        select(*(outbox.c[name] for name in (*key, "kind", "attempts", "running")))
        .select_from(outbox.join(rows, mine))
        .with_for_update(of=outbox)
        .cte("found")
    )
    here = and_(*(outbox.c[name] == found.c[name] for name in key))
    begun = and_(found.c.kind == literal_column("'job'"), or_(found.c.running, found.c.attempts > literal_column("0")))
    gone = delete(outbox).where(here, not_(begun)).returning(outbox.c.bucket).cte("gone")
    moment = now_ms()
    soon = func.least(outbox.c.due_at_ms, moment, type_=BigInteger())
    told = (
        update(outbox)
        .values(
            cancelled_at_ms=moment,
            timer_key=null(),
            waiting=false(),
            due_at_ms=case((outbox.c.running, outbox.c.due_at_ms), else_=soon),
        )
        .where(here, begun)
        .returning(outbox.c.intent_id, outbox.c.running)
        .cte("told")
    )
    return select(told.c.intent_id).where(told.c.running).add_cte(gone)
