"""An actor's events: appended in the turn's commit, numbered without gaps under the actor's lock, and read in pages."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    ARRAY,
    CTE,
    JSON,
    BigInteger,
    ColumnElement,
    Integer,
    LargeBinary,
    Text,
    and_,
    bindparam,
    cast,
    func,
    insert,
    literal_column,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.event import Asked, Kept, Page
from akter.identity import Address
from akter.store.clock import now_ms
from akter.store.flight import Line, Row
from akter.store.rows import key, source
from akter.store.wire import Statements
from akter.tables import IDENTITY, events, generations


def appended() -> tuple[CTE, CTE]:
    """Reserve numbers on the locked generation rows and insert the events in their order: what was inserted, and each actor's `base`."""
    heads = source("head_", (*IDENTITY, "count"), True)
    owner = and_(*(generations.c[name] == heads.c[name] for name in IDENTITY))
    reserved = (
        update(generations)
        .values(event_sequence=generations.c.event_sequence + heads.c["count"])
        .where(owner)
        .returning(*(generations.c[name] for name in IDENTITY), (generations.c.event_sequence - heads.c["count"]).label("base"))
        .cte("reserved")
    )
    names = ("event", "command_id", "value", "payload_version")
    rows = source("event_", (*IDENTITY, *names, "ord"), True)
    mine = and_(*(rows.c[name] == reserved.c[name] for name in IDENTITY))
    values = [cast(rows.c[name], JSON) if name == "value" else rows.c[name] for name in names]
    chosen = select(*(rows.c[name] for name in IDENTITY), reserved.c.base + rows.c.ord, *values, now_ms()).select_from(
        rows.join(reserved, mine)
    )
    made = insert(events).from_select([*IDENTITY, "sequence", *names, "emitted_at_ms"], chosen).returning(events.c.bucket)
    return made.cte("appended"), reserved


def read() -> ExecutableReturnsRows:
    """A page of one actor's events, up to `upto`, or to the newest committed one when that is NULL; always at least one row.

    Beside each event stand the head that the page was read under, and the first sequence, of any class, that is left after the cursor.
    """
    rows = source("", IDENTITY, False)
    after: ColumnElement[int] = bindparam("after", type_=BigInteger())
    upto = func.coalesce(bindparam("upto", type_=BigInteger()), generations.c.event_sequence, literal_column("0"), type_=BigInteger())
    owner = and_(*(generations.c[name] == rows.c[name] for name in IDENTITY))
    head = select(*(rows.c[name] for name in IDENTITY), upto.label("head")).select_from(rows.outerjoin(generations, owner)).subquery("head")
    mine = and_(*(events.c[name] == head.c[name] for name in IDENTITY), events.c.sequence > after, events.c.sequence <= head.c.head)
    oldest = select(events.c.sequence).where(mine).order_by(events.c.sequence).limit(1).lateral("oldest")
    value = type_coerce(cast(events.c.value, Text), LargeBinary).label("value")
    page = (
        select(events.c.sequence, events.c.command_id, value, events.c.payload_version, events.c.emitted_at_ms)
        .where(mine, events.c.event == func.any(bindparam("names", type_=ARRAY(Text()))))
        .order_by(events.c.sequence)
        .limit(bindparam("limit", type_=Integer()))
        .lateral("page")
    )
    found = head.outerjoin(oldest, true()).outerjoin(page, true())
    return select(head.c.head, oldest.c.sequence, *page.c).select_from(found).order_by(page.c.sequence)


def reading(statements: Statements, address: Address, wanted: Asked, upto: int | None) -> Line:
    """The line that reads a page."""
    values = {**key(address), "after": wanted.after, "upto": upto, "names": list(wanted.names), "limit": wanted.limit}
    return Line(statements.get(read), values)


def page(rows: Sequence[Row]) -> Page:
    """What `read` answered."""
    head, oldest = rows[0][:2]
    return Page(head, oldest, [Kept(*row[2:]) for row in rows if row[2] is not None])
