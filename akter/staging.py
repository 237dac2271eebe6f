"""A turn's requests as the lines of its commit: what goes, what is asked for, what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from akter import caller as callers
from akter.call import Call
from akter.caller import Anonymous, Minted, System, User
from akter.capability import Capability, pending
from akter.identity import Address
from akter.intent import Emit, Enqueue, Mint, Send
from akter.store import log, outbox
from akter.store.flight import Line
from akter.store.rows import key, parameters
from akter.store.wire import Statements


def lines(statements: Statements, call: Call, asked: Capability) -> list[Line]:
    """The statements that write a turn's requests; none when it asked for nothing."""
    keys, wanted, events = pending(asked.requests)
    found: list[Line] = []
    if keys:
        rows = [{**key(call.address), "timer_key": name} for name in keys]
        found.append(Line(statements.get(outbox.cancel), parameters("cancel_", rows, True)))
    if wanted:
        senders = {timed: callers.to_json(_sender(call, timed=timed)) for timed in (False, True)}
        mine = key(call.address)
        rows = [
            {**_row(call.address, mine, senders, id, request), "ord": place, "capped": _is_capped(call, request)}
            for place, (id, request) in enumerate(wanted)
        ]
        if asked.mints:
            _prove(call, asked.mints, wanted, rows)
        found.append(Line(statements.get(outbox.stage), parameters("stage_", rows, True)))
    if events:
        mine = key(call.address)
        head = [{**mine, "count": len(events)}]
        rows = [_event(mine, call.id, number, emitted) for number, emitted in enumerate(events, start=1)]
        values = {**parameters("head_", head, True), **parameters("event_", rows, True)}
        found.append(Line(statements.get(log.append), values))
    return found


def _row(sender: Address, mine: dict[str, Any], senders: dict[bool, str], id: str, request: Send | Enqueue) -> dict[str, Any]:
    when = request.when
    job = isinstance(request, Enqueue)
    target = sender if isinstance(request, Enqueue) else request.target
    timer_key = when.key if when.key is None or not job else outbox.JOB_KEY + when.key
    return {
        **mine,
        "intent_id": id,
        "kind": "job" if job else "intent",
        "timer_key": timer_key,
        "target_type": target.actor_type,
        "target_id": target.actor_id,
        "command": request.job if isinstance(request, Enqueue) else request.command,
        "payload": request.payload,
        "payload_version": 0,
        "caller": senders[bool(when.delay_ms or when.due_at_ms is not None)],
        "delay_ms": when.delay_ms,
        "due_at_ms": when.due_at_ms,
    }


def _is_capped(call: Call, request: Send | Enqueue) -> bool:
    return isinstance(request, Enqueue) and call.definition.jobs[request.job].concurrency is not None


def _sender(call: Call, *, timed: bool, mint: Minted | None = None) -> System:
    principal = call.caller
    behalf = principal if isinstance(principal, User | Anonymous) else principal.on_behalf_of
    return System("timer" if timed else "actor", call.address, behalf, mint)


def _prove(call: Call, mints: Sequence[Mint], wanted: Sequence[tuple[str, Send | Enqueue]], rows: Sequence[dict[str, Any]]) -> None:
    """Let the messages that create minted children say so: it is what the children's creating commands ask for."""
    minted = {mint.child: Minted(call.id, mint.ordinal) for mint in mints}
    for (_, request), row in zip(wanted, rows, strict=True):
        if isinstance(request, Send) and request.creates and (mint := minted.get(request.target)) is not None:
            timed = bool(request.when.delay_ms or request.when.due_at_ms is not None)
            row["caller"] = callers.to_json(_sender(call, timed=timed, mint=mint))


def _event(mine: dict[str, Any], command_id: str, number: int, emitted: Emit) -> dict[str, Any]:
    kind = type(emitted.event)
    return {
        **mine,
        "event": kind.event_name,
        "command_id": command_id,
        "value": emitted.payload,
        "payload_version": len(kind.event_migrations),
        "ord": number,
    }
