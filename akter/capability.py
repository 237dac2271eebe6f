"""What an actor's verbs talk to while its handler runs: they work in that turn and thread only, and misuse spoils the turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from akter.context import inside
from akter.errors import AkterError, PayloadInvalid, TurnEnded
from akter.event import Asked, Page
from akter.identity import CommandId, is_child_id
from akter.intent import Cancel, Emit, Enqueue, Follow, Mint, Request, Send
from akter.sql import OwnSql

MAX_REQUESTS = 10_000
"""Messages, jobs and cancellations that one turn may ask for."""

MAX_EVENT_BYTES = 1_048_576
"""Encoded bytes of all events of one turn."""


class Host(Protocol):
    """The turn, as its recorder asks it while the handler runs."""

    def mint(self, request: Send | Enqueue) -> CommandId:
        """The id of a message or job."""
        ...

    def open_sql(self) -> OwnSql:
        """The turn's connection, for SQL of the handler's own."""
        ...

    def read_events(self, wanted: Asked) -> Page:
        """A page of the events that were committed before."""
        ...


class Capability:
    """The recorder of one turn."""

    __slots__ = (
        "_command_id",
        "_host",
        "_max_payload_bytes",
        "_open",
        "_owner",
        "_poison",
        "_thread",
        "_where",
        "event_bytes",
        "event_sequence",
        "mints",
        "requests",
        "sql",
        "touched",
    )

    def __init__(self, where: str, command_id: str, host: Host, event_sequence: int, max_payload_bytes: int, owner: object) -> None:
        self._where, self._command_id, self._host = where, command_id, host
        self._max_payload_bytes, self.event_sequence, self._owner = max_payload_bytes, event_sequence, owner
        self.requests: list[tuple[str, Request]] = []
        self.mints: list[Mint] = []
        self.event_bytes = 0
        self.sql: OwnSql | None = None
        self.touched = False
        """Whether the handler used the turn's connection, for SQL of its own or to read events."""
        self._thread, self._open = threading.get_ident(), True
        self._poison: BaseException | None = None

    def check(self) -> None:
        """Raise `TurnEnded` unless this thread is in the turn; the turns concerned are spoilt, even if the handler swallows it."""
        if self._open and threading.get_ident() == self._thread:
            return
        problem = TurnEnded(f"an actor was used outside its turn of {self._where}, or from another thread")
        if self._open:
            self.poison(problem)
        poison_running(problem)
        raise problem

    @property
    def is_open(self) -> bool:
        """Whether the handler still runs."""
        return self._open

    def poison(self, problem: BaseException) -> None:
        """Make the turn a defect, even if the handler swallows the problem."""
        if self._poison is None:
            self._poison = problem

    def accepts(self, door: object) -> bool:
        """Whether a handle is of this turn's Akter."""
        return door is None or door is self._owner

    def record(self, request: Request) -> str:
        """Keep a request until the commit; raises `PayloadInvalid` when the turn asks for too much."""
        self.check()
        id = ""
        if isinstance(request, Emit):
            self._count_event(request)
        elif len(self.requests) >= MAX_REQUESTS:
            self._too_much(f"a turn may ask for {MAX_REQUESTS} things: let it send itself a message and go on there")
        elif isinstance(request, Send | Enqueue):
            if len(request.payload) > self._max_payload_bytes:
                self._too_much(f"the arguments are {len(request.payload)} bytes long; the limit is {self._max_payload_bytes}")
            id = str(self._host.mint(request))
        self.requests.append((id, request))
        return id

    def mint(self, made: Callable[[str, int], Mint]) -> Mint:
        """Keep a child that is to be created by a message of this turn."""
        self.check()
        self.mints.append(made(self._command_id, len(self.mints)))
        return self.mints[-1]

    def check_children(self) -> None:
        """Raise unless each minted child, and no other, gets a message that creates it and that nobody can cancel."""
        if not self.requests and not self.mints:
            return
        sent = [request for _, request in self.requests if isinstance(request, Send) and request.creates]
        sent = [request for request in sent if is_child_id(request.target.actor_id, request.target.actor_type)]
        minted = {mint.child for mint in self.mints}
        for request in sent:
            if request.target not in minted:
                raise AkterError(
                    f"{self._where} sent {request.command} to {request.target}, which is the id of a minted child: "
                    "only the turn that mints it with self.mint(...) can create it"
                )
            if request.when.key is not None:
                raise AkterError(
                    f"{self._where}: the message that creates {request.target} cannot carry a key, because it could be cancelled"
                )
        if missing := minted.difference(request.target for request in sent):
            raise AkterError(
                f"{self._where} minted {min(missing)} and sent it no message that creates it: "
                "self.send(child.command, ...) with a command declared with creates=True"
            )

    def _count_event(self, request: Emit) -> None:
        # Counted even when it is refused, so that a handler which goes on gets no later event in: there is no gap in what it told.
        self.event_bytes += len(request.payload)
        if self.event_bytes > MAX_EVENT_BYTES:
            self._too_much(f"the events of one turn are limited to {MAX_EVENT_BYTES} bytes: let it send itself a message and go on there")

    def _too_much(self, said: str) -> None:
        raise PayloadInvalid(f"{self._where}: {said}")

    def read_events(self, wanted: Asked) -> Page:
        """A page of the events that were committed before this turn."""
        self.check()
        self.touched = True
        try:
            return self._host.read_events(wanted)
        except BaseException as problem:
            self.poison(problem)
            raise

    def connection(self) -> Any:
        """The turn's SQLAlchemy connection."""
        return self._own_sql().connection

    def session(self) -> Any:
        """The turn's ORM session."""
        return self._own_sql().session()

    def _own_sql(self) -> OwnSql:
        self.check()
        self.touched = True
        if self.sql is None:
            try:
                self.sql = self._host.open_sql()
            except BaseException as problem:
                self.poison(problem)
                raise
        return self.sql

    def close(self) -> None:
        """End the handler's time; raises what it was spoilt by."""
        self._open = False
        # They would keep each other alive until the next collection of garbage, which every turn would bring nearer.
        del self._host
        if self.sql is not None:
            self.sql.end()

    @property
    def spoilt(self) -> BaseException | None:
        """What the handler did that it may not do."""
        return self._poison


