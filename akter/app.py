"""`Akter`: the front door. It knows the database and the actor classes, and hands out handles."""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from akter import intent, registry, within
from akter.actor import Actor, locate
from akter.call import Call
from akter.caller import Caller, Policy
from akter.capability import poison_running
from akter.context import GivenId, ambient, inside, surround, warn_in_event_loop
from akter.delivery import Delivery
from akter.engine import POOL_TIMEOUT, engine_for, seats
from akter.errors import (
    CommandExpired,
    InsideTurn,
    InvalidCommandId,
    PayloadInvalid,
)
from akter.fault import Faults
from akter.followers import Followers
from akter.handle import Handle, Member
from akter.hint import Wakes
from akter.identity import CommandId, check_admissible, check_name, is_minted, new_id, own_id
from akter.joining import Joining
from akter.lent import deployment_of, lent
from akter.limits import Limits, configured_ms, window_ms
from akter.looking import Looking
from akter.member import Surroundings
from akter.payload import Event
from akter.planting import Planting
from akter.query import Queries
from akter.store.wire import Statements
from akter.tables import SCHEMA
from akter.telemetry import Telemetry
from akter.within import Staging

A = TypeVar("A", bound=Actor)
E = TypeVar("E", bound=Event)
P = ParamSpec("P")


