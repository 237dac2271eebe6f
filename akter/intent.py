"""What a turn asks for: messages, jobs, events and cancellations, recorded now and carried out after the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeAlias

import msgspec

from akter.errors import PayloadInvalid
from akter.event import Asked, Page
from akter.identity import Address, check_name
from akter.job import Job
from akter.payload import Event

P = ParamSpec("P")

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MAX_MS = 2**53 - 1
"""The latest time, in epoch milliseconds, and the longest delay that may be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """When a request is due: `delay_ms` after the commit, or at `due_at_ms`; `key` makes it replaceable."""

    delay_ms: int = 0
    due_at_ms: int | None = None
    key: str | None = None


AT_ONCE = When()


@dataclass(frozen=True, slots=True)
class Send:
    """A message to a command of an actor; `creates` says that the command may bring the actor about, `version` is its arguments'."""

    target: Address
    command: str
    arguments: msgspec.Struct
    payload: bytes
    when: When = AT_ONCE
    creates: bool = field(default=False, compare=False, repr=False)
    version: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A job of the actor itself; `version` is its arguments'."""

    job: str
    arguments: msgspec.Struct
    payload: bytes
    when: When = AT_ONCE
    version: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Emit:
    """A fact of the actor."""

    event: Event
    payload: bytes


@dataclass(frozen=True, slots=True)
class Cancel:
    """The end of a pending request that was made under `key`."""

    key: str


@dataclass(frozen=True, slots=True)
class Mint:
    """A child that a turn made an id for, the `ordinal`th of its command."""

    child: Address
    ordinal: int


@dataclass(frozen=True, slots=True)
class Follow:
    """The start of a subscription to an actor's events, `since` "now", "start" or a cursor; or its end, when that is None."""

    subscription: str
    source: Address
    events: tuple[str, ...]
    since: str | None


Request: TypeAlias = Send | Enqueue | Emit | Cancel | Follow


class Recorder(Protocol):
    """Where an actor's requests go: the turn it is in, or a list when it was constructed by hand."""

    def check(self) -> None:
        """Raise `TurnEnded` unless this thread is in the turn."""

    def accepts(self, door: object) -> bool:
        """Whether a handle with this door may be sent to; None is a handle made inside a turn."""
        ...

    def record(self, request: Request) -> str:
        """Keep a request until the turn commits, and return its id."""
        ...

    def mint(self, made: Callable[[str, int], Mint]) -> Mint:
        """Keep a child, made from the turn's command id and how many the turn has minted before."""
        ...

    def read_events(self, wanted: Asked) -> Page:
        """A page of the actor's committed events."""
        ...

    @property
    def event_sequence(self) -> int:
        """The sequence of the actor's newest committed event, zero when it has none."""
        ...

    def connection(self) -> Any:
        """The turn's SQLAlchemy connection."""

    def session(self) -> Any:
        """The turn's ORM session."""


class Sender(Protocol):
    """What can turn a message into a request."""

    def send_later(self, when: When, command: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Record a message."""
        ...

    def enqueue_later(self, when: When, job: Job[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Record a job."""
        ...


_WORDS = ("key", "after", "at", "delay", "countdown", "eta")


class Later:
    """A time, waiting for what is to happen then: `self.after(timedelta(minutes=30)).send(...)`."""

    __slots__ = ("_sender", "_when")

    def __init__(self, sender: Sender, when: When) -> None:
        self._sender, self._when = sender, when

    def send(self, command: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Send a message then; returns the intent's id."""
        return self._sender.send_later(self._when, command, args, dict(kwargs))

    def enqueue(self, job: Job[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Start a job then; returns the job's id."""
        return self._sender.enqueue_later(self._when, job, args, dict(kwargs))


def check_words(call: str, accepted: Sequence[str], given: Iterable[str]) -> None:
    """Refuse a key or a time among the arguments of what is asked for; raises `TypeError` with the way to say it."""
    for word in (word for word in given if word in _WORDS and word not in accepted):
        raise TypeError(
            f"{call}(..., {word}=...) takes the arguments of what it asks for, and no {word}: a key or a time stands before it, "
            f'self.after(timedelta(seconds=0), key="...").{call}(...)'
        )


def after(delay: timedelta, key: str | None) -> When:
    """A delay counted from the commit, in whole milliseconds; raises `PayloadInvalid` unless it is from zero to some 285 000 years."""
    if not isinstance(delay, timedelta):
        raise PayloadInvalid(f"after(...) takes a timedelta, not {type(delay).__name__}: timedelta(seconds=...), for example")
    if delay < timedelta(0):
        raise PayloadInvalid("after(...) takes a delay that is not negative")
    milliseconds = delay // _MILLISECOND
    if milliseconds > MAX_MS:
        raise PayloadInvalid("after(...) takes a delay of at most 104 249 991 days")
    return When(delay_ms=milliseconds, key=check_key(key))


def at(moment: datetime, key: str | None) -> When:
    """A moment, in whole milliseconds; one that has passed is due at once. Raises `PayloadInvalid` for a datetime without a time zone."""
    if not isinstance(moment, datetime):
        raise PayloadInvalid(f"at(...) takes a datetime, not {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise PayloadInvalid("at(...) takes a datetime with a time zone: datetime.now(timezone.utc), for example")
    return When(due_at_ms=max(0, (moment - _EPOCH) // _MILLISECOND), key=check_key(key))


def check_since(since: object) -> str:
    """Where a subscription starts; raises `PayloadInvalid` for anything but "now", "start" and the text of a cursor."""
    if isinstance(since, str) and (since in ("now", "start") or (since.isascii() and since.isdecimal() and len(since) <= 18)):
        return since
    raise PayloadInvalid(f'subscribe(..., since=...) takes "now", "start" or a cursor of the source, not {since!r}')


def check_key(key: str | None) -> str | None:
    """Refuse keys that cannot be stored, and those starting with `$`, which are akter's own."""
    if key is None:
        return None
    checked = check_name(key, "a key")
    if checked.startswith("$"):
        raise PayloadInvalid("keys starting with `$` are reserved: choose another")
    return checked
