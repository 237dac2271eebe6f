"""Send messages from outside a turn: by themselves, or in a transaction that the application opened and decides about.

The rows are written by the caller's own connection, so they commit or vanish with the caller's work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any, NamedTuple, ParamSpec, Protocol, cast

from sqlalchemy import Engine
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential, wait_random

from akter import caller as callers
from akter import intent
from akter.caller import Anonymous, System, User
from akter.command import Command
from akter.context import ambient
from akter.errors import CommandConflict, OutcomeUnknown, PayloadInvalid, Unauthorized, Unavailable
from akter.handle import door_of, target_of
from akter.hint import Wakes
from akter.identity import address, is_child_id
from akter.intent import Later, When
from akter.job import Job
from akter.lent import Lent, alone, check, idle, together
from akter.named import MOST, Named
from akter.store import failure, outside
from akter.store.flight import Line, Lost, StatementFailed
from akter.store.outside import Statement
from akter.store.wire import Statements, Wire
from akter.telemetry import Telemetry

P = ParamSpec("P")

OUTSIDE = "$outside"
"""The sender of what no turn sent; it is no actor, and has no row."""

Execute = Callable[[Statement, str], "Sequence[tuple[Any, ...]]"]


class Door(Protocol):
    """What a message from outside needs of its Akter."""

    schema: str
    max_payload_bytes: int
    wakes: Wakes
    telemetry: Telemetry

    def next_id(self, delay_ms: int, due_at_ms: int | None) -> tuple[str, str]:
        """A new intent id, or the one that a `command_id` block gives: as it is stored, and as the caller knows it."""
        ...

    def outside(self) -> None:
        """Raise `InsideTurn` in a handler."""


class Message(NamedTuple):
    """A message from outside: its row in the outbox, its id as the caller knows it, what it asks for, and how its actor is routed."""

    row: dict[str, Any]
    id: str
    command: Command
    arguments: Any
    target_key: int

    @property
    def named(self) -> Named:
        """What a wake-up names."""
        return Named(self.row["bucket"], self.row["routing_key"], self.row["intent_id"], self.row["target_type"], self.target_key)


def message(door: Door, when: When, command: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Message:
    """A message from outside; raises `TypeError`, `PayloadInvalid` and `Unauthorized` for what cannot be sent."""
    if when.key is not None:
        raise PayloadInvalid("a key belongs to the actor that sends: give keys inside a turn, where `self.cancel(key)` can take them back")
    target, found = target_of(command)
    if (made_by := door_of(command)) is not None and made_by is not cast(object, door):
        raise PayloadInvalid(f"{found.where} is on a handle of another Akter: make it with the actor(...) of the one that sends")
    if found.mark.creates and is_child_id(target.actor_id, target.actor_type):
        raise Unauthorized(f"{found.where}: the id {target.actor_id} is that of a minted child, which only the turn that minted it creates")
    payload, arguments = found.bind(args, kwargs)
    if len(payload) > door.max_payload_bytes:
        raise PayloadInvalid(f"the arguments of {found.where}() are {len(payload)} bytes long; the limit is {door.max_payload_bytes}")
    caller = ambient(door).caller
    sender = System("process", None, caller if isinstance(caller, User | Anonymous) else caller.on_behalf_of)
    stored, shown = door.next_id(when.delay_ms, when.due_at_ms)
    where = address("actor", target.tenant_id, target.actor_type, target.actor_id)
    row = {
        "bucket": where.bucket,
        "routing_key": where.routing_key,
        "tenant_id": target.tenant_id,
        "actor_type": OUTSIDE,
        "actor_id": OUTSIDE,
        "intent_id": stored,
        "kind": "intent",
        "timer_key": None,
        "target_type": target.actor_type,
        "target_id": target.actor_id,
        "command": found.name,
        "payload": payload.decode(),
        "payload_version": found.version,
        "caller": callers.to_json(sender),
        "delay_ms": when.delay_ms,
        "due_at_ms": when.due_at_ms,
    }
    return Message(row, shown, found, arguments, target.routing_key)


def write(execute: Execute, messages: Sequence[Message]) -> None:
    """Write messages, each once. Raises `CommandConflict` for an id that was used for something else before."""
    rows = [sent.row for sent in messages]
    while rows:
        missing: list[dict[str, Any]] = []
        for chosen, text in outside.documents(rows):
            if execute(outside.stage, text)[0][0] == len(chosen):
                continue
            # An id of the sender's own was used before: for this very message, it is to be hoped.
            there = {id: kept for id, *kept in execute(outside.present, text)}
            for sent in messages:
                if sent.row["intent_id"] in there:
                    _check_same(sent, *there[sent.row["intent_id"]])
            # What is neither new nor there was delivered in between, and its receipt will answer.
            missing += [row for row in chosen if row["intent_id"] not in there]
        rows = missing


def _check_same(sent: Message, command: str, payload: str, version: int) -> None:
    known = command == sent.command.name or command in sent.command.mark.aliases
    if known and sent.command.hash(sent.command.load(payload.encode(), version)) == sent.command.hash(sent.arguments):
        return
    raise CommandConflict(
        f"the command id {sent.id!r} was used for {command} {'with other arguments' if known else f'and now for {sent.command.name}'}: "
        "use a new id",
        command_id=sent.id,
    )


def write_alone(engine: Engine, statements: Statements, sent: Message, execution: float, delivery: float) -> None:
    """Write a message in a transaction of its own, again and again under its id until `delivery` seconds are over.

    Raises `Unavailable` when it could not be written, and `OutcomeUnknown` when that is not known.
    """
    unknown = False

    def attempt() -> None:
        nonlocal unknown
        with Wire(engine, statements, sent.id) as wire:
            try:
                write(lambda statement, text: wire.transact([Line(statements.get(statement), {"text": text})], execution)[0].rows, [sent])
            except StatementFailed as failed:
                raise failure.of_statement(failed.error, sent.id, statements.schema) from failed.error
            except Lost as lost:
                unknown = True
                raise OutcomeUnknown(command_id=sent.id) from lost

    wait = wait_exponential(multiplier=0.05, max=2.0) + wait_random(0, 0.05)
    try:
        Retrying(retry=retry_if_exception_type(Unavailable), wait=wait, stop=stop_after_delay(delivery), reraise=True)(attempt)
    except Unavailable as problem:
        if unknown and not isinstance(problem, OutcomeUnknown):
            # An earlier try may have committed, and no later one could find out.
            raise OutcomeUnknown(command_id=sent.id) from problem
        raise


class Staging:
    """Messages in a transaction of the application's own. A delay counts from the statement that writes it."""

    def __init__(self, door: Door, lent: Lent, deployment_id: str) -> None:
        self._door, self._lent, self._deployment_id = door, lent, deployment_id
        check(lent, door.schema, deployment_id)

    def send(self, command: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Write a message; it is sent if and when the caller commits. Returns the intent's id."""
        return self.send_later(intent.AT_ONCE, command, args, dict(kwargs))

    def send_many(self, messages: Iterable[tuple[Callable[..., Any], Mapping[str, Any]]]) -> list[str]:
        """Write many messages, all or none: pairs of a command and its keyword arguments. Returns their ids in order."""
        self._door.outside()
        made = [message(self._door, intent.AT_ONCE, command, (), dict(arguments)) for command, arguments in messages]
        self._write(made)
        return [sent.id for sent in made]

    def after(self, delay: timedelta) -> Later:
        """Send something `delay` after the statement."""
        return Later(self, intent.after(delay, None))

    def at(self, moment: datetime) -> Later:
        """Send something at a moment, a datetime with a time zone."""
        return Later(self, intent.at(moment, None))

    def send_later(self, when: When, command: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Write a message; what `send` and `Later.send` share."""
        self._door.outside()
        sent = message(self._door, when, command, args, kwargs)
        self._write([sent])
        return sent.id

    def enqueue_later(self, when: When, job: Job[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Jobs belong to a turn."""
        raise TypeError("a job belongs to its actor: send the actor a message whose handler enqueues it")

    def _write(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        lent, schema = self._lent, self._door.schema
        # The driver's connection may be another one by now.
        check(lent, schema, self._deployment_id)
        driver = lent.driver
        with together(lent) if len(messages) > 1 and alone(driver) else nullcontext():
            write(lambda statement, text: lent.execute(statement, text, schema), messages)
        self._door.telemetry.staged("intent", len(messages))
        if (after_ms := min(_due_in_ms(sent.row) for sent in messages)) > 0:
            # By then it is committed, or the runner finds nothing.
            self._door.wakes(after_ms)
        elif idle(driver):
            self._door.wakes(0, [sent.named for sent in messages] if len(messages) <= MOST else ())
        else:
            lent.after_commit(self._door.wakes)


def _due_in_ms(row: Mapping[str, Any]) -> int:
    if row["delay_ms"]:
        return int(row["delay_ms"])
    return int((row["due_at_ms"] or 0) - time.time() * 1000)