class Akter(Looking):
    """The actors of one database. Constructing it starts nothing and touches no network; the first call checks the schema.

    `target` is a URL, `embedded:PATH`, or an `Engine` of your own; without one, `AKTER_DATABASE_URL`. `actors` are the classes it may
    run. `schema` is the PostgreSQL schema of akter's tables. `execution`, `delivery` and `lock` are seconds: one run of a handler, one
    call with its retries, one wait for a busy actor. `retry_window` is how long a minted command id may be retried; all processes of
    one database use the same. `max_payload_bytes` limits a command's arguments and its result, each. `hint`: tell the runners of other
    processes at once when something is due. `authorize` is asked for every call, beside each actor's own `access`. `keep_receipts` and
    `keep_events`: how long the runners' sweeps leave them, unless an actor class says otherwise; see `docs/retention.md`.
    """

    def __init__(
        self,
        target: str | URL | Engine | None = None,
        *,
        actors: Iterable[type[Actor]],
        schema: str = SCHEMA,
        execution: float = 10.0,
        delivery: float = 30.0,
        lock: float = 2.0,
        retry_window: timedelta = timedelta(days=1),
        max_payload_bytes: int = 1_048_576,
        hint: bool = True,
        authorize: Policy | None = None,
        keep_receipts: timedelta = timedelta(days=7),
        keep_events: timedelta = timedelta(days=30),
    ) -> None:
        self.schema, self.authorize = schema, authorize
        self.actors = registry.register(actors)
        self.limits = Limits(
            execution=execution,
            delivery=delivery,
            lock=lock,
            max_payload_bytes=max_payload_bytes,
            retry_window_ms=window_ms(retry_window),
            keep_receipts_ms=configured_ms("keep_receipts", keep_receipts),
            keep_events_ms=configured_ms("keep_events", keep_events),
        )
        # A pool of the application's own waits as long as the application said.
        self.engine, self._made_engine = engine_for(target, pool_timeout=min(POOL_TIMEOUT, delivery))
        self.max_payload_bytes = max_payload_bytes
        self.faults, self.telemetry, self._hint = Faults(), Telemetry(), hint
        self._begin()
        _alive.add(self)

    def _begin(self) -> None:
        self._statements = Statements(self.schema)
        followers, placed, window_ms = Followers(self.actors), registry.placed(self.actors), self.limits.retry_window_ms
        self._joining = Joining(self.engine, self._statements, window_ms, placed, followers, lambda: registry.readable(self.actors))
        self.wakes = Wakes(self.engine, self._statements, self._hint)
        limits, statements = self.limits, self._statements
        planting = Planting(limits.retry_window_ms)
        self.surroundings = Surroundings(
            statements,
            self.faults,
            limits.lock,
            limits.retry_window_ms,
            self.max_payload_bytes,
            self.wakes,
            self.wakes.cancelled,
            self.telemetry,
            planting,
            followers,
            self,
        )
        self._turns = Delivery(self.engine, self.surroundings, self.limits, seats(self.engine))
        self._queries = Queries(self.engine, self._statements, self.limits.execution)

    def actor(self, kind: type[A], id: str | None = None) -> A:
        """A handle of the actor `kind`/`id`, or of a singleton. It writes nothing; its commands are turns in the calling thread.

        Raises `UnknownActor` for a class that is not registered and `PayloadInvalid` for an id that cannot be stored.
        """
        around = ambient(self)
        definition = registry.known(self.actors, kind)
        return cast(A, Handle(definition, locate(kind, around.tenant, id), self, around.caller))

    def new(self, kind: type[A]) -> A:
        """A handle of an actor with a new random id, which sorts by time; raises what `actor` raises for the class."""
        registry.known(self.actors, kind, "new(...) takes an Actor subclass")
        return self.actor(kind, new_id())

    def command_id(self, id: str | CommandId, *, scope: str | None = None) -> AbstractContextManager[None]:
        """Give the one command in this block an id, so that repeating it later returns the first answer instead of running again.

        `id` is text of 1 to 255 characters, such as a request's Idempotency-Key, or an id from `mint_command_id`. A text is the caller's
        own: it is kept apart by `scope`, the caller unless given, and lives as long as its receipt. The text of a minted id is refused,
        because it would be another id: `CommandId.parse` brings it back.
        """
        if inside() is not None:
            raise InsideTurn("a command_id(...) block belongs outside turns: what a turn sends has ids of its own")
        if isinstance(id, str):
            own_id("", id)
            if is_minted(id):
                raise InvalidCommandId("this is the text of a minted id: give it back as CommandId.parse(text)", command_id=id)
        elif not isinstance(cast(object, id), CommandId):
            raise InvalidCommandId("a command id is text, or a CommandId from mint_command_id()")
        else:
            # One that was put together by hand may be none that a clock gave out.
            CommandId.parse(str(id))
        return surround(self, given=GivenId(id, scope))

    def acting_as(self, caller: Caller) -> AbstractContextManager[None]:
        """Act as a caller in this block; handles keep the caller they were made under."""
        return surround(self, caller=caller)

    def tenant(self, tenant: str) -> AbstractContextManager[None]:
        """Address a tenant's actors in this block; handles keep the tenant they were made under."""
        return surround(self, tenant=check_name(tenant, "a tenant", 128))

    def mint_command_id(self) -> CommandId:
        """A new command id, to be saved before the first try; raises `Unavailable` when the database has never been reached."""
        return CommandId.mint(self._joining.now_ms(), self.limits.retry_window_ms)

    def send(self, command: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a message to `app.actor(Kind, id).command`, durably, in a transaction of its own; returns the intent's id.

        A runner delivers it. `outcome` reads what became of it. Raises `Unavailable` when it could not be written, `OutcomeUnknown` when
        that is not known; under a `command_id` it may simply be sent again.
        """
        self.outside()
        self._joining.join()
        sent = within.message(self, intent.AT_ONCE, command, args, dict(kwargs))
        within.write_alone(self.engine, self._statements, sent, self.limits.execution, self.limits.delivery)
        self.wakes(0, [sent.named])
        self.telemetry.staged("intent")
        return sent.id

    def within(self, connection: Any) -> Staging:
        """Send messages in a transaction of your own: `app.within(connection).send(...)` commits or vanishes with it.

        `connection` is a SQLAlchemy Connection or Session, a psycopg connection, or Django's connection. Raises `DeploymentMismatch` for
        one of another database, and leaves its transaction as it was.
        """
        self.outside()
        return Staging(self, lent(connection), self._joining.join().id)

    def reached_by(self, connection: Any) -> bool:
        """Whether a connection of the application's own leads to this Akter's database; never, before the first call."""
        joined = self._joining.joined
        return joined is not None and deployment_of(lent(connection), self.schema) == joined.id

    def next_id(self, delay_ms: int, due_at_ms: int | None) -> tuple[str, str]:
        """The id of a message from outside, as it is stored and as its sender knows it; what `send` and `within` use."""
        around = ambient(self)
        if around.given is not None:
            given = around.given.take()
            if isinstance(given.id, str):
                return self._own(around.caller, given.id, given.scope), given.id
        now = self._joining.now_ms()
        due = max(now, due_at_ms if due_at_ms is not None else now + delay_ms)
        if around.given is not None:
            check_admissible(id := cast(CommandId, around.given.id), self.limits.retry_window_ms, now)
            if due >= id.expires_at_ms:
                raise CommandExpired("this command id expires before the message is due: mint one when you send it", command_id=str(id))
            return str(id), str(id)
        minted = str(CommandId(now, due + self.limits.retry_window_ms, uuid.uuid4()))
        return minted, minted

    def outside(self) -> None:
        """Raise `InsideTurn` in a handler, where messages are part of the turn."""
        if inside() is not None:
            problem = InsideTurn("inside a turn, messages are sent with self.send(...), and commit with the turn")
            poison_running(problem)
            raise problem

    def migrate(self, revision: str = "head") -> None:
        """Create or upgrade akter's schema, as `akter migrate` does."""
        from akter import schema

        schema.upgrade(self.engine, revision, schema=self.schema)

    def verify(self) -> None:
        """Check now, as the first call would, that this process's schema, settings and code fit the database; raises `SchemaError`."""
        self._joining.join()

    def clock_offset_ms(self) -> int:
        """Milliseconds that a test moved the database's clock by; zero in earnest."""
        return self._joining.join().clock_offset_ms

    def clock_moved(self, by_ms: int) -> None:
        """Carry on the clock's estimate after a test moved the database's clock."""
        self._joining.moved(by_ms)

    def close(self) -> None:
        """Close the connections of an engine that akter made; an engine of yours is left alone.

        A call after this one opens connections again. An embedded server ends with the last process that uses it, not before.
        """
        self.wakes.close()
        if self._made_engine:
            self.engine.dispose()

    def __enter__(self) -> Akter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, member: Member, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a command or query of a handle; what calling it does."""
        handle, command = member.handle, member.command
        if (turn := inside()) is not None:
            problem = InsideTurn(
                f"{command.where} was called inside a turn or query: use self.send(...) to reach another actor after the commit, "
                "and a plain method call for the actor itself"
            )
            poison_running(problem)
            refuse = getattr(turn, "refuse", None)
            if refuse is not None:
                refuse(problem)
            raise problem
        warn_in_event_loop(command.where)
        payload, arguments = command.bind(args, kwargs)
        if len(payload) > self.max_payload_bytes:
            raise PayloadInvalid(f"the arguments of {command.where}() are {len(payload)} bytes long; the limit is {self.max_payload_bytes}")
        around = ambient(self)
        caller = handle._caller or around.caller
        self._authorize(member, caller)
        self._joining.join()
        try:
            if command.mark.kind == "query":
                result = self._queries.run(handle._definition, command, handle._address, arguments)
            else:
                result = self._turns.run(self._call(member, arguments, caller, around.given))
        except Exception:
            # Whoever lost the right meanwhile is not told how it ended either.
            self._authorize(member, caller, ran=True)
            raise
        self._authorize(member, caller, ran=True)
        return result

    def _call(self, member: Member, arguments: Any, caller: Caller, given: GivenId | None) -> Call:
        minted: CommandId | None = None
        if given is None:
            minted = self.mint_command_id()
        elif isinstance(given.take().id, CommandId):
            minted = cast(CommandId, given.id)
            check_admissible(minted, self.limits.retry_window_ms, minted.issued_at_ms)
        id = str(minted) if minted is not None or given is None else self._own(caller, cast(str, given.id), given.scope)
        command = member.command
        return Call(
            definition=member.handle._definition,
            command=command,
            address=member.handle._address,
            id=id,
            minted=minted,
            expires_at_ms=minted.expires_at_ms if minted is not None else None,
            arguments=arguments,
            payload_hash=command.hash(arguments),
            caller=caller,
        )


_alive: weakref.WeakSet[Akter] = weakref.WeakSet()


def reaching(connection: Any) -> bool:
    """Whether a connection of the application's own leads to the database of an Akter of this process that is in use."""
    return any(app.reached_by(connection) for app in list(_alive))


def _after_fork_in_child() -> None:
    for app in list(_alive):
        # The parent's connections are the parent's: they are forgotten here, not closed.
        app.engine.dispose(close=False)
        app._begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
