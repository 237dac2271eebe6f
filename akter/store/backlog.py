"""What waits in the outbox and why, for people: lists, counts, and an operator's discard and redirect with an audit row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    tuple_,
    update,
)

from akter.store.clock import now_ms
from akter.store.settle import PARKED_MS
from akter.tables import operator_audit, outbox, pauses

REASONS = ("due", "future", "backoff", "claimed", "key", "parked", "paused", "unknown type")
"""Why a row is not being delivered: due (a runner should take it any moment), future (a timer), backoff (it failed and waits), claimed (a
runner holds it), key (a newer request of its key waits, or its group is full), parked (it can never succeed), paused, unknown type (no
live runner serves its type)."""

_FAMILY = {"intent": "intents", "job": "jobs", "feed": "feed", "control": "control"}
_AT_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """One row, without its payload. Times are epoch milliseconds; `due_in_ms` is negative when it is late."""

    intent_id: str
    kind: str
    reason: str
    tenant: str
    sender: str
    target_type: str
    target_id: str
    command: str
    due_in_ms: int
    attempts: int
    key: str | None
    last_error: str | None
    cursor: tuple[int, str, int, str]


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of one kind, type and reason; `late_ms` is the age of the oldest that is due. Counting stops at 100 000 rows per kind."""

    kind: str
    target_type: str
    reason: str
    rows: int
    late_ms: int


def _reason(served: Sequence[str]) -> ColumnElement[str]:
    family = case(*((outbox.c.kind == kind, literal(name)) for kind, name in _FAMILY.items()), else_=literal("intents"))
    held_back = exists().where(pauses.c.family == family, or_(pauses.c.target == literal(""), pauses.c.target == outbox.c.target_type))
    due = outbox.c.due_at_ms <= now_ms()
    return case(
        (outbox.c.due_at_ms >= PARKED_MS, literal("parked")),
        (and_(due, held_back), literal("paused")),
        (and_(due, outbox.c.target_type.not_in(list(served) or [""])), literal("unknown type")),
        (due, literal("due")),
        (outbox.c.waiting, literal("key")),
        (outbox.c.attempts == 0, literal("future")),
        (outbox.c.last_error.is_not(None), literal("backoff")),
        else_=literal("claimed"),
    )


def waiting(
    connection: Connection,
    served: Sequence[str],
    *,
    limit: int = 100,
    after: tuple[int, str, int, str] | None = None,
    reason: str | None = None,
    target_type: str | None = None,
    intent_id: str | None = None,
) -> list[Waiting]:
    """Rows in the order of the due index, a page at a time; `after` is the `cursor` of the last one."""
    why = _reason(served).label("reason")
    order = (outbox.c.bucket, outbox.c.kind, outbox.c.due_at_ms, outbox.c.intent_id)
    asked = select(outbox, why, (outbox.c.due_at_ms - now_ms()).label("due_in_ms")).order_by(*order).limit(limit)
    if after is not None:
        asked = asked.where(tuple_(*order) > tuple_(*(literal(value) for value in after)))
    if reason is not None:
        asked = asked.where(why == reason)
    if target_type is not None:
        asked = asked.where(outbox.c.target_type == target_type)
    if intent_id is not None:
        asked = asked.where(outbox.c.intent_id == intent_id)
    return [_waiting(row) for row in connection.execute(asked).mappings()]


def _waiting(row: Any) -> Waiting:
    return Waiting(
        row["intent_id"],
        row["kind"],
        row["reason"],
        row["tenant_id"],
        f"{row['actor_type']}/{row['actor_id']}",
        row["target_type"],
        row["target_id"],
        row["command"],
        row["due_in_ms"],
        row["attempts"],
        row["timer_key"],
        row["last_error"],
        (row["bucket"], row["kind"], row["due_at_ms"], row["intent_id"]),
    )


def counts(connection: Connection, served: Sequence[str]) -> list[Count]:
    """How many rows wait, by kind, type and reason."""
    some = select(outbox.c.kind, outbox.c.target_type, _reason(served).label("reason"), outbox.c.due_at_ms).limit(_AT_MOST).subquery()
    late = func.greatest(0, func.max(case((some.c.due_at_ms <= now_ms(), now_ms() - some.c.due_at_ms), else_=0)))
    rows = connection.execute(
        select(some.c.kind, some.c.target_type, some.c.reason, func.count(type_=Integer()), late)
        .group_by(some.c.kind, some.c.target_type, some.c.reason)
        .order_by(some.c.kind, some.c.target_type, some.c.reason)
    )
    return [Count(*row) for row in rows]


def discard(connection: Connection, intent_id: str, operator: str, reason: str) -> bool:
    """Delete a message that will never be wanted, with an audit row in the same transaction; returns whether it was there."""
    gone = (
        connection.execute(delete(outbox).where(outbox.c.intent_id == intent_id, outbox.c.kind == "intent").returning(outbox))
        .mappings()
        .all()
    )
    for row in gone:
        kept = {name: row[name] for name in ("target_type", "target_id", "command", "payload", "attempts", "last_error")}
        _audit(connection, row, operator, "outbox.discard", reason, kept)
    return bool(gone)


def redirect(connection: Connection, intent_id: str, to: dict[str, str], operator: str, reason: str) -> bool:
    """Give a message another `target_type`, `target_id` or `command` and make it due; returns whether it was there."""
    found = (
        connection.execute(select(outbox).where(outbox.c.intent_id == intent_id, outbox.c.kind == "intent").with_for_update())
        .mappings()
        .all()
    )
    for row in found:
        mine = and_(*(outbox.c[name] == row[name] for name in ("bucket", "routing_key", "intent_id")))
        connection.execute(update(outbox).where(mine).values(**to, due_at_ms=now_ms(), attempts=0, last_error=None))
        before = {name: row[name] for name in ("target_type", "target_id", "command")}
        _audit(connection, row, operator, "outbox.redirect", reason, {"from": before, "to": to})
    return bool(found)


def _audit(connection: Connection, row: Any, operator: str, action: str, reason: str, outcome: dict[str, Any]) -> None:
    connection.execute(
        insert(operator_audit).values(
            bucket=row["bucket"],
            at_ms=now_ms(),
            operator=operator,
            action=action,
            tenant_id=row["tenant_id"],
            actor_type=row["actor_type"],
            actor_id=row["actor_id"],
            target=row["intent_id"],
            reason=reason,
            outcome=json.dumps(outcome),
        )
    )
