"""A class body as a declaration: an actor's name, state, commands and jobs, checked when the class is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from akter import annotation
from akter.caller import Policy
from akter.codec import Codec, Upcast, upcast
from akter.command import MARK, Command
from akter.errors import DeclarationError, PayloadInvalid
from akter.identity import Placement, check_name
from akter.job import Cancellation, DeadLetter, Job
from akter.payload import default_of

MAX_STATE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a class statement says in its parentheses."""

    name: str | None = None
    aliases: Sequence[str] = ()
    singleton: bool = False
    placement: Placement = "actor"
    migrations: Sequence[Upcast] = ()
    max_state_bytes: int = MAX_STATE_BYTES
    access: Policy | None = None


class Definition:
    """Everything akter knows of one actor class."""

    __slots__ = ("aliases", "codec", "creating", "fields", "jobs", "kind", "may_change", "members", "name", "names", "options", "state")

    def __init__(self, kind: type, options: Options, reserved: frozenset[str]) -> None:
        self.kind, self.options = kind, options
        self.name = options.name or kind.__name__
        self.aliases = tuple(options.aliases)
        _check_options(kind, options)
        for name in ("__init__", "__new__", "__setattr__", "__getattr__", "__getattribute__", "__delattr__"):
            if name in vars(kind):
                raise DeclarationError(f"{kind.__name__}.{name}: an actor is built by akter from its stored state, so it cannot have this")
        self.state = _state(kind, reserved)
        self.codec: Codec[Any] = Codec(self.state, f"the state of {kind.__name__}")
        self.fields = frozenset(self.state.__struct_fields__)
        _check_defaults(kind, self.codec, self.state)
        self.may_change = not self.codec.plain and bool(self.fields)
        self.members, self.jobs = _members(kind, reserved)
        self.names = _names(kind, self.members)
        self.creating = any(member.mark.creates for member in self.members.values())

    def fresh(self) -> dict[str, Any]:
        """The fields of an actor nobody has changed yet."""
        return _fields(self.state())

    def load(self, raw: bytes, version: int) -> dict[str, Any]:
        """The fields from their stored form; raises `PayloadInvalid` when they cannot be read."""
        return _fields(self.codec.decode(upcast(raw, version, self.options.migrations, self.codec.where)))

    def dump(self, fields: dict[str, Any]) -> bytes:
        """The stored form of the fields; raises `PayloadInvalid` when they do not fit."""
        raw = self.codec.encode(self.state(**fields))
        if len(raw) > self.options.max_state_bytes:
            raise PayloadInvalid(
                f"{self.codec.where} is {len(raw)} bytes long; the limit is {self.options.max_state_bytes}: "
                f"store less, or declare max_state_bytes= on the class"
            )
        return raw


def _fields(state: msgspec.Struct) -> dict[str, Any]:
    return {key: getattr(state, key) for key in state.__struct_fields__}


def _check_options(kind: type, options: Options) -> None:
    try:
        for name in (options.name or kind.__name__, *options.aliases):
            check_name(name, "an actor's name", 128)
    except PayloadInvalid as problem:
        raise DeclarationError(f"{kind.__name__}: {problem}") from None
    if options.placement not in ("actor", "tenant"):
        raise DeclarationError(f"{kind.__name__}: placement is 'actor' or 'tenant', not {options.placement!r}")
    size = options.max_state_bytes
    if isinstance(size, bool) or not isinstance(cast(object, size), int) or not 2 <= size <= 256 * 1024 * 1024:
        raise DeclarationError(f"{kind.__name__}: max_state_bytes is a number of bytes from 2 to 268435456")
    for step in options.migrations:
        if not callable(step):
            raise DeclarationError(f"{kind.__name__}: migrations is a list of functions, each taking and returning a mapping")


def _state(kind: type, reserved: frozenset[str]) -> type[msgspec.Struct]:
    declared: list[Any] = []
    for name, hint in annotation.hints(kind, kind.__name__).items():
        where = f"{kind.__name__}.{name}"
        if annotation.is_class_variable(hint) or name in reserved and name not in annotation.own(kind):
            continue
        if name in reserved:
            raise DeclarationError(f"{where}: every actor has `{name}` already; name the field otherwise")
        if name.startswith("_"):
            raise DeclarationError(f"{where}: a state field cannot start with an underscore; annotate it ClassVar if it is no state")
        if not hasattr(kind, name):
            raise DeclarationError(f"{where}: a state field needs a default, which a new actor starts from")
        default = getattr(kind, name)
        if callable(default) and hasattr(default, "__code__"):
            raise DeclarationError(f"{where}: this name is a state field and a method; rename one")
        declared.append((name, hint, default_of(default)))
    try:
        return msgspec.defstruct(f"{kind.__name__}_state", declared, kw_only=True, module=kind.__module__)
    except TypeError as problem:
        raise DeclarationError(f"{kind.__name__}: {problem}") from problem


def _check_defaults(kind: type, codec: Codec[Any], state: type[msgspec.Struct]) -> None:
    try:
        codec.round_trip(state())
    except PayloadInvalid as problem:
        raise DeclarationError(f"{kind.__name__}: a default does not fit its field: {problem}") from problem


def _members(kind: type, reserved: frozenset[str]) -> tuple[dict[str, Command], dict[str, Job[..., Any]]]:
    members: dict[str, Command] = {}
    jobs: dict[str, Job[..., Any]] = {}
    for name in dir(kind):
        value = getattr(kind, name, None)
        if isinstance(value, Job):
            value.build()
            jobs[name] = value
        elif (mark := getattr(value, MARK, None)) is not None:
            if name in reserved:
                raise DeclarationError(f"{kind.__name__}.{name}: every actor has `{name}` already; name the {mark.kind} otherwise")
            members[name] = Command(kind.__name__, name, cast("Callable[..., Any]", value), mark)
    for job in jobs.values():
        _check_routes(job, members)
    return members, jobs


def _check_routes(job: Job[..., Any], members: dict[str, Command]) -> None:
    for route, name in job.routes.items():
        found = members.get(name)
        if found is None:
            raise DeclarationError(f"{job.where}: its {route} route `{name}` is not a method of the class")
        hints = annotation.hints(found.method, found.where)
        hints.pop("return", None)
        if len(found.arguments.__struct_fields__) != 1:
            raise DeclarationError(f"{found.where}: a route takes exactly one argument beside `self`")
        wanted = {"dead_letter": DeadLetter, "cancelled": Cancellation}.get(route)
        if wanted is None:
            wanted = annotation.hints(job.call.method, job.where).get("return")
        if next(iter(hints.values())) != wanted:
            said = getattr(wanted, "__name__", repr(wanted))
            raise DeclarationError(f"{found.where}: as the {route} route of {job.where} its argument is annotated `{said}`")


def _names(kind: type, members: dict[str, Command]) -> dict[str, Command]:
    names: dict[str, Command] = {}
    for member in members.values():
        for name in (member.name, *member.mark.aliases):
            if names.setdefault(name, member) is not member:
                raise DeclarationError(f"{kind.__name__}.{member.name}: the name {name!r} belongs to `{names[name].name}` too")
    return names


