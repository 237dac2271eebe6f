"""Pruning: receipts that nobody can need any more, and old events, a batch at a time.

A batch looks at the oldest rows of one actor type from the age that the batch before it reached, so that dead index entries are passed
over once, and is a transaction of its own under the lock of the type's coordination row: two sweeps never lock overlapping prefixes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Integer,
    Text,
    and_,
    any_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store import plans
from akter.store.clock import now_ms, statement_ms
from akter.tables import IDENTITY, coordination, events, outbox, receipts

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
    waits = exists().where(outbox.c.intent_id == seen.c.command_id)
    gone = delete(receipts).where(_row(receipts) == any_(_rows(select(seen.c.row).where(~waits)))).returning(receipts.c.bucket).cte("gone")
    return _counted(seen, gone)


def old_events() -> ExecutableReturnsRows:
    """Delete events older than `past_ms`, of each actor all up to the newest of them, so that what is left has no hole."""
    seen = _oldest(events, events.c.emitted_at_ms, *(events.c[name] for name in IDENTITY), events.c.sequence)
    keys = [seen.c[name] for name in IDENTITY]
    through = select(*keys, func.max(seen.c.sequence).label("through")).group_by(*keys).cte("through")
    mine = and_(*(events.c[name] == through.c[name] for name in IDENTITY))
    gone = delete(events).where(mine, events.c.sequence <= through.c.through).returning(events.c.bucket).cte("gone")
    return _counted(seen, gone)


def _oldest(table: Any, age: Any, *columns: Any) -> Any:
    """The first rows of one type in the order of their age."""
    old_enough = age <= statement_ms() - bindparam("past_ms", type_=BigInteger())
    rows = select(_row(table).label("row"), age.label("age"), *columns).where(
        table.c.actor_type == bindparam("actor_type", type_=Text()), age >= bindparam("from_ms", type_=BigInteger()), old_enough
    )
    return rows.order_by(age).limit(bindparam("limit", type_=Integer())).cte("seen")


def _row(table: Any) -> Any:
    """Where a row is. Neither receipts nor events are ever updated, so it stays there as long as a statement can see it."""
    return literal_column(f"{table.name}.ctid")


def _rows(chosen: Any) -> Any:
    return func.array(chosen.scalar_subquery(), type_=ARRAY(Text()))


def _counted(seen: Any, gone: Any) -> ExecutableReturnsRows:
    number = select(func.count(type_=Integer())).select_from(gone).scalar_subquery()
    return select(func.count(type_=Integer()), number, func.max(seen.c.age)).select_from(seen)