def poison_running(problem: BaseException) -> None:
    """Spoil the turn that runs in this context, if any."""
    other = inside()
    if isinstance(other, Capability):
        other.poison(problem)


def left(deadline: float) -> float:
    """Seconds until a `time.monotonic()` deadline, at least one millisecond."""
    return max(0.001, deadline - time.monotonic())


def pending(requests: list[tuple[str, Request]]) -> tuple[list[str], list[tuple[str, Send | Enqueue]], list[Emit]]:
    """What is left of a turn's requests: keys whose pending rows go, messages and jobs to write, events in their order."""
    keys: dict[str, None] = {}
    wanted: dict[str, tuple[str, Send | Enqueue]] = {}
    events: list[Emit] = []
    for id, request in requests:
        if isinstance(request, Emit):
            events.append(request)
        elif isinstance(request, Follow):
            continue
        elif isinstance(request, Cancel):
            keys |= dict.fromkeys(_keys(request.key))
            for name in _keys(request.key):
                wanted.pop(name, None)
        else:
            name = _stored_key(request) or id
            if request.when.key is not None:
                keys[name] = None
            wanted.pop(name, None)
            wanted[name] = (id, request)
    return list(keys), list(wanted.values()), events


def _keys(key: str) -> tuple[str, str]:
    return key, f"$job:{key}"


def _stored_key(request: Send | Enqueue) -> str | None:
    key = request.when.key
    return None if key is None else f"$job:{key}" if isinstance(request, Enqueue) else key
