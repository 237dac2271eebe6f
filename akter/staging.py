"""A turn's requests as the lines of its commit: what goes, what is asked for, what happened."""

from __future__ import annotations

from typing import Any

from akter import caller as callers
from akter.call import Call
from akter.caller import Anonymous, System, User
from akter.capability import pending
from akter.intent import Emit, Enqueue, Request, Send
from akter.store import log, outbox
from akter.store.flight import Line
from akter.store.rows import key, parameters
from akter.store.wire import Statements


def lines(statements: Statements, call: Call, requests: list[tuple[str, Request]]) -> list[Line]:
    """The statements that write a turn's requests; none when it asked for nothing."""
    keys, wanted, events = pending(requests)
    found: list[Line] = []
    if keys:
        rows = [{**key(call.address), "timer_key": name} for name in keys]
        found.append(Line(statements.get(outbox.cancel), parameters("cancel_", rows, True)))
    if wanted:
        rows = [_row(call, id, request) for id, request in wanted]
        found.append(Line(statements.get(outbox.stage), parameters("stage_", rows, True)))
    if events:
        head = [{**key(call.address), "count": len(events)}]
        rows = [_event(call, number, emitted) for number, emitted in enumerate(events, start=1)]
        values = {**parameters("head_", head, True), **parameters("event_", rows, True)}
        found.append(Line(statements.get(log.append), values))
    return found


def _row(call: Call, id: str, request: Send | Enqueue) -> dict[str, Any]:
    when = request.when
    job = isinstance(request, Enqueue)
    target = call.address if isinstance(request, Enqueue) else request.target
    timer_key = when.key if when.key is None or not job else outbox.JOB_KEY + when.key
    return {
        **key(call.address),
        "intent_id": id,
        "kind": "job" if job else "intent",
        "timer_key": timer_key,
        "target_type": target.actor_type,
        "target_id": target.actor_id,
        "command": request.job if isinstance(request, Enqueue) else request.command,
        "payload": request.payload,
        "payload_version": 0,
        "caller": callers.to_json(_sender(call, timed=bool(when.delay_ms or when.due_at_ms is not None))),
        "delay_ms": when.delay_ms,
        "due_at_ms": when.due_at_ms,
    }


def _sender(call: Call, *, timed: bool) -> System:
    principal = call.caller
    behalf = principal if isinstance(principal, User | Anonymous) else principal.on_behalf_of
    return System("timer" if timed else "actor", call.address, behalf)


def _event(call: Call, number: int, emitted: Emit) -> dict[str, Any]:
    kind = type(emitted.event)
    return {
        **key(call.address),
        "event": kind.event_name,
        "command_id": call.id,
        "value": emitted.payload,
        "payload_version": len(kind.event_migrations),
        "ord": number,
    }
