"""Queries: a handler that only reads, on one committed snapshot, without a lock and without a receipt."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from akter import sql
from akter.actor import Actor
from akter.command import Command
from akter.context import running
from akter.definition import Definition
from akter.errors import AkterError, Defect, InsideTurn, PayloadInvalid, TurnEnded, Unavailable
from akter.event import Asked, Page
from akter.identity import Address
from akter.intent import Mint, Request
from akter.rejection import Rejection
from akter.store import failure, listing, log, reading
from akter.store.flight import Line, Row, raw
from akter.store.reading import Seen
from akter.store.rows import key
from akter.store.wire import Statements, Wire

_SNAPSHOT = Line(raw("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"), {})


class _Moved(BaseException):
    """The state changed between the first read and the snapshot; the handler starts again on the snapshot."""


class Reading:
    """One query: what the actor's verbs talk to while its handler runs."""

    __slots__ = ("_begin", "_open", "_problem", "_read", "_sql", "_thread", "_where", "event_sequence")

    def __init__(self, where: str, begin: Callable[[], sql.OwnSql], read: Callable[[Asked], Page], event_sequence: int) -> None:
        self._where, self._begin, self._read, self.event_sequence = where, begin, read, event_sequence
        self._open, self._thread = True, threading.get_ident()
        self._sql: sql.OwnSql | None = None
        self._problem: BaseException | None = None

    def check(self) -> None:
        """A query may not change or ask for anything."""
        self.alive()
        self.refuse(InsideTurn(f"{self._where} is a query, which cannot change state or send anything: make it a @command"))

    @property
    def is_open(self) -> bool:
        """Whether the handler still runs."""
        return self._open

    def alive(self) -> None:
        """Raise `TurnEnded` after the query ended, or in another thread."""
        if not self._open or threading.get_ident() != self._thread:
            raise TurnEnded(f"an actor was used outside its query {self._where}")

    def refuse(self, problem: AkterError) -> None:
        """Fail the query, even if the handler swallows the problem."""
        self._problem = self._problem or problem
        raise problem

    def accepts(self, door: object) -> bool:
        """Nothing can be sent anyway."""
        return True

    def record(self, request: Request) -> str:
        """Nothing can be asked for."""
        self.check()
        raise AssertionError(request)

    def read_events(self, wanted: Asked) -> Page:
        """A page of the events up to the one that was the newest when the query began."""
        self.alive()
        return self._read(wanted)

    def mint(self, made: Callable[[str, int], Mint]) -> Mint:
        """Nothing can be made."""
        self.check()
        raise AssertionError(made)

    def connection(self) -> Any:
        """A SQLAlchemy connection on the query's read-only snapshot."""
        return self._own_sql().connection

    def session(self) -> Any:
        """An ORM session on the query's read-only snapshot."""
        return self._own_sql().session()

    def _own_sql(self) -> sql.OwnSql:
        self.alive()
        if self._sql is None:
            self._sql = self._begin()
        return self._sql

    def finish(self) -> None:
        """The handler returned; raises what it swallowed."""
        self.close()
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """The handler is over, however it ended: what it kept is of no use any more."""
        self._open = False
        if self._sql is not None:
            self._sql.end()


