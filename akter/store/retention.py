"""Pruning: receipts that nobody can need any more, and old events, a batch at a time.

A batch looks at the oldest rows of one actor type from the age that the batch before it reached, so that dead index entries are passed
over once, and is a transaction of its own under the lock of the type's coordination row: two sweeps never lock overlapping prefixes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    Connection,
    Integer,
    Text,
    and_,
    any_,
    bindparam,
    collate,
    delete,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store import plans
from akter.store.clock import now_ms, statement_ms
from akter.store.feed import FEED_KEY
from akter.store.follower import KEY as FOLLOWER
from akter.tables import IDENTITY, SOURCE, coordination, events, outbox, receipts, subscriptions

HOLD_MS = 7 * 86_400_000
"""Milliseconds that events are kept longer for those that follow and were not told of them yet."""

_PATIENCE_MS = 10_000


class Batch(NamedTuple):
    """What one batch looked at, how much of it was pruned, and the age it reached, in epoch milliseconds."""

    seen: int
    pruned: int
    reached_ms: int


def take(connection: Connection, resource: str, every_ms: int) -> bool:
    """Take a piece of maintenance, unless somebody took it less than `every_ms` ago; returns whether it is the caller's."""
    fresh = insert(coordination).values(resource=resource, taken_at_ms=now_ms())
    lately = fresh.excluded.taken_at_ms - literal(every_ms)
    taken = fresh.on_conflict_do_update(
        index_elements=["resource"], set_={"taken_at_ms": fresh.excluded.taken_at_ms}, where=coordination.c.taken_at_ms <= lately
    )
    return connection.execute(taken.returning(coordination.c.resource)).first() is not None


def begin(connection: Connection, resource: str) -> None:
    """Begin a batch: wait for another one of the same resource to end. The resource was taken before."""
    connection.execute(select(func.set_config("statement_timeout", str(_PATIENCE_MS), literal_column("true"))))
    connection.execute(plans.by_index_order())
    connection.execute(select(coordination.c.resource).where(coordination.c.resource == resource).with_for_update())


def prune(connection: Connection, statement: ExecutableReturnsRows, **values: Any) -> Batch:
    """Run one of the statements below: `actor_type`, `from_ms`, `past_ms` and `limit` say which rows it looks at."""
    row = connection.execute(statement, values).one()
    return Batch(row[0], row[1], values["from_ms"] if row[2] is None else row[2])


def old_receipts() -> ExecutableReturnsRows:
    """Delete receipts whose ids expired `past_ms` ago, except those of messages that still wait: their delivery must find its receipt."""
    seen = _oldest(receipts, receipts.c.expires_at_ms, receipts.c.command_id)
    waits = exists().where(outbox.c.intent_id == seen.c.command_id, outbox.c.ready_at_ms.is_(None))
    gone = delete(receipts).where(_row(receipts) == any_(_rows(select(seen.c.row).where(~waits)))).returning(receipts.c.bucket).cte("gone")
    return _counted(seen, gone)


def old_events() -> ExecutableReturnsRows:
    """Delete events older than `past_ms`, of each actor all up to the newest of them, so that what is left has no hole.

    What a follower was not told yet stays `HOLD_MS` longer. Those that were told all that concerns them pass over the rest.
    """
    seen = _oldest(events, events.c.emitted_at_ms, *(events.c[name] for name in IDENTITY), events.c.sequence)
    keys = [seen.c[name] for name in IDENTITY]
    forced = seen.c.age <= statement_ms() - bindparam("past_ms", type_=BigInteger()) - literal_column(str(HOLD_MS))
    old = (
        select(*keys, func.max(seen.c.sequence).label("through"), func.max(seen.c.sequence).filter(forced).label("forced"))
        .group_by(*keys)
        .cte("old")
    )
    waiting = exists().where(_own(outbox, old), outbox.c.timer_key == literal_column(f"'{FEED_KEY}'"))
    behind = or_(subscriptions.c.due_at_ms.is_not(None), waiting)
    told = select(func.min(subscriptions.c.delivered)).where(_follows(old), subscriptions.c.active, behind).scalar_subquery()
    # A minimum of nothing is NULL, which LEAST and GREATEST pass over.
    upto = func.greatest(old.c.forced, func.least(old.c.through, told), type_=BigInteger())
    through = select(*(old.c[name] for name in IDENTITY), upto.label("through")).cte("through")
    gone = delete(events).where(_own(events, through), events.c.sequence <= through.c.through).returning(events.c.bucket).cte("gone")
    return _counted(seen, gone, _passed(through))


def _passed(through: Any) -> CTE:
    """Move on those that were told all that concerns them. Their rows are locked in the order in which feeds lock them."""
    caught_up = and_(subscriptions.c.active, subscriptions.c.due_at_ms.is_(None), subscriptions.c.delivered < through.c.through)
    unfed = ~exists().where(_own(outbox, through), outbox.c.timer_key == literal_column(f"'{FEED_KEY}'"))
    locked = (
        select(*(subscriptions.c[name] for name in FOLLOWER), through.c.through)
        .select_from(through.join(subscriptions, _follows(through)))
        .where(caught_up, unfed)
        .order_by(*(subscriptions.c[name] for name in FOLLOWER))
        .with_for_update(of=subscriptions)
        .cte("locked")
    )
    same = and_(*(subscriptions.c[name] == locked.c[name] for name in FOLLOWER))
    return update(subscriptions).values(delivered=locked.c.through).where(same).cte("passed")


def _own(table: Any, rows: Any) -> Any:
    return and_(*(table.c[name] == rows.c[name] for name in IDENTITY))


def _follows(rows: Any) -> Any:
    return and_(*(subscriptions.c[name] == rows.c[of] for name, of in zip(SOURCE, IDENTITY, strict=True)))


def _oldest(table: Any, age: Any, *columns: Any) -> Any:
    """The first rows of one type in the order of their age; in the collation of the indexes by age, which no turn uses."""
    old_enough = age <= statement_ms() - bindparam("past_ms", type_=BigInteger())
    mine = collate(table.c.actor_type, "C") == bindparam("actor_type", type_=Text())
    rows = select(_row(table).label("row"), age.label("age"), *columns).where(
        mine, age >= bindparam("from_ms", type_=BigInteger()), old_enough
    )
    return rows.order_by(age).limit(bindparam("limit", type_=Integer())).cte("seen")


def _row(table: Any) -> Any:
    """Where a row is. Neither receipts nor events are ever updated, so it stays there as long as a statement can see it."""
    return literal_column(f"{table.name}.ctid")


def _rows(chosen: Any) -> Any:
    return func.array(chosen.scalar_subquery(), type_=ARRAY(Text()))


def _counted(seen: Any, gone: Any, *beside: CTE) -> ExecutableReturnsRows:
    number = select(func.count(type_=Integer())).select_from(gone).scalar_subquery()
    return select(func.count(type_=Integer()), number, func.max(seen.c.age)).select_from(seen).add_cte(*beside)
