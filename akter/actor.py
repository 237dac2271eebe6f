"""`Actor`: a class whose annotated fields are durable state and whose methods are commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar, cast, dataclass_transform

import msgspec

from akter import intent
from akter.caller import Policy
from akter.codec import Upcast
from akter.definition import INHERITED, MAX_STATE_BYTES, Definition, Options
from akter.errors import AkterError, DeclarationError, PayloadInvalid
from akter.event import PAGE, Asked, Entry, Page, asked, entries
from akter.handle import Handle, door_of, target_of
from akter.identity import DEFAULT_TENANT, SINGLETON_ID, Address, Placement, address, check_name, child_id
from akter.intent import Cancel, Emit, Enqueue, Follow, Later, Mint, Recorder, Request, Send, When
from akter.job import Job
from akter.payload import Event, event_codec, field
from akter.subscription import Subscription

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

P = ParamSpec("P")
A = TypeVar("A", bound="Actor")
E = TypeVar("E", bound=Event)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Actor:
    """A durable object with an id. Subclass it, annotate its state with defaults, mark its methods `@command` or `@query`.

    Class options: `name` and `aliases` (what is stored), `singleton`, `placement` ("actor" or "tenant"), `migrations` (functions that
    bring older stored state up to date), `max_state_bytes` (default 65536), `access` (who may call it), `keep_receipts` and `keep_events`
    (how long, instead of what the Akter says). A subclass takes over `placement`, `max_state_bytes`, `access` and how long things are
    kept from the class it extends.
    A constructed actor is a plain object: its methods run without a database, and `akter.testing.outbox` lists what it asked for.
    """

    __slots__ = ("__dict__", "__weakref__", "_address", "_turn")

    __akter__: ClassVar[Definition]
    _address: Address
    _turn: Recorder

    if TYPE_CHECKING:

        def __init_subclass__(
            cls,
            *,
            name: str | None = None,
            aliases: Sequence[str] = (),
            singleton: bool = False,
            placement: Placement = "actor",
            migrations: Sequence[Upcast] = (),
            max_state_bytes: int = MAX_STATE_BYTES,
            access: Policy | None = None,
            keep_receipts: timedelta | None = None,
            keep_events: timedelta | None = None,
        ) -> None: ...

    else:

        def __init_subclass__(cls, **options):
            super().__init_subclass__()
            cls.__akter__ = Definition(cls, Actor, _options(cls, options), _RESERVED)

    def __init__(self, **state: Any) -> None:
        if type(self) is Actor:
            raise TypeError("Actor is what actors are made from: subclass it")
        where, definition = plain_address(type(self), "under-test"), type(self).__akter__
        if unknown := set(state) - definition.fields:
            raise TypeError(f"{type(self).__name__}() has no state field {min(unknown)!r}")
        _, kept = definition.codec.round_trip(definition.state(**state))
        self._enter(where, _Plain(), msgspec.structs.asdict(kept))

    def _enter(self, where: Address, turn: Recorder, fields: dict[str, Any]) -> None:
        put = object.__setattr__
        put(self, "_address", where)
        put(self, "_turn", turn)
        vars(self).update(fields)

    @property
    def id(self) -> str:
        """The actor's id."""
        return self._address.actor_id

    def actor(self, kind: type[A], id: str | None = None) -> A:
        """A handle of another actor of the same tenant: to address with `self.send`, not to call."""
        self._turn.check()
        return cast(A, Handle(kind.__akter__, locate(kind, self._address.tenant_id, id), None))

    def mint(self, kind: type[A]) -> A:
        """A handle of a new actor whose id comes from this command, so that running it again makes the same one.

        The turn has to send it one of its commands declared with `creates=True`, without a key. Nobody else can create it.
        """
        definition = getattr(kind, "__akter__", None)
        if not isinstance(definition, Definition) or definition.options.singleton or not definition.creating:
            raise TypeError(
                f"mint(...) takes an Actor class with ids and a @command(creates=True), which brings the child about, not {kind!r}"
            )
        tenant, name = self._address.tenant_id, definition.name

        def made(command_id: str, ordinal: int) -> Mint:
            id = child_id(self._address, command_id, ordinal, name)
            return Mint(address(definition.options.placement, tenant, name, id), ordinal)

        return cast(A, Handle(definition, self._turn.mint(made).child, None))

    def send(self, command: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a message when this turn commits; returns the intent's id. Messages keep no order among each other."""
        return self.send_later(intent.AT_ONCE, command, args, dict(kwargs))

    def enqueue(self, job: Job[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Start a job of this actor when this turn commits; returns the job's id."""
        return self.enqueue_later(intent.AT_ONCE, job, args, dict(kwargs))

    def emit(self, event: Event) -> None:
        """Record a fact; it is appended to the actor's events when this turn commits. All events of a turn are 1 MiB at most."""
        if not isinstance(cast(object, event), Event) or type(event) is Event:
            raise PayloadInvalid(f"emit(...) takes an Event, not {type(event).__name__}: an event of a class of yours")
        type(self).__akter__.claim(type(event))
        raw, kept = event_codec(type(event)).round_trip(event)
        self._turn.record(Emit(kept, raw))

    def events(self, kind: type[E], *, after: str | None = None, limit: int = PAGE) -> list[Entry[E]]:
        """The actor's committed events of one class, oldest first: `limit` at most, 10 000 at most, that follow the cursor `after`.

        All reads of one query, or turn, end at the same event, `event_cursor`; what the turn itself emits is not among them.
        Raises `UnknownCursor`, and `RetentionGap` when events after the cursor were pruned.
        """
        wanted = asked(kind, after, limit)
        return entries(kind, wanted, self._turn.read_events(wanted))

    @property
    def event_cursor(self) -> str:
        """The cursor of the newest event that had been committed when this query or turn read the state."""
        return str(self._turn.event_sequence)

    def subscribe(self, follower: Callable[..., None], source: Actor, *, since: str = "now") -> None:
        """Follow an actor's events: `self.subscribe(self.told, self.actor(Order, id))`, with a `@subscription` that has no `to`.

        `since` is "now", which is shortly after the commit, "start", or a cursor: what comes after it is delivered. Subscribing again
        starts anew from there, and nothing of before is delivered any more.
        """
        found, where = self._follows(follower, source)
        self._turn.record(Follow(found.name, where, found.events, intent.check_since(since)))

    def unsubscribe(self, follower: Callable[..., None], source: Actor) -> None:
        """Stop following; from the commit on nothing more is delivered, not even what was on its way."""
        found, where = self._follows(follower, source)
        self._turn.record(Follow(found.name, where, found.events, None))

    def _follows(self, follower: Callable[..., None], source: Actor) -> tuple[Subscription, Address]:
        kind = type(self)
        found = kind.__akter__.members.get(getattr(follower, "__name__", ""))
        if not isinstance(found, Subscription) or getattr(follower, "__self__", None) is not self:
            raise TypeError(
                f"subscribe(...) takes a @subscription of {kind.__name__} itself: self.subscribe(self.told, self.actor(Kind, id))"
            )
        if not found.dynamic:
            raise TypeError(
                f"{found.where} follows every actor by its to=, so nothing is subscribed; leave to= away to choose whom it follows"
            )
        handle = cast(object, source)
        if not isinstance(handle, Handle):
            raise TypeError("subscribe(...) takes a handle of the actor to follow: self.actor(Kind, id)")
        if handle._address.tenant_id != self._address.tenant_id or not self._turn.accepts(handle._door):
            raise PayloadInvalid("subscribe(...) takes an actor of the same tenant and Akter: make the handle with self.actor(Kind, id)")
        if found.source not in ("", handle._definition.name):
            raise PayloadInvalid(f"{found.where} follows {found.source}, and {handle!r} is none")
        return found, handle._address

    def after(self, delay: timedelta, *, key: str | None = None) -> Later:
        """Ask for something `delay` after the commit: `self.after(timedelta(minutes=30), key="hold").send(self.expire)`."""
        return Later(self, intent.after(delay, key))

    def at(self, moment: datetime, *, key: str | None = None) -> Later:
        """Ask for something at a moment, a datetime with a time zone."""
        return Later(self, intent.at(moment, key))

    def cancel(self, key: str) -> None:
        """Take back the pending request made under `key`, when this turn commits."""
        if intent.check_key(key) is None:
            raise PayloadInvalid("cancel(...) takes the key the request was made under")
        self._turn.record(Cancel(key))

    @property
    def connection(self) -> Connection:
        """The turn's SQLAlchemy connection: what you write commits with the turn, and rolls back with it."""
        return cast("Connection", self._turn.connection())

    @property
    def session(self) -> Session:
        """The turn's ORM session: its commit and rollback are local, everything commits with the turn."""
        return cast("Session", self._turn.session())

    def send_later(self, when: When, command: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Record a message; what `send` and `Later.send` share."""
        target, found = target_of(command, self)
        if target.tenant_id != self._address.tenant_id or not self._turn.accepts(door_of(command)):
            raise PayloadInvalid(
                f"{found.where} is on a handle of another tenant or another Akter: a message stays in its sender's tenant and database; "
                "make the handle with self.actor(Kind, id)"
            )
        intent.check_words("send", found.arguments.__struct_fields__, kwargs)
        payload, arguments = found.bind(args, kwargs)
        return self._turn.record(Send(target, found.name, arguments, payload, when, found.mark.creates, found.version))

    def enqueue_later(self, when: When, job: Job[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Record a job; what `enqueue` and `Later.enqueue` share."""
        if not isinstance(cast(object, job), Job) or job not in type(self).__akter__.jobs.values():
            raise TypeError(f"enqueue(...) takes a Job bound in {type(self).__name__}: self.enqueue(self.charge, ...)")
        intent.check_words("enqueue", job.call.arguments.__struct_fields__, kwargs)
        payload, arguments = job.call.bind(args, kwargs)
        return self._turn.record(Enqueue(job.name, arguments, payload, when, job.call.version))

    if not TYPE_CHECKING:  # checkers find misspelt fields as long as they do not know that this is asked

        def __setattr__(self, name: str, value: object) -> None:
            if name not in type(self).__akter__.fields:
                raise AttributeError(f"{type(self).__name__} has no state field {name!r}: annotate it in the class, with a default")
            self._turn.check()
            vars(self)[name] = value

        def __delattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{type(self).__name__}.{name} is state: assign its empty value instead of deleting it")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._address}>"

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), dict(self.__dict__))


def _options(kind: type[Actor], given: dict[str, Any]) -> Options:
    known = set(Options.__dataclass_fields__)
    if unknown := set(given) - known:
        raise DeclarationError(f"{kind.__name__}: unknown option {min(unknown)!r}; an actor class takes {', '.join(sorted(known))}")
    extended = getattr(kind, "__akter__", None)
    taken_over = {} if extended is None else {option: getattr(extended.options, option) for option in INHERITED}
    return Options(**{**taken_over, **given})


_RESERVED = frozenset(name for name in dir(Actor) if not name.startswith("__"))


def _rebuild(kind: type[Actor], fields: dict[str, Any]) -> Actor:
    # A copy is a plain object with the same state; a turn and an address cannot be copied.
    return kind(**fields)


def locate(kind: type[Actor], tenant: str, id: str | None) -> Address:
    """Where the actor `kind`/`id` lives; raises `TypeError` for an id too many or missing and `PayloadInvalid` for a bad one."""
    definition = getattr(kind, "__akter__", None)
    if not isinstance(cast(object, kind), type) or not isinstance(definition, Definition):
        raise TypeError("actor(...) takes an Actor subclass and an id")
    if definition.options.singleton:
        if id is not None:
            raise TypeError(f"{kind.__name__} is a singleton: there is one, without an id")
        return address(definition.options.placement, tenant, definition.name, SINGLETON_ID)
    if id is None:
        raise TypeError(f"{kind.__name__} needs an id: actor({kind.__name__}, id)")
    return address(definition.options.placement, tenant, definition.name, check_name(id, f"the id of {kind.__name__}"))


def plain_address(kind: type[Actor], id: str) -> Address:
    """The address of an actor that was constructed by hand."""
    return locate(kind, DEFAULT_TENANT, None if kind.__akter__.options.singleton else id)


class _Plain:
    """The recorder of a constructed actor: a list."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._minted = 0

    def check(self) -> None:
        """Anybody may use a plain object."""

    def record(self, request: Request) -> str:
        self.requests.append(request)
        return f"request-{len(self.requests)}"

    def accepts(self, door: object) -> bool:
        """A plain object asks nobody."""
        return True

    def mint(self, made: Callable[[str, int], Mint]) -> Mint:
        self._minted += 1
        return made("under-test", self._minted - 1)

    def read_events(self, wanted: Asked) -> Page:
        return self.connection()  # type: ignore[no-any-return]

    @property
    def event_sequence(self) -> int:
        return self.connection()  # type: ignore[no-any-return]

    def connection(self) -> Any:
        raise AkterError("a constructed actor has no database: give it one by running the command through an Akter")

    def session(self) -> Any:
        return self.connection()
