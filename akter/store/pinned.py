"""Events that are kept longer than asked for, because somebody follows them and was not told of them yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import JSON, BigInteger, Column, Connection, Integer, Text, and_, cast, func, literal, literal_column, select, true

from akter.store.clock import statement_ms
from akter.tables import IDENTITY, SOURCE, events, subscriptions

MOST = 1000
"""Events of one follower at which counting stops."""

_FOLLOWERS = 10_000
"""Followers that are looked at, of those that are behind."""


class Pinned(NamedTuple):
    """What one follower keeps back: `events`, at most `MOST` of them are counted, up to `through`, the oldest `oldest_ms` old."""

    source: str
    subscription: str
    subscriber_id: str
    events: int
    through: int
    oldest_ms: int


def pinned(connection: Connection, kept: Mapping[str, int], limit: int = _FOLLOWERS) -> list[Pinned]:
    """Who keeps back events, the oldest ones first; `kept`: for how long each type's are kept anyway, in milliseconds."""
    columns = [Column("actor_type", Text()), Column("past_ms", BigInteger())]
    rows = json.dumps([{"actor_type": name, "past_ms": past_ms} for name, past_ms in kept.items()])
    listed: Any = func.json_to_recordset(cast(literal(rows, Text()), JSON))
    given = listed.table_valued(*columns, name="given").render_derived(with_types=True)
    behind: Any = (
        select(*(subscriptions.c[name] for name in (*SOURCE, "subscriber_type", "subscription", "subscriber_id", "delivered")))
        .add_columns(given.c.past_ms)
        .select_from(subscriptions.join(given, subscriptions.c.source_type == given.c.actor_type))
        .where(subscriptions.c.active, subscriptions.c.due_at_ms.is_not(None))
        .limit(_FOLLOWERS)
        .subquery("behind")
    )
    owned = and_(*(events.c[name] == behind.c[of] for name, of in zip(IDENTITY, SOURCE, strict=True)))
    first = (
        select(events.c.sequence, events.c.emitted_at_ms)
        .where(owned, events.c.sequence > behind.c.delivered)
        .order_by(events.c.sequence)
        .limit(MOST)
        .lateral("first")
    )
    old = first.c.emitted_at_ms <= statement_ms() - behind.c.past_ms
    number, through = func.count(type_=Integer()), func.max(first.c.sequence, type_=BigInteger())
    oldest = statement_ms() - func.min(first.c.emitted_at_ms, type_=BigInteger())
    source = func.concat(behind.c.source_type, literal_column("'/'"), behind.c.source_id, type_=Text())
    of = func.concat(behind.c.subscriber_type, literal_column("'.'"), behind.c.subscription, type_=Text())
    who = (*(behind.c[name] for name in SOURCE), behind.c.subscriber_type, behind.c.subscription, behind.c.subscriber_id)
    asked = select(source, of, behind.c.subscriber_id, number, through, oldest).select_from(behind.join(first, true()))
    return [Pinned(*row) for row in connection.execute(asked.where(old).group_by(*who).order_by(oldest.desc()).limit(limit))]
