"""Send messages from outside a turn: by themselves, or in a transaction that the application opened and decides about.

The rows are written by the caller's own connection, so they commit or vanish with the caller's work. akter never commits, rolls back
or retries there, and never wraps an engine around a connection it was lent.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ParamSpec, Protocol

import psycopg
from sqlalchemy import Connection, event, select
from sqlalchemy.dialects.postgresql import psycopg as dialects
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.expression import Select

from akter import caller as callers
from akter import intent
from akter.caller import Anonymous, System, User
from akter.context import ambient
from akter.errors import ConfigurationError, DeploymentMismatch, PayloadInvalid
from akter.handle import target_of
from akter.hint import Wakes
from akter.identity import address
from akter.intent import Later, When
from akter.job import Job
from akter.store import outbox
from akter.store.rows import parameters
from akter.tables import SCHEMA, deployment

P = ParamSpec("P")

OUTSIDE = "$outside"
"""The sender of what no turn sent; it is no actor, and has no row."""

_DIALECT = dialects.dialect()  # type: ignore[no-untyped-call]


class Door(Protocol):
    """What a message from outside needs of its Akter."""

    schema: str
    max_payload_bytes: int

    def next_id(self, delay_ms: int, due_at_ms: int | None) -> tuple[str, str]:
        """A new intent id, or the one that a `command_id` block gives: as it is stored, and as the caller knows it."""
        ...


def row(door: Door, when: When, command: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The outbox row of a message from outside, and its id as the caller knows it.

    Raises `TypeError` and `PayloadInvalid` for what cannot be sent.
    """
    if when.key is not None:
        raise PayloadInvalid("a key belongs to the actor that sends: give keys inside a turn, where `self.cancel(key)` can take them back")
    target, found = target_of(command)
    payload, _ = found.bind(args, kwargs)
    if len(payload) > door.max_payload_bytes:
        raise PayloadInvalid(f"the arguments of {found.where}() are {len(payload)} bytes long; the limit is {door.max_payload_bytes}")
    caller = ambient(door).caller
    sender = System("process", None, caller if isinstance(caller, User | Anonymous) else caller.on_behalf_of)
    stored, shown = door.next_id(when.delay_ms, when.due_at_ms)
    where = address("actor", target.tenant_id, target.actor_type, target.actor_id)
    written = {
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
        "payload_version": 0,
        "caller": callers.to_json(sender),
        "delay_ms": when.delay_ms,
        "due_at_ms": when.due_at_ms,
    }
    return written, shown


class Staging:
    """Messages in a transaction of the application's own. A delay counts from the statement that writes it."""

    def __init__(self, door: Door, lent: Lent) -> None:
        self._door, self._lent = door, lent

    def send(self, command: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Write a message; it is sent if and when the caller commits. Returns the intent's id."""
        return self.send_later(intent.AT_ONCE, command, args, dict(kwargs))

    def send_many(self, messages: Sequence[tuple[Callable[..., Any], Mapping[str, Any]]]) -> list[str]:
        """Write many messages in one statement: pairs of a command and its keyword arguments. Returns their ids in order."""
        made = [row(self._door, intent.AT_ONCE, command, (), dict(arguments)) for command, arguments in messages]
        if made:
            self._lent.write([written for written, _ in made])
        return [shown for _, shown in made]

    def after(self, delay: timedelta) -> Later:
        """Send something `delay` after the statement."""
        return Later(self, intent.after(delay, None))

    def at(self, moment: datetime) -> Later:
        """Send something at a moment, a datetime with a time zone."""
        return Later(self, intent.at(moment, None))

    def send_later(self, when: When, command: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Write a message; what `send` and `Later.send` share."""
        written, shown = row(self._door, when, command, args, kwargs)
        self._lent.write([written])
        return shown

    def enqueue_later(self, when: When, job: Job[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Jobs belong to a turn."""
        raise TypeError("a job belongs to its actor: send the actor a message whose handler enqueues it")


class Lent:
    """A connection that the application lent: what is executed on it, and how it says that it committed."""

    def __init__(self, given: Any, schema: str, deployment_id: str, wakes: Wakes) -> None:
        self._schema, self._wakes = schema, wakes
        given = given() if isinstance(given, scoped_session) else given
        self._connection = given.connection() if isinstance(given, Session) else given
        self._execute = self._way()
        driver = self._driver()
        if driver not in _known or _known[driver] != deployment_id:
            self._check(deployment_id)
            _known[driver] = deployment_id

    def _way(self) -> Callable[[Select[Any], dict[str, Any]], list[Any]]:
        connection = self._connection
        if isinstance(connection, Connection):
            return self._through_sqlalchemy
        if isinstance(connection, psycopg.Connection) or _is_django(connection):
            return self._through_cursor
        raise ConfigurationError(
            f"within(...) takes a SQLAlchemy Connection or Session, a psycopg connection or Django's connection, "
            f"not {type(connection).__name__}"
        )

    def _driver(self) -> Any:
        if isinstance(self._connection, Connection):
            return self._connection.connection.driver_connection
        if isinstance(self._connection, psycopg.Connection):
            return self._connection
        self._connection.ensure_connection()
        return self._connection.connection

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Write messages through the lent connection."""
        self._execute(outbox.stage(), parameters("stage_", rows, True))
        self._wake_after_commit()

    def _check(self, deployment_id: str) -> None:
        try:
            found = self._execute(select(deployment.c.deployment_id), {})
        except Exception as problem:
            raise DeploymentMismatch(f"the database of the given connection has no akter schema {self._schema!r}: {problem}") from problem
        if not found or found[0][0] != deployment_id:
            raise DeploymentMismatch(
                "the given connection belongs to another database than this Akter: its messages would never be delivered"
            )

    def _through_sqlalchemy(self, statement: Select[Any], values: dict[str, Any]) -> list[Any]:
        options = {"schema_translate_map": {SCHEMA: self._schema}}
        return list(self._connection.execute(statement, values, execution_options=options))

    def _through_cursor(self, statement: Select[Any], values: dict[str, Any]) -> list[Any]:
        translated = {SCHEMA: self._schema}
        compiled = statement.compile(dialect=_DIALECT, schema_translate_map=translated, compile_kwargs={}, render_schema_translate=True)
        cursors: Any = self._connection
        with cursors.cursor() as cursor:
            cursor.execute(str(compiled), {**compiled.params, **values})
            return list(cursor.fetchall())

    def _wake_after_commit(self) -> None:
        if isinstance(self._connection, Connection):
            with _lock:
                if self._connection in _waking:
                    return
                _waking.add(self._connection)
            event.listen(self._connection, "commit", self._committing, once=True)
        elif _is_django(self._connection):
            self._connection.on_commit(self._wakes)

    def _committing(self, connection: Connection) -> None:
        with _lock:
            _waking.discard(connection)
        self._wakes.soon()


_known: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_waking: weakref.WeakSet[Connection] = weakref.WeakSet()
_lock = threading.Lock()


def _is_django(connection: Any) -> bool:
    return hasattr(connection, "in_atomic_block") and hasattr(connection, "on_commit") and getattr(connection, "vendor", "") == "postgresql"