class Queries:
    """Runs queries in the thread that calls."""

    def __init__(self, engine: Any, compiled: Statements, execution: float) -> None:
        self._engine, self._compiled, self._execution = engine, compiled, execution

    def run(self, definition: Definition, query: Command, address: Address, arguments: Any) -> Any:
        """Run a query and return its result; raises `Unavailable`, `Defect` and what the handler rejects with."""
        seconds = query.mark.timeout or self._execution
        deadline = time.monotonic() + seconds
        try:
            return self._attempt(definition, query, address, arguments, deadline)
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
            # A pooled connection may have died since it was last used; a query writes nothing, so it may simply run again.
            return self._attempt(definition, query, address, arguments, deadline)

    def events(self, address: Address, wanted: Asked) -> Page:
        """A page of an actor's committed events; raises `Unavailable`."""
        deadline = time.monotonic() + self._execution
        try:
            return self._page(address, wanted, deadline)
        except Unavailable:
            return self._page(address, wanted, deadline)

    def ids(self, wanted: dict[str, Any]) -> list[str]:
        """The ids of a page of actors; raises `Unavailable`."""
        asked = Line(self._compiled.get(listing.page), wanted)
        try:
            return self._listed(asked)
        except Unavailable:
            return self._listed(asked)

    def _listed(self, asked: Line) -> list[str]:
        with Wire(self._engine, self._compiled) as wire:
            return [row[0] for row in self._fly(wire, [asked], time.monotonic() + self._execution)]

    def _page(self, address: Address, wanted: Asked, deadline: float) -> Page:
        with Wire(self._engine, self._compiled) as wire:
            return log.page(self._fly(wire, [log.reading(self._compiled, address, wanted, None)], deadline))

    def _attempt(self, definition: Definition, query: Command, address: Address, arguments: Any, deadline: float) -> Any:
        with Wire(self._engine, self._compiled) as wire:
            seen = self._snapshot(wire, address, deadline) if query.mark.sql else self._state(wire, address, deadline)
            try:
                return self._handle(definition, query, address, arguments, wire, seen, deadline)
            except _Moved:
                wire.roll_back()
                seen = self._snapshot(wire, address, deadline)
                return self._handle(definition, query, address, arguments, wire, seen, deadline)

    def _read(self, address: Address) -> Line:
        return Line(self._compiled.get(reading.state_of), key(address))

    def _state(self, wire: Wire, address: Address, deadline: float) -> Seen:
        """The state alone, in a statement by itself, on a connection that was just taken."""
        with wire.answering():
            (row,) = wire.fly([self._read(address)], max(0.001, deadline - time.monotonic()))[0].rows
        return Seen(*row)

    def _snapshot(self, wire: Wire, address: Address, deadline: float) -> Seen:
        rest = max(1, int((deadline - time.monotonic()) * 1000))
        limits = {"statement_timeout": f"{rest}ms", "idle_in_transaction_session_timeout": f"{rest + 1000}ms"}
        return Seen(*self._fly(wire, [_SNAPSHOT, Line(self._compiled.get(reading.limit), limits), self._read(address)], deadline)[0])

    def _fly(self, wire: Wire, lines: list[Line], deadline: float) -> list[Row]:
        if (misuse := wire.misuse) is not None:
            raise InsideTurn(f"the query left its connection {misuse}: finish that before it reads events")
        with wire.answering():
            return wire.fly(lines, max(0.001, deadline - time.monotonic()))[-1].rows

    def _handle(
        self, definition: Definition, query: Command, address: Address, arguments: Any, wire: Wire, seen: Seen, deadline: float
    ) -> Any:
        moved = False
        head = seen.event_sequence or 0

        def read(wanted: Asked) -> Page:
            return log.page(self._fly(wire, [log.reading(self._compiled, address, wanted, head)], deadline))

        def begin() -> sql.OwnSql:
            nonlocal moved
            if not wire.in_transaction:
                now = self._snapshot(wire, address, deadline)
                moved = (now.version, now.event_sequence) != (seen.version, seen.event_sequence)
            if moved:
                raise _Moved
            return sql.OwnSql(wire, 1.0, lambda problem: None, savepoint=False)

        where = Reading(query.where, begin, read, head)
        outer, token = sys.exception(), running.set(where)
        try:
            fields = definition.fresh() if seen.value is None else definition.load(seen.value, seen.payload_version or 0)
            actor: Actor = definition.kind.__new__(definition.kind)
            actor._enter(address, where, fields)
            before = definition.dump(fields) if definition.may_change else b""
            value = query.call(actor, arguments)
            if moved:
                raise _Moved
            where.finish()
            if definition.may_change and definition.dump(actor.__dict__) != before:
                raise InsideTurn(f"{query.where} is a query and changed the actor's state, which is not saved: make it a @command")
            return query.result.round_trip(value)[1]
        except (Rejection, InsideTurn, TurnEnded):
            raise
        except PayloadInvalid as problem:
            raise Defect(f"{query.where} of {address} failed: {problem}") from problem
        except Exception as problem:
            raise self._failed(query, address, problem, outer) from problem
        finally:
            running.reset(token)
            where.close()

    def _failed(self, query: Command, address: Address, problem: Exception, outer: BaseException | None) -> AkterError:
        for error in failure.driver_errors(problem, outer):
            if error.sqlstate == "25006":
                return InsideTurn(f"{query.where} is a query, which cannot write: make it a @command")
            if failure.is_retryable(error):
                return Unavailable(f"{query.where}: {failure.said(error)}")
        if isinstance(problem, AkterError):
            return problem
        return Defect(f"{query.where} of {address} failed: {failure.reason(problem)}")
