"""`@subscription`: a method that follows the events of other actors, each once and in its source's order."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from types import FunctionType
from typing import Any, Literal, TypeAlias, TypeVar, cast, overload

import msgspec

from akter import annotation
from akter.codec import upcast
from akter.command import MARK, Command, Mark
from akter.errors import DeclarationError
from akter.identity import SINGLETON_ID, check_name
from akter.payload import Event, Payload, event_codec

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound=Callable[..., None])

Route: TypeAlias = "Callable[..., str] | Literal['singleton'] | None"


class Delivered(Payload):
    """What a delivery is of, for a handler that asks with a second parameter: which actor's, where in its events, and of which command.

    `at` is when the event was emitted, by the database's clock.
    """

    source_type: str
    source: str
    cursor: str
    command_id: str
    at: datetime


class Gap(Payload):
    """Events of the source after the cursor `after`, up to `resume_after`, were pruned or skipped before they were delivered."""

    source_type: str
    source: str
    after: str
    resume_after: str


class CursorRejected(Payload):
    """The source has no such cursor, so nothing is delivered: subscribe again from another one."""

    source_type: str
    source: str
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionMark(Mark):
    """What `@subscription` wrote on a method."""

    events: tuple[type[Event], ...]
    source: type[Any] | None
    to: Route
    name: str | None

    def build(self, owner: str, name: str, method: Callable[..., Any]) -> Subscription:
        """The subscription that the marked method is."""
        return Subscription(owner, name, method, self)


@overload
def subscription(*events: type[E], source: type[Any] | None = ..., to: Callable[[E], str], name: str | None = ...) -> Callable[[F], F]: ...
@overload
def subscription(
    *events: type[E], source: type[Any] | None = ..., to: Callable[[E, str], str], name: str | None = ...
) -> Callable[[F], F]: ...
@overload
def subscription(
    *events: type[Event], source: type[Any] | None = ..., to: Literal["singleton"] | None = ..., name: str | None = ...
) -> Callable[[F], F]: ...
def subscription(*events: Any, source: Any = None, to: Any = None, name: str | None = None) -> Any:
    """Declare a method that is told of events of other actors of its tenant, each once and in its source's order.

    `to` says which instance gets an event: a function of the event, or of the event and its source's id, or "singleton". It follows every
    actor from the first event on that a process with this declaration commits. Without `to`, an actor follows those it asks for with
    `self.subscribe(...)`. `source` is the class whose events they are, any unless given. `name` is what is stored of it, the method's name
    unless given. The method takes the event and, if it wants to, a `Delivered`; it returns nothing. It may also take a `Gap` and a
    `CursorRejected` in the event's place.
    """

    def decorate(method: Any) -> Any:
        where = getattr(method, "__qualname__", repr(method))
        if not isinstance(method, FunctionType):
            raise DeclarationError(f"@subscription on {where}: it goes on a plain method with `self`")
        if hasattr(method, MARK):
            raise DeclarationError(f"{where} is already a {getattr(method, MARK).kind}: use one decorator")
        setattr(method, MARK, SubscriptionMark(kind="subscription", internal=True, events=events, source=source, to=to, name=name))
        return method

    return decorate


class Subscription(Command):
    """A built subscription: decodes events, says whom they go to, and calls the method."""

    __slots__ = ("_arity", "_by_name", "_takes", "_told", "dynamic", "events", "source", "to")

    def __init__(self, owner: str, name: str, method: Callable[..., Any], mark: SubscriptionMark) -> None:
        where = f"{owner}.{name}"
        self._told = _told(where, method, mark)
        super().__init__(owner, name, method, mark, what="subscription", arguments=_NOTHING)
        self.name = name if mark.name is None else mark.name
        annotation.check_stored_name(self.name, where)
        self._by_name = _by_name(where, mark.events)
        self.events = tuple(sorted(self._by_name))
        self.source, self.to, self.dynamic = _source(where, mark.source), mark.to, mark.to is None
        self._arity = _arity(where, mark.to)

    @property
    def takes_gaps(self) -> bool:
        """Whether the method is told of events that are gone."""
        return Gap in self._told.classes

    @property
    def takes_rejections(self) -> bool:
        """Whether the method is told of a cursor that the source has not."""
        return CursorRejected in self._told.classes

    def decode(self, event: str, raw: bytes | str, version: int) -> Event:
        """An event from its stored form; raises `PayloadInvalid`."""
        kind = self._by_name[event]
        given = raw.encode() if isinstance(raw, str) else raw
        return event_codec(kind).decode(upcast(given, version, kind.event_migrations, kind.__name__))

    def route(self, event: Event, source: str) -> str:
        """The id of the actor that gets a routed event; raises `PayloadInvalid` for what is none, and whatever `to` raises."""
        if self.to == "singleton":
            return SINGLETON_ID
        chosen = cast("Callable[..., str]", self.to)(event, source) if self._arity == 2 else cast("Callable[..., str]", self.to)(event)
        return check_name(chosen, f"what `to` of {self.where} returns")

    def call(self, actor: Any, arguments: Any) -> Any:
        """Call the method with what is delivered and, if it wants that, what the delivery is of."""
        told, details = arguments
        return self.method(actor, told, details) if self._told.detailed else self.method(actor, told)

    def check_class(self, where: str, *, singleton: bool) -> None:
        """Refuse a route that does not fit the class."""
        if self.to == "singleton" and not singleton:
            raise DeclarationError(f'{self.where}: to="singleton" is for singletons, and {where} has many instances: to=lambda event: ...')
        if self.takes_rejections and not self.dynamic:
            raise DeclarationError(f"{self.where}: a CursorRejected answers self.subscribe(...), and with to= there is none")
        if self.takes_gaps and callable(self.to):
            raise DeclarationError(f"{self.where}: a Gap has no event that says whom to tell, so it is only counted: leave Gap away")
        if callable(self.to) and singleton:
            raise DeclarationError(f'{self.where}: {where} is a singleton, so to="singleton"')


_NOTHING = msgspec.defstruct("Nothing", ())


class _Told(typing.NamedTuple):
    classes: tuple[Any, ...]
    detailed: bool


def _told(where: str, method: Callable[..., Any], mark: SubscriptionMark) -> _Told:
    """What the method takes in place of the event, and whether it takes a `Delivered`."""
    if not mark.events or not all(isinstance(kind, type) and issubclass(kind, Event) and kind is not Event for kind in mark.events):
        raise DeclarationError(f"{where}: @subscription(...) names the event classes it follows: @subscription(OrderPlaced)")
    found = annotation.hints(method, where)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    kinds = " | ".join(kind.__name__ for kind in mark.events)
    if not 1 <= len(parameters) <= 2 or any(parameter.kind is not parameter.POSITIONAL_OR_KEYWORD for parameter in parameters):
        raise DeclarationError(f"{where}: a subscription takes the event and, if it wants to, a Delivered: `(self, event: {kinds})`")
    name, hint = parameters[0].name, found.get(parameters[0].name)
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    classes = typing.get_args(hint) if union else (hint,)
    if not set(mark.events) <= set(classes) <= {*mark.events, Gap, CursorRejected}:
        raise DeclarationError(f"{where}: annotate `{name}` with what it follows, `{kinds}`, and Gap or CursorRejected if it takes them")
    if len(parameters) == 2 and found.get(parameters[1].name) is not Delivered:
        raise DeclarationError(f"{where}: annotate `{parameters[1].name}` as `Delivered`")
    if found.get("return", ...) not in (None, type(None)):
        raise DeclarationError(f"{where}: a subscription returns nothing, `-> None`")
    return _Told(tuple(classes), len(parameters) == 2)


def _by_name(where: str, events: tuple[type[Event], ...]) -> dict[str, type[Event]]:
    found: dict[str, type[Event]] = {}
    for kind in events:
        for name in (kind.event_name, *kind.event_aliases):
            if found.setdefault(name, kind) is not kind:
                raise DeclarationError(f"{where}: {found[name].__name__} and {kind.__name__} are both stored as {name!r}")
    return found


def _source(where: str, source: type[Any] | None) -> str:
    if source is None:
        return ""
    definition = getattr(source, "__akter__", None)
    if not isinstance(cast(object, source), type) or definition is None:
        raise DeclarationError(f"{where}: source= is the actor class whose events it follows, not {source!r}")
    return str(definition.name)


def _arity(where: str, to: Route) -> int:
    if to is None or to == "singleton":
        return 0
    if not callable(to):
        raise DeclarationError(f'{where}: to= is a function of the event, or of the event and its source\'s id, or "singleton", not {to!r}')
    try:
        taken = [
            parameter
            for parameter in inspect.signature(to).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and parameter.default is parameter.empty
        ]
    except (TypeError, ValueError):
        return 1
    if len(taken) not in (1, 2):
        raise DeclarationError(f"{where}: to= takes the event, or the event and its source's id")
    return len(taken)
