"""Rows of followers that are not what the code declares now: those that name fewer events, and those whose subscription left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ARRAY, Connection, Text, cast, literal, select

from akter.identity import Address
from akter.store.clock import now_ms
from akter.store.summary import Name
from akter.tables import SOURCE, subscriptions

LEFT_MS = 86_400_000
"""Milliseconds that a row of a subscription which left the code is due before it is ended: a deploy may be taken back."""

PAGE = 200


def narrow(connection: Connection, subscriber_type: str, subscription: str, events: Iterable[str]) -> list[tuple[Address, Name]]:
    """Some that an instance asked for, and that do not name all of the events yet."""
    wanted = cast(literal(sorted(events), ARRAY(Text())), ARRAY(Text()))
    rows = _rows(subscriptions.c.epoch).where(
        subscriptions.c.subscriber_type == subscriber_type,
        subscriptions.c.subscription == subscription,
        subscriptions.c.subscriber_id != "",
        subscriptions.c.active,
        ~subscriptions.c.events.bool_op("@>")(wanted),
    )
    return [(source, name) for source, name, _ in _read(connection, rows)]


def left(connection: Connection, subscriber_type: str, declared: Sequence[str]) -> list[tuple[Address, Name, int]]:
    """Some of a type that are due for a day, and whose subscription its class does not declare any more, with their epochs."""
    rows = _rows(subscriptions.c.epoch).where(
        subscriptions.c.subscriber_type == subscriber_type,
        subscriptions.c.subscription.not_in(declared),
        subscriptions.c.due_at_ms <= now_ms() - literal(LEFT_MS),
    )
    return _read(connection, rows)


def _rows(*more: Any) -> Any:
    return select(*(subscriptions.c[name] for name in (*SOURCE, *Name._fields)), *more).limit(PAGE)


def _read(connection: Connection, rows: Any) -> list[tuple[Address, Name, int]]:
    found = connection.execute(rows).mappings()
    return [(Address(*(row[name] for name in SOURCE)), Name(*(row[name] for name in Name._fields)), int(row["epoch"])) for row in found]
