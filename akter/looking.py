"""What of an `Akter` only looks: receipts, events and lists of actors, each by who may see them."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from sqlalchemy import Engine

from akter import outcome, registry
from akter.actor import Actor
from akter.caller import Access, AccessKind, Caller, Policy, System, allowed, may_read
from akter.context import ambient, inside
from akter.definition import Definition
from akter.errors import Defect, InsideTurn, PayloadInvalid, Unauthorized, Unavailable, UnknownActor
from akter.event import LARGEST_PAGE, PAGE, Entry, asked, entries
from akter.handle import Handle, Member
from akter.identity import Address, CommandId, check_name, is_minted, own_id
from akter.joining import Joining
from akter.payload import Event
from akter.query import Queries
from akter.store import reading
from akter.store.flight import Line, Lost, StatementFailed
from akter.store.rows import key
from akter.store.wire import Statements, Wire

A = TypeVar("A", bound=Actor)
E = TypeVar("E", bound=Event)


class Looking:
    """The part of an `Akter` that reads what is committed, and decides who may."""

    engine: Engine
    actors: dict[str, Definition]
    authorize: Policy | None
    _statements: Statements
    _joining: Joining
    _queries: Queries

    def outcome(self, handle: Actor, id: str | CommandId, *, scope: str | None = None) -> Any:
        """What a command answered under this id: returned, or raised when it was a rejection; `LookupError` when there is no receipt.

        Its caller may ask, and whoever it was sent on behalf of, and the deployment's own code.
        """
        where = cast(Handle, handle)
        if where._door is not cast(object, self):
            raise UnknownActor("outcome(...) takes a handle of this Akter, and this one was made elsewhere: make it with actor(...)")
        caller = where._caller or ambient(self).caller
        self._joining.join()
        stored = [str(id)] if isinstance(id, CommandId) else [self._own(caller, id, scope), *([id] if is_minted(id) else [])]
        for command_id in stored:
            if (found := self._receipt(where._address, command_id)) is None:
                continue
            name, _, caller_key, kept = found
            if not may_read(caller, caller_key):
                raise Unauthorized("this command id belongs to another caller", code="receipt_access_denied", command_id=command_id)
            command = where._definition.names[name]
            self._authorize(Member(where, command), caller, ran=True)
            return outcome.answer(kept, command)
        raise LookupError(
            f"{where._address} has no receipt of {id!s:.300}: it has not run (a message waits for a runner), or its receipt was pruned"
        )

    def _receipt(self, address: Address, command_id: str) -> tuple[Any, ...] | None:
        asked = Line(self._statements.get(reading.receipt_of), {**key(address), "command_id": command_id})
        with self._wire() as wire:
            try:
                rows = wire.fly([asked], 10.0)[0].rows
            except (StatementFailed, Lost) as problem:
                raise Unavailable(f"the receipt cannot be read now: {problem}") from problem
        return rows[0] if rows else None

    def events(self, handle: Actor, kind: type[E], *, after: str | None = None, limit: int = PAGE) -> list[Entry[E]]:
        """The committed events of one class of an actor, oldest first: `limit` at most, 10 000 at most, that follow the cursor `after`.

        Each call reads what is committed by then. Access policies are asked with the kind "events" and the event's name. Raises
        `UnknownCursor`, `RetentionGap` when events after the cursor were pruned, and `Defect` for an event this code cannot read.
        """
        where, wanted = cast(Handle, handle), asked(kind, after, limit)
        if inside() is not None:
            raise InsideTurn("inside a turn or query, an actor reads its own events with self.events(...)")
        if not isinstance(where, Handle) or where._door is not cast(object, self):
            raise UnknownActor("events(...) takes a handle of this Akter: make it with actor(...)")
        caller = where._caller or ambient(self).caller
        self._permit(where, kind.event_name, "events", caller)
        self._joining.join()
        found = self._queries.events(where._address, wanted)
        self._permit(where, kind.event_name, "events", caller)
        try:
            return entries(kind, wanted, found)
        except PayloadInvalid as problem:
            raise Defect(f"the events of {where._address} cannot be read: {problem}") from problem

    def ids(self, kind: type[A], *, after: str = "", limit: int = PAGE) -> list[str]:
        """The ids of the actors of a class that were created or whose state was written, in order: `limit` at most, behind the id `after`.

        Those of the tenant around, and only for the deployment's own code: raises `Unauthorized` for any other caller, `UnknownActor` for
        a class that is not registered and `PayloadInvalid` for a limit that is not from 1 to 10 000.
        """
        around, definition = ambient(self), registry.known(self.actors, kind, "ids(...) takes an Actor subclass")
        if inside() is not None:
            raise InsideTurn("actors are listed outside turns and queries: a list inside one would not be part of its snapshot")
        if not isinstance(around.caller, System):
            raise Unauthorized("only the deployment's own code may list actors")
        if isinstance(cast(object, limit), bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
            raise PayloadInvalid(f"ids(...): limit is a number from 1 to {LARGEST_PAGE}; the next page starts after the last id")
        self._joining.join()
        wanted = {"actor_type": definition.name, "tenant_id": around.tenant, "after": after and check_name(after, "after"), "limit": limit}
        return self._queries.ids(wanted)

    def _own(self, caller: Caller, id: str, scope: str | None) -> str:
        return own_id(caller.key if scope is None else scope, id)

    def _authorize(self, member: Member, caller: Caller, *, ran: bool = False) -> None:
        command = member.command
        if command.mark.internal and not isinstance(caller, System):
            raise Unauthorized(f"{command.where} is internal: only the deployment's own code may call it")
        kind: AccessKind = "query" if command.mark.kind == "query" else "command"
        self._permit(member.handle, command.name, kind, caller, ran=ran)

    def _permit(self, handle: Handle, member: str, kind: AccessKind, caller: Caller, *, ran: bool = False) -> None:
        definition, address = handle._definition, handle._address
        if definition.options.access is None and self.authorize is None and isinstance(caller, System):
            return
        wanted = Access(caller, address.tenant_id, definition.name, address.actor_id, member, kind)
        if not allowed(wanted, definition.options.access, self.authorize, ran=ran):
            verb = "read" if kind == "events" else "call"
            asked = definition.options.access is not None or self.authorize is not None
            remedy = "" if asked else ": no policy lets it, so declare access= on the class, or authorize= on the Akter"
            raise Unauthorized(f"{type(caller).__name__} may not {verb} {definition.kind.__name__}.{member}{remedy}")

    def _wire(self) -> Wire:
        return Wire(self.engine, self._statements)
