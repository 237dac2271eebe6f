"""A turn's requests as the lines of its commit: what goes, what is asked for, what happened."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from akter import caller as callers
from akter.call import Call
from akter.caller import Anonymous, Minted, System, User
from akter.capability import Capability, pending
from akter.followers import Followers
from akter.identity import Address
from akter.intent import Emit, Enqueue, Follow, Mint, Send
from akter.store import applied, feed, outbox
from akter.store.flight import Line, Rows
from akter.store.rows import key, parameters
from akter.store.wire import Statements


def lines(statements: Statements, followers: Followers, call: Call, asked: Capability) -> list[Line]:
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
        found.append(_published(statements, followers, call, events))
    found += [_follow(statements, call, request) for _, request in asked.requests if isinstance(request, Follow)]
    return found


def moved(statements: Statements, calls: Sequence[Call]) -> list[Line]:
    """The statement that notes what deliveries to subscribers applied; none for any other commands."""
    rows = [
        {
            **key(call.address),
            "subscription": of.subscription,
            "source_type": of.source.actor_type,
            "source_id": of.source.actor_id,
            "epoch": of.epoch,
            "active": of.kind != "rejected",
            "applied": of.position if of.kind != "rejected" else 0,
        }
        for call in calls
        if (of := call.following) is not None
    ]
    return [Line(statements.get(applied.move), parameters("move_", rows, True))] if rows else []


class Published(Line):
    """A statement that appends events and answers whether somebody follows them."""

    __slots__ = ()


def followed(lines: Sequence[Line], answers: Sequence[Rows]) -> bool:
    """Whether somebody follows what was published."""
    return any(type(line) is Published and answer.rows[0][1] for line, answer in zip(lines, answers, strict=False))


def _published(statements: Statements, followers: Followers, call: Call, events: Sequence[Emit]) -> Line:
    mine, where = key(call.address), call.address
    head = [{**mine, "count": len(events)}]
    rows = [_event(mine, call.id, number, emitted) for number, emitted in enumerate(events, start=1)]
    names = frozenset(row["event"] for row in rows)
    routes = followers.routes(where.actor_type, names)
    values = {
        **parameters("head_", head, True),
        **parameters("event_", rows, True),
        "feed_caller": callers.to_json(System("actor", where)),
        "routes": routes,
        "feed_bucket": where.bucket,
        "feed_routing_key": where.routing_key,
        "feed_tenant_id": where.tenant_id,
        "feed_source_type": where.actor_type,
        "feed_source_id": where.actor_id,
        "feed_events": sorted(names),
    }
    return Published(statements.get(feed.publish, routes is not None), values)


def _follow(statements: Statements, call: Call, asked: Follow) -> Line:
    source = asked.source
    names = json.dumps([asked.subscription, source.actor_type, source.actor_id])
    told = {
        "bucket": source.bucket,
        "routing_key": source.routing_key,
        "source_type": source.actor_type,
        "source_id": source.actor_id,
        "subscription": asked.subscription,
        "events": list(asked.events),
        "since": asked.since,
    }
    row = {
        **key(call.address),
        "subscription": asked.subscription,
        "source_type": source.actor_type,
        "source_id": source.actor_id,
        "active": asked.since is not None,
        "applied": int(asked.since) if asked.since is not None and asked.since.isdecimal() else 0,
        "timer_key": f"$subscription:{hashlib.blake2b(names.encode(), digest_size=16).hexdigest()}",
        "command": f"${'un' if asked.since is None else ''}subscribe",
        "payload": json.dumps(told),
        "caller": callers.to_json(_sender(call, timed=False)),
    }
    return Line(statements.get(applied.change), parameters("change_", [row], True))


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
        "payload_version": request.version,
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
