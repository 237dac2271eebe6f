"""What is stored of an actor, read over a connection of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Text, select
from sqlalchemy import cast as sql_cast

from akter.actor import Actor, plain_address
from akter.app import Akter
from akter.handle import Handle
from akter.intent import Cancel, Emit, Enqueue, Follow, Request, Send
from akter.job import JobCall
from akter.payload import Event
from akter.store.rows import belongs
from akter.tables import SCHEMA, dead_letters, events, generations, state
from akter.tables import outbox as outbox_table
from akter.tables import receipts as receipts_table

A = TypeVar("A", bound=Actor)


@dataclass(frozen=True, slots=True)
class Receipt:
    """One command's stored outcome; times are epoch milliseconds of the database's clock."""

    command_id: str
    command: str
    payload_hash: str
    caller_key: str
    outcome: Any
    expires_at_ms: int
    started_at_ms: int
    committed_at_ms: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything stored of one actor. `state` is None until a turn changed it; `version` counts those changes."""

    generation: int | None
    created: bool
    event_sequence: int
    state: dict[str, Any] | None
    version: int
    payload_version: int
    receipts: tuple[Receipt, ...]
    events: tuple[dict[str, Any], ...]
    outbox: tuple[dict[str, Any], ...]
    dead_letters: tuple[dict[str, Any], ...]


def actor(kind: type[A], id: str, **fields: Any) -> A:
    """A plain actor with an id, for tests without a database."""
    made = kind(**fields)
    made._enter(plain_address(kind, id), made._turn, {})
    return made


def outbox(actor: Actor) -> Sequence[Send | Enqueue | Cancel | Follow | Event | JobCall]:
    """What a constructed actor asked for so far: messages, jobs as `Kind.job(...)`, events, cancellations."""
    requests = getattr(actor._turn, "requests", None)
    if requests is None:
        raise TypeError("outbox(...) takes an actor that was constructed by hand; use inspect(app, handle) for a stored one")
    return [_plain(request) for request in cast(list[Request], requests)]


def _plain(request: Request) -> Send | Enqueue | Cancel | Follow | Event | JobCall:
    if isinstance(request, Enqueue):
        return JobCall(request.job, request.arguments)
    if isinstance(request, Emit):
        return request.event
    return request


def receipts(app: Akter, handle: Actor, command: str | None = None) -> tuple[Receipt, ...]:
    """The receipts of an actor (of one command), oldest first."""
    found = inspect(app, handle).receipts
    return tuple(receipt for receipt in found if command is None or receipt.command == command)


def inspect(app: Akter, handle: Actor) -> Inspection:
    """Everything stored of an actor, as committed now."""
    address = cast(Handle, handle)._address
    with app.engine.connect().execution_options(schema_translate_map={SCHEMA: app.schema}) as connection:

        def rows(table: Any, *order: Any) -> list[dict[str, Any]]:
            found = connection.execute(select(table).where(belongs(table, address)).order_by(*order))
            return [dict(row) for row in found.mappings()]

        head = rows(generations)
        kept = connection.execute(
            select(sql_cast(state.c.value, Text), state.c.version, state.c.payload_version).where(belongs(state, address))
        ).first()
        return Inspection(
            generation=head[0]["generation"] if head else None,
            created=head[0]["created"] if head else False,
            event_sequence=head[0]["event_sequence"] if head else 0,
            state=json.loads(kept[0]) if kept else None,
            version=kept[1] if kept else 0,
            payload_version=kept[2] if kept else 0,
            receipts=tuple(_receipt(row) for row in rows(receipts_table, receipts_table.c.committed_at_ms, receipts_table.c.command_id)),
            events=tuple(rows(events, events.c.sequence)),
            outbox=tuple(rows(outbox_table, outbox_table.c.intent_id)),
            dead_letters=tuple(rows(dead_letters, dead_letters.c.job_id)),
        )


def _receipt(row: dict[str, Any]) -> Receipt:
    values = {name: row[name] for name in Receipt.__dataclass_fields__}
    values["outcome"] = msgspec.json.decode(row["outcome"])
    return Receipt(**values)
