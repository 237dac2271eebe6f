"""The rows of those that follow an actor, as the relay works on them: claimed like the outbox, read, and settled.

To claim a row is to lease it until its new due time; every write about it names that time and the row's epoch, so a stale runner
changes nothing. A row that is caught up is not due at all.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from typing import cast as cast_type

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Integer,
    LargeBinary,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.sql.selectable import ExecutableReturnsRows, Select

from akter.store import probing
from akter.store.clock import now_ms, statement_ms
from akter.store.rows import source
from akter.tables import SOURCE, events, generations, pauses, subscriptions

KEY = (*SOURCE, "subscriber_type", "subscription", "subscriber_id")
CLAIM = (*KEY, "epoch", "claimed_until_ms")
"""What names a claim: the row, its epoch, and the exact end of the lease that the claim wrote."""


class Follower(NamedTuple):
    """One claimed row. `delivered`: everything up to there is done; `gap_through`: a gap that is being told ends there."""

    bucket: int
    routing_key: int
    tenant_id: str
    source_type: str
    source_id: str
    subscriber_type: str
    subscription: str
    subscriber_id: str
    epoch: int
    delivered: int
    attempts: int
    gap_through: int | None
    gap_at_ms: int | None
    claimed_until_ms: int


class Past(NamedTuple):
    """One event to deliver, and what its source looks like; a source without one has a row with only the first two.

    `head`: the newest event; `oldest`: the first one after what was delivered that is left.
    """

    head: int
    oldest: int | None
    sequence: int
    event: str
    command_id: str
    value: bytes
    payload_version: int
    emitted_at_ms: int


def claim() -> ExecutableReturnsRows:
    """Claim due rows of the subscriptions in `served`, a JSON array of types, names and the events that are known here.

    A row that follows an event which is not known here stays due for somebody who knows it. The other parameters are `first` and `last`
    bucket, `limit` rows, `probe` rows to look at and `each` of one bucket and subscription, `lease_ms` and `max_backoff_ms`.
    """
    candidates = _candidates()
    locked = _locked(candidates)
    exponent = func.least(subscriptions.c.attempts, literal_column("31"), type_=Integer())
    doubled: ColumnElement[float] = func.power(literal_column("2.0"), exponent, type_=Float()) * literal_column("1000")
    waited = func.least(doubled, bindparam("max_backoff_ms", type_=BigInteger()), type_=Float())
    wait = func.greatest(bindparam("lease_ms", type_=BigInteger()), cast(waited, BigInteger), type_=BigInteger())
    named: dict[str, Any] = {column.name: column for column in subscriptions.c}
    named["claimed_until_ms"] = subscriptions.c.due_at_ms.label("claimed_until_ms")
    claimed = (
        update(subscriptions)
        .values(attempts=subscriptions.c.attempts + literal_column("1"), due_at_ms=statement_ms() + wait)
        .where(_same(locked))
        .returning(*(named[name] for name in Follower._fields))
        .cte("claimed")
    )
    counted = probing.counted(candidates)
    wanted: Select[Any] = cast_type(Any, select)(*counted.c, *claimed.c)
    return wanted.select_from(counted.outerjoin(claimed, true()))


def _candidates() -> Any:
    """One index range per bucket and subscription that is served, so that the cost follows due rows. No locks."""
    columns = [Column("subscriber_type", Text()), Column("subscription", Text()), Column("events", ARRAY(Text()))]
    listed = func.json_to_recordset(cast(bindparam("served", type_=Text()), JSON))
    given = listed.table_valued(*columns, name="given").render_derived(with_types=True)
    targets = or_(pauses.c.target == literal_column("''"), pauses.c.target == given.c.subscriber_type)
    paused = exists().where(pauses.c.family == literal_column("'subscription'"), targets)
    served = select(*given.c).where(~paused).cte("served")
    buckets = func.generate_series(bindparam("first", type_=Integer()), bindparam("last", type_=Integer()))
    each = buckets.table_valued(Column("bucket", Integer()), name="each").render_derived()
    due = (
        select(*(subscriptions.c[name] for name in KEY), subscriptions.c.due_at_ms)
        .where(
            subscriptions.c.bucket == each.c.bucket,
            subscriptions.c.subscriber_type == served.c.subscriber_type,
            subscriptions.c.subscription == served.c.subscription,
            subscriptions.c.due_at_ms <= statement_ms(),
            subscriptions.c.events.bool_op("<@")(served.c.events),
        )
        .order_by(subscriptions.c.due_at_ms)
        .limit(bindparam("each", type_=Integer()))
        .lateral("due")
    )
    chosen = select(*(due.c[name] for name in KEY), due.c.due_at_ms).select_from(each.join(served, true()).join(due, true()))
    return chosen.order_by(due.c.due_at_ms).limit(bindparam("probe", type_=Integer())).cte("candidates")


def _locked(candidates: Any) -> Any:
    row = (
        select(*(subscriptions.c[name] for name in KEY))
        .where(
            *(subscriptions.c[name] == candidates.c[name] for name in KEY),
            # Said so that the due index is of no use, as in the claim of the outbox.
            subscriptions.c.due_at_ms + literal_column("0") <= statement_ms(),
        )
        .with_for_update(skip_locked=True)
        .lateral("row")
    )
    chosen = select(*(row.c[name] for name in KEY)).select_from(candidates.join(row, true()))
    return chosen.limit(bindparam("limit", type_=Integer())).cte("locked")


def past() -> ExecutableReturnsRows:
    """What one actor's followers have to be told after `after`: up to `limit` events named in `names`, in one snapshot."""
    own = and_(*(generations.c[of] == bindparam(name, type_=generations.c[of].type) for name, of in _OWNER))
    mine = and_(
        *(events.c[of] == bindparam(name, type_=generations.c[of].type) for name, of in _OWNER),
        events.c.sequence > bindparam("after", type_=BigInteger()),
    )
    oldest = select(events.c.sequence).where(mine).order_by(events.c.sequence).limit(1).scalar_subquery()
    value = type_coerce(cast(events.c.value, Text), LargeBinary).label("value")
    page = (
        select(events.c.sequence, events.c.event, events.c.command_id, value, events.c.payload_version, events.c.emitted_at_ms)
        .where(mine, events.c.event == func.any(bindparam("names", type_=ARRAY(Text()))))
        .order_by(events.c.sequence)
        .limit(bindparam("limit", type_=Integer()))
        .subquery("page")
    )
    found = select(generations.c.event_sequence, oldest.label("oldest"), *page.c)
    return found.select_from(generations.outerjoin(page, true())).where(own).order_by(page.c.sequence)


