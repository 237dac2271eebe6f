"""One actor's whole life as it is stored: what it is, what happened to it, what it asked for and what waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, and_, cast, select

from akter.identity import Address
from akter.store.clock import now_ms
from akter.store.rows import belongs
from akter.tables import (
    IDENTITY,
    SOURCE,
    dead_letters,
    events,
    generations,
    operator_audit,
    outbox,
    placements,
    receipts,
    state,
    subscription_cursors,
    subscriptions,
)

Row = dict[str, Any]

_WAITS = (
    "intent_id",
    "kind",
    "actor_type",
    "actor_id",
    "timer_key",
    "target_type",
    "target_id",
    "command",
    "payload",
    "attempts",
    "last_error",
    "due_at_ms",
    "running",
)


@dataclass(frozen=True, slots=True)
class Life:
    """What is stored of one actor at one moment; times are epoch milliseconds of the database's clock, `now_ms` among them.

    `state` is the text as it is stored, None where no turn wrote one. `commands` and `events` are the newest, oldest first. `asked` is
    what it asked for and `waiting` what others asked of it, as far as that is not done. `operations` is what operators did to it.
    `followers` are those that follow it, with the event up to which they were told; `follows` is whom it follows, likewise.
    """

    address: Address
    now_ms: int
    generation: int
    created: bool
    event_sequence: int
    state: str | None
    version: int
    payload_version: int
    commands: Sequence[Row]
    events: Sequence[Row]
    asked: Sequence[Row]
    waiting: Sequence[Row]
    dead_letters: Sequence[Row]
    operations: Sequence[Row]
    followers: Sequence[Row]
    follows: Sequence[Row]


def placement(connection: Connection, actor_type: str) -> str | None:
    """How a type is routed, None for one that was never stored here."""
    return connection.execute(select(placements.c.placement).where(placements.c.actor_type == actor_type)).scalar_one_or_none()


def known_types(connection: Connection) -> list[str]:
    """The types that were ever stored here."""
    return list(connection.execute(select(placements.c.actor_type).order_by(placements.c.actor_type)).scalars())


def read(connection: Connection, address: Address, limit: int) -> Life | None:
    """Read it, with `limit` rows of each kind at most; None for an actor that no command ever came to and nothing waits for."""
    head = connection.execute(
        select(generations.c.generation, generations.c.created, generations.c.event_sequence).where(belongs(generations, address))
    ).first()
    kept = connection.execute(
        select(cast(state.c.value, Text), state.c.version, state.c.payload_version).where(belongs(state, address))
    ).first()
    to_it = and_(
        outbox.c.tenant_id == address.tenant_id, outbox.c.target_type == address.actor_type, outbox.c.target_id == address.actor_id
    )
    waiting = _rows(connection, outbox, _WAITS, and_(to_it, ~belongs(outbox, address)), (outbox.c.due_at_ms, outbox.c.intent_id), limit)
    if head is None and not waiting:
        return None
    ran = ("command_id", "command", "caller_key", "outcome", "started_at_ms", "committed_at_ms", "expires_at_ms")
    happened = ("sequence", "event", "command_id", "value", "emitted_at_ms")
    gave_up = ("job_id", "job", "payload", "cause", "attempts", "ambiguous", "dead_at_ms")
    generation, created, event_sequence = head or (0, False, 0)
    value, version, payload_version = kept or (None, 0, 0)
    return Life(
        address=address,
        now_ms=connection.execute(select(now_ms())).scalar_one(),
        generation=generation,
        created=created,
        event_sequence=event_sequence,
        state=value,
        version=version,
        payload_version=payload_version,
        commands=_newest(connection, receipts, ran, address, (receipts.c.committed_at_ms.desc(), receipts.c.command_id.desc()), limit),
        events=_newest(connection, events, happened, address, (events.c.sequence.desc(),), limit),
        asked=_rows(connection, outbox, _WAITS, belongs(outbox, address), (outbox.c.due_at_ms, outbox.c.intent_id), limit),
        waiting=waiting,
        dead_letters=_newest(connection, dead_letters, gave_up, address, (dead_letters.c.dead_at_ms.desc(),), limit),
        operations=_operations(connection, address, limit),
        followers=_followers(connection, address, limit),
        follows=_rows(
            connection,
            subscription_cursors,
            ("subscription", "source_type", "source_id", "active", "applied"),
            belongs(subscription_cursors, address),
            (subscription_cursors.c.subscription, subscription_cursors.c.source_type, subscription_cursors.c.source_id),
            limit,
        ),
    )


def _operations(connection: Connection, address: Address, limit: int) -> list[Row]:
    names = ("at_ms", "operator", "action", "target", "reason", "outcome")
    mine = and_(*(operator_audit.c[name] == getattr(address, name) for name in IDENTITY if name != "routing_key"))
    return _rows(connection, operator_audit, names, mine, (operator_audit.c.at_ms.desc(), operator_audit.c.audit_id.desc()), limit)[::-1]


def _followers(connection: Connection, address: Address, limit: int) -> list[Row]:
    names = ("subscriber_type", "subscription", "subscriber_id", "active", "delivered", "attempts", "last_error", "gaps")
    key = (*SOURCE, "subscriber_type", "subscription", "subscriber_id")
    mine = belongs(subscriptions, address, SOURCE)
    return _rows(connection, subscriptions, names, mine, [subscriptions.c[name] for name in key], limit)


def _newest(connection: Connection, table: Any, names: Sequence[str], address: Address, order: Sequence[Any], limit: int) -> list[Row]:
    return _rows(connection, table, names, belongs(table, address), order, limit)[::-1]


def _rows(connection: Connection, table: Any, names: Sequence[str], only: Any, order: Sequence[Any], limit: int) -> list[Row]:
    found = connection.execute(select(*(table.c[name] for name in names)).where(only).order_by(*order).limit(limit))
    return [dict(row) for row in found.mappings()]
