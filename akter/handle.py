"""What `app.actor(...)` returns: calls become turns or queries, and everything else is refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from akter.command import Command
from akter.errors import InsideTurn
from akter.identity import Address

if TYPE_CHECKING:
    from akter.caller import Caller
    from akter.definition import Definition


class Door(Protocol):
    """What runs the calls of a handle."""

    def call(self, member: Member, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a command or query and return its result."""
        ...


class Handle:
    """An actor's address with its commands and queries on it. It holds no state and opens nothing."""

    __slots__ = ("_address", "_caller", "_definition", "_door")

    _address: Address
    _caller: Caller | None
    _definition: Definition
    _door: Door | None

    def __init__(self, definition: Definition, address: Address, door: Door | None, caller: Caller | None = None) -> None:
        put = object.__setattr__
        put(self, "_definition", definition)
        put(self, "_address", address)
        put(self, "_door", door)
        put(self, "_caller", caller)

    @property
    def id(self) -> str:
        """The actor's id."""
        return self._address.actor_id

    def __getattr__(self, name: str) -> Member:
        if name.startswith("__"):
            # Protocols such as copying look for these before the handle has a definition.
            raise AttributeError(name)
        definition: Definition = object.__getattribute__(self, "_definition")
        member = definition.members.get(name)
        if member is None or member.mark.hidden:
            raise AttributeError(_refusal(definition, name))
        return Member(self, member)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{self!r} is a handle: state is changed inside a turn, by a @command of {self._definition.name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{self!r} is a handle: nothing can be deleted from it")

    def __repr__(self) -> str:
        return f"<{self._address}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other._address == self._address

    def __hash__(self) -> int:
        return hash(self._address)

    def __bool__(self) -> bool:
        return True

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: object) -> Handle:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is a handle, which does not leave its process: keep the actor's id")


class Member:
    """One command or query of one actor: call it, or give it to `send`."""

    __slots__ = ("command", "handle")

    def __init__(self, handle: Handle, command: Command) -> None:
        self.handle, self.command = handle, command

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it in this thread and return its result."""
        door = self.handle._door
        if door is None:
            raise InsideTurn(
                f"{self.command.where} was called on a handle made inside a turn: use self.send(...) to reach another actor, "
                "and a plain method call for the actor itself"
            )
        return door.call(self, args, kwargs)

    def __repr__(self) -> str:
        return f"<{self.handle._address}.{self.command.name}>"


def _refusal(definition: Definition, name: str) -> str:
    where = f"{definition.kind.__name__}.{name}"
    if name in definition.fields:
        return f"{where} is state, which only the actor itself can see: declare a @query that returns it"
    if name in definition.jobs:
        return f"{where} is a job: it is started inside a turn with self.enqueue(...)"
    if name in definition.members and definition.members[name].mark.kind == "subscription":
        return f"{where} is called by akter when an event is delivered, not on a handle"
    if name in definition.members:
        return f"{where} is called by akter when its job ends, not on a handle"
    if name in definition.reserved:
        outside = "To read from outside use app.events(handle, ...)" if name == "events" else "To send from outside use app.send(...)"
        return f"{where} belongs to a turn: use it as self.{name} inside a @command or @query. {outside}"
    if hasattr(definition.kind, name) and not name.startswith("_"):
        return f"{where} is not a command: mark it @command or @query to call it on a handle"
    known = ", ".join(sorted(member for member in definition.members if not definition.members[member].mark.hidden))
    return f"{definition.kind.__name__} has no command {name!r}; it has {known or 'none'}"


def door_of(command: Callable[..., Any]) -> Door | None:
    """What runs the calls of the handle that a command is on; None for one made inside a turn, and for the actor's own."""
    return command.handle._door if isinstance(command, Member) else None


def target_of(command: Callable[..., Any], itself: object = None) -> tuple[Address, Command]:
    """The actor and the command that `send` was given.

    Raises `TypeError` when it is no command of a handle, nor of `itself`, the actor that sends.
    """
    if isinstance(command, Member):
        found, where = command.command, command.handle._address
    else:
        owner = getattr(command, "__self__", None)
        definition = getattr(type(owner), "__akter__", None)
        named = definition and definition.members.get(getattr(command, "__name__", ""))
        if named is None or named.method is not getattr(command, "__func__", None):
            raise TypeError(
                "send(...) takes a command, which is not called, and then its arguments: send(actor(Kind, id).command, ...), "
                "or send(self.command, ...) for one of the actor itself"
            )
        if owner is not itself:
            raise TypeError(
                f"{named.where} belongs to an actor that was constructed by hand and lives nowhere: use actor(Kind, id).{named.name}"
            )
        found, where = named, cast(Any, owner)._address
    if found.mark.kind == "query":
        raise TypeError(f"{found.where} is a query: only commands can be sent, because nobody waits for an answer")
    if found.mark.kind == "subscription":
        raise TypeError(f"{found.where} follows events: akter calls it when one is delivered, so emit one")
    if found.mark.route:
        raise TypeError(f"{found.where} is a route of a job: akter calls it when the job ends")
    return where, found