_OWNER = tuple(zip(SOURCE, ("bucket", "routing_key", "tenant_id", "actor_type", "actor_id"), strict=True))


def progress() -> ExecutableReturnsRows:
    """Note how far claimed rows are; the lease goes on. Returns how many were still this runner's."""
    rows = source("follow_", (*CLAIM, "delivered", "gaps"), True)
    values = {
        "delivered": rows.c.delivered,
        "attempts": literal_column("1"),
        "last_error": null(),
        "gaps": subscriptions.c.gaps + rows.c.gaps,
    }
    return _changed(rows, values)


def settle() -> ExecutableReturnsRows:
    """End claims: `delivered` up to there, and due again when there is `more` or more was marked. Returns how many were this runner's."""
    rows = source("settle_", (*CLAIM, "delivered", "more", "gaps"), True)
    again = or_(rows.c.more, subscriptions.c.marked > rows.c.delivered)
    values = {
        "delivered": rows.c.delivered,
        "due_at_ms": case((again, now_ms()), else_=null()),
        "attempts": literal_column("0"),
        "last_error": null(),
        "gaps": subscriptions.c.gaps + rows.c.gaps,
        # A gap is over when everything up to its end is done.
        "gap_through": case((subscriptions.c.gap_through > rows.c.delivered, subscriptions.c.gap_through), else_=null()),
        "gap_at_ms": case((subscriptions.c.gap_through > rows.c.delivered, subscriptions.c.gap_at_ms), else_=null()),
    }
    return _changed(rows, values)


def wait() -> ExecutableReturnsRows:
    """Let rows wait `delay_ms` from now, keeping why; what comes later waits with them. Returns how many were this runner's."""
    rows = source("wait_", (*CLAIM, "delay_ms", "last_error"), True)
    return _changed(rows, {"due_at_ms": now_ms() + rows.c.delay_ms, "last_error": rows.c.last_error})


def release() -> ExecutableReturnsRows:
    """Make claimed rows due at once, for another runner, and take back the attempt that was not made."""
    rows = source("free_", (*CLAIM, "refund"), True)
    return _changed(rows, {"due_at_ms": now_ms(), "attempts": subscriptions.c.attempts - rows.c.refund})


def explain() -> ExecutableReturnsRows:
    """Keep on claimed rows, whose leases go on, why they are not done. Returns how many were still this runner's."""
    rows = source("why_", (*CLAIM, "last_error"), True)
    return _changed(rows, {"last_error": rows.c.last_error})


def pin() -> ExecutableReturnsRows:
    """Keep a gap that was found in its row, so that it is told under the same id however often; when that was, or nothing."""
    rows = source("pin_", (*CLAIM, "through"), True)
    pinned = (
        update(subscriptions)
        .values(gap_through=rows.c.through, gap_at_ms=now_ms())
        .where(_held(rows), or_(subscriptions.c.gap_through.is_(None), subscriptions.c.gap_through <= subscriptions.c.delivered))
        .returning(subscriptions.c.gap_at_ms)
        .cte("pinned")
    )
    return select(pinned.c.gap_at_ms)


def _changed(rows: Any, values: dict[str, Any]) -> ExecutableReturnsRows:
    """Change those that are still this runner's. They are locked in the order of their keys first, as feeds and sweeps lock them."""
    locked = (
        select(*(subscriptions.c[name] for name in KEY))
        .where(_held(rows))
        .order_by(*(subscriptions.c[name] for name in KEY))
        .with_for_update(of=subscriptions)
        .cte("locked")
    )
    change = update(subscriptions).values(**values).where(_same(rows), _same(locked)).returning(subscriptions.c.bucket)
    return select(func.count(type_=Integer())).select_from(change.cte("changed"))


def _same(rows: Any) -> ColumnElement[bool]:
    return and_(*(subscriptions.c[name] == rows.c[name] for name in KEY))


def _held(rows: Any) -> ColumnElement[bool]:
    return and_(_same(rows), subscriptions.c.epoch == rows.c.epoch, subscriptions.c.due_at_ms == rows.c.claimed_until_ms)
