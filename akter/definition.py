"""A class body as a declaration: an actor's name, state, commands and jobs, checked when the class is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FunctionType
from typing import Any, cast

import msgspec

from akter import annotation
from akter.caller import Policy
from akter.codec import Codec, Upcast, chain, check_defaults, keep_unknown, upcast
from akter.command import MARK, Command, Mark
from akter.cron import entries, schedules
from akter.errors import DeclarationError, PayloadInvalid
from akter.identity import Placement
from akter.job import Cancellation, DeadLetter, Job
from akter.limits import kept_ms
from akter.payload import Event, default_of
from akter.subscription import Subscription

MAX_STATE_BYTES = 65_536
_LARGEST = 256 * 1024 * 1024
_NO_DEFAULT = object()
_OURS = ("__init__", "__new__", "__setattr__", "__getattr__", "__getattribute__", "__delattr__", "__slots__")


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
    keep_receipts: timedelta | None = None
    keep_events: timedelta | None = None


INHERITED = ("placement", "max_state_bytes", "access", "keep_receipts", "keep_events")
"""The options that a subclass takes over; the others say what is stored, and two actors never share that."""


class Definition:
    """Everything akter knows of one actor class."""

    __slots__ = (
        "_migrations",
        "_names",
        "aliases",
        "codec",
        "creating",
        "events",
        "fields",
        "jobs",
        "kind",
        "may_change",
        "members",
        "name",
        "names",
        "options",
        "reserved",
        "schedules",
        "state",
        "subscriptions",
    )

    def __init__(self, kind: type[Any], root: type, options: Options, reserved: frozenset[str]) -> None:
        self.kind: Any = kind
        self.options, self.reserved = options, reserved
        _check_options(kind, options)
        self.name = kind.__name__ if options.name is None else options.name
        self.aliases = tuple(options.aliases)
        self.state = _state(kind, root, reserved)
        check_defaults(self.state, kind.__name__)
        remedy = ": store less, or declare max_state_bytes= on the class"
        self.codec: Codec[Any] = Codec(self.state, f"the state of {kind.__name__}", options.max_state_bytes, remedy)
        try:
            self.codec.encode(self.state())
        except PayloadInvalid as problem:
            raise DeclarationError(f"{kind.__name__}: its defaults do not fit: {problem}") from problem
        self._names = self.state.__struct_fields__
        self._migrations = len(options.migrations)
        self.fields = frozenset(self._names)
        self.may_change = not self.codec.plain
        self.jobs = _jobs(kind)
        self.members = _members(kind)
        for job in self.jobs.values():
            _check_routes(job, self.members)
        self.names = _stored_names(kind, self.members)
        self.events: dict[str, type[Event]] = {}
        self.schedules = entries(self.members.values())
        self.subscriptions = {member.name: member for member in self.members.values() if isinstance(member, Subscription)}
        for follows in self.subscriptions.values():
            follows.check_class(kind.__name__, singleton=options.singleton)
        self.creating = any(member.mark.creates for member in self.members.values())

    def claim(self, event: type[Event]) -> None:
        """Let the actor emit events of a class; raises `PayloadInvalid` when another class of its events has the same stored name."""
        if self.events.get(event.event_name) is event:
            return
        for name in (event.event_name, *event.event_aliases):
            other = self.events.setdefault(name, event)
            if (other.__module__, other.__qualname__) != (event.__module__, event.__qualname__):
                raise PayloadInvalid(
                    f"{self.kind.__name__} emits {other.__module__}.{other.__qualname__} and {event.__module__}.{event.__qualname__}, "
                    f"which are both stored as {name!r}: give one of them another name= in its class statement"
                )
            self.events[name] = event

    def fresh(self) -> dict[str, Any]:
        """The fields of an actor nobody has changed yet."""
        return msgspec.structs.asdict(self.state())

    def load(self, raw: bytes | str, version: int) -> dict[str, Any]:
        """The fields from their stored form; raises `PayloadInvalid` when they cannot be read."""
        if version != self._migrations:
            given = raw.encode() if isinstance(raw, str) else raw
            raw = upcast(given, version, self.options.migrations, self.codec.where)
        return msgspec.structs.asdict(self.codec.decode(raw))

    def rewrite(self, stored: bytes, version: int, written: bytes) -> bytes:
        """What takes the place of stored fields.

        Fields that this code does not know stay: code that has them runs beside it, or ran before it. A migration takes them away.
        """
        return keep_unknown(stored, written, self.fields) if version == self._migrations else written

    def dump(self, fields: dict[str, Any]) -> bytes:
        """The stored form of the fields; raises `PayloadInvalid` when they do not fit, or would not come back equal."""
        return self.codec.round_trip(self.state(*[fields[name] for name in self._names]))[0]


def _check_options(kind: type, options: Options) -> None:
    where = kind.__name__
    for name in (kind.__name__ if options.name is None else options.name, *annotation.names(options.aliases, where)):
        annotation.check_stored_name(name, where)
    if options.placement not in ("actor", "tenant"):
        raise DeclarationError(f"{where}: placement is 'actor' or 'tenant', not {options.placement!r}")
    if not isinstance(cast(object, options.singleton), bool):
        raise DeclarationError(f"{where}: singleton is True or False, not {options.singleton!r}")
    size = options.max_state_bytes
    if isinstance(size, bool) or not isinstance(cast(object, size), int) or not 2 <= size <= _LARGEST:
        raise DeclarationError(f"{where}: max_state_bytes is a number of bytes from 2 to {_LARGEST}, not {size!r}")
    chain(options.migrations, where)
    for name in ("keep_receipts", "keep_events"):
        kept: object = getattr(options, name)
        if kept is not None and kept_ms(kept) is None:
            raise DeclarationError(f"{where}: {name} is a timedelta that is not negative, timedelta.max for ever, not {kept!r}")
    if options.access is not None and not callable(options.access):
        raise DeclarationError(f"{where}: access is a function of one Access that returns True or False")


def _static(kind: type, name: str) -> object:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _NO_DEFAULT)


def _check_names(kind: type, written: list[type], reserved: frozenset[str], annotated: Iterable[str]) -> None:
    names = {name for base in written if base.__module__ != "typing" for name in vars(base)}
    for name in sorted(names.union(annotated)):
        if name in reserved:
            raise DeclarationError(f"{kind.__name__}.{name}: every actor has `{name}` already; choose another name")
        if name in _OURS and (name != "__slots__" or name in vars(kind)):
            raise DeclarationError(f"{kind.__name__}.{name}: an actor is built by akter from its stored state, so it cannot have this")


def _state(kind: type, root: type, reserved: frozenset[str]) -> type[msgspec.Struct]:
    written = [base for base in kind.__mro__ if base not in root.__mro__]
    found = annotation.hints(kind, kind.__name__, written)
    _check_names(kind, written, reserved, found)
    declared = [(name, hint, _default(kind, name)) for name, hint in found.items() if not annotation.is_class_variable(hint)]
    try:
        return msgspec.defstruct(f"{kind.__name__}_state", declared, module=kind.__module__)
    except TypeError as problem:
        raise DeclarationError(f"{kind.__name__}: {problem}") from problem


def _default(kind: type, name: str) -> Any:
    where = f"{kind.__name__}.{name}"
    if name.startswith("_"):
        raise DeclarationError(f"{where}: a state field cannot start with an underscore; annotate it ClassVar if it is no state")
    default = _static(kind, name)
    if default is _NO_DEFAULT:
        raise DeclarationError(f"{where}: a state field needs a default, which a new actor starts from")
    if isinstance(default, Job):
        raise DeclarationError(f"{where}: a Job is no state; leave the annotation away: `{name} = Job(...)`")
    if isinstance(default, FunctionType | property | staticmethod | classmethod):
        raise DeclarationError(f"{where}: this name is a state field and a method; rename one")
    try:
        return default_of(default)
    except DeclarationError as problem:
        raise DeclarationError(f"{where}: {problem}") from problem


def _jobs(kind: type) -> dict[str, Job[..., Any]]:
    jobs: dict[str, Job[..., Any]] = {}
    for name in dir(kind):
        if isinstance(value := _static(kind, name), Job):
            jobs[name] = cast("Job[..., Any]", value)
            jobs[name].build()
    return jobs


def _members(kind: type) -> dict[str, Command]:
    members: dict[str, Command] = {}
    for name in dir(kind):
        where = f"{kind.__name__}.{name}"
        value = _static(kind, name)
        mark = _mark(value)
        if mark is None:
            mark = _inherited(kind, name)
            if mark is None:
                continue
            if mark.route is None:
                raise DeclarationError(f"{where}: it replaces a {mark.kind} of a base class; mark it @{mark.kind} too")
        if not isinstance(value, FunctionType):
            raise DeclarationError(f"{where}: a {mark.kind} is a plain method with `self`, not a {type(value).__name__}")
        members[name] = mark.build(kind.__name__, name, value)
    return members


def _mark(value: object) -> Mark | None:
    inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    found = vars(inner).get(MARK) if hasattr(inner, "__dict__") else None
    if found is None and schedules(inner):
        return Mark(internal=True)
    return found if isinstance(found, Mark) else None


def _inherited(kind: type, name: str) -> Mark | None:
    """What a base class says about a method that the class, or a class before that one, replaced without a word."""
    return next(filter(None, (_mark(vars(base)[name]) for base in kind.__mro__ if name in vars(base))), None)


def _check_routes(job: Job[..., Any], members: dict[str, Command]) -> None:
    for route, name in job.routes.items():
        found = members.get(name)
        if found is None:
            raise DeclarationError(f"{job.where}: its {route} route `{name}` is not a method of the class")
        given = msgspec.structs.fields(found.arguments)
        if len(given) != 1:
            raise DeclarationError(f"{found.where}: a route takes exactly one argument beside `self`")
        wanted = {"dead_letter": DeadLetter, "cancelled": Cancellation}.get(route)
        if wanted is None:
            function: Callable[..., Any] = job.function
            wanted = annotation.hints(function, job.where)["return"]
        if given[0].type != wanted:
            said = wanted.__name__ if isinstance(wanted, type) else repr(wanted)
            raise DeclarationError(f"{found.where}: as the {route} route of {job.where} its argument is annotated `{said}`")


def _stored_names(kind: type, members: dict[str, Command]) -> dict[str, Command]:
    names: dict[str, Command] = {}
    for member in members.values():
        for name in (member.name, *member.mark.aliases):
            if names.setdefault(name, member) is not member:
                raise DeclarationError(f"{kind.__name__}.{member.name}: the name {name!r} belongs to `{names[name].name}` too")
    return names
