"""Values that cross a turn's boundary, and facts that a turn commits: frozen, keyword-only classes of annotated fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform, overload

import msgspec

from akter import annotation
from akter.codec import Codec, Upcast, chain, check_defaults, upcast
from akter.errors import DeclarationError

T = TypeVar("T")

_FIELD: type = type(cast(object, msgspec.field(default=None)))


@overload
def field(*, default: T) -> T: ...
@overload
def field(*, default_factory: Callable[[], T]) -> T: ...
def field(*, default: Any = msgspec.NODEFAULT, default_factory: Any = msgspec.NODEFAULT) -> Any:
    """Declare a field whose default is made anew for every value: `skus: list[str] = field(default_factory=list)`."""
    if default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=default_factory)
    if default is msgspec.NODEFAULT:
        raise DeclarationError("field(...) needs a default or a default_factory")
    made = default_of(default)
    return made if isinstance(made, _FIELD) else msgspec.field(default=made)


_SHARED = (str, int, float, bool, bytes, type(None), type)


def default_of(value: Any) -> Any:
    """A default that every value gets a copy of its own of, taken now."""
    if isinstance(value, (*_SHARED, _FIELD)) or value is msgspec.NODEFAULT:
        return value
    try:
        kept = copy.deepcopy(value)
    except Exception as problem:
        raise DeclarationError(f"the default {type(value).__name__} cannot be copied, so it cannot be stored") from problem
    # What deepcopy gives back as it was has nothing in it that could change.
    return value if kept is value else msgspec.field(default_factory=lambda: copy.deepcopy(kept))


class _Frozen(msgspec.StructMeta):
    if not TYPE_CHECKING:  # checkers know the class options from msgspec

        def __new__(mcls, name, bases, namespace, /, **config):
            config.setdefault("frozen", True)
            config.setdefault("kw_only", True)
            for key in namespace.get("__annotations__", ()):
                if key in namespace and not isinstance(namespace[key], property | staticmethod | classmethod):
                    namespace[key] = default_of(namespace[key])
            try:
                cls = super().__new__(mcls, name, bases, namespace, **config)
            except TypeError as problem:
                raise DeclarationError(f"{name}: {problem}") from problem
            annotation.resolve_locals(cls)
            # A name that is defined further down is resolved when an actor or event that uses this class is built.
            with suppress(NameError):
                check_defaults(cls, name)
            return cls


# The metaclass makes it so; checkers take it from the class, where it goes before what msgspec says of its own.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, msgspec.field))
class Payload(msgspec.Struct, metaclass=_Frozen, frozen=True):
    """A value in a command's arguments, result or state: annotate its fields, and construct it with keywords."""


class _EventType(_Frozen):
    if TYPE_CHECKING:

        def __new__(
            mcls,
            called: str,
            bases: tuple[type, ...],
            namespace: dict[str, Any],
            /,
            *,
            name: str = ...,
            aliases: Sequence[str] = (),
            migrations: Sequence[Upcast] = (),
            frozen: bool = True,
        ) -> Any: ...

    else:

        def __new__(mcls, name, bases, namespace, /, *, aliases=(), migrations=(), **config):
            stored = config.pop("name", name)
            cls = super().__new__(mcls, name, bases, namespace, **config)
            annotation.check_stored_name(stored, name)
            cls.event_name = stored
            cls.event_aliases = annotation.names(aliases, name)
            cls.event_migrations = chain(migrations, name)
            cls._codec = Codec(cls, name)
            return cls


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, msgspec.field))
class Event(msgspec.Struct, metaclass=_EventType, frozen=True):
    """A committed fact. `class Placed(Event, name="Placed", aliases=(), migrations=[...])`; the name is what is stored."""

    event_name: ClassVar[str]
    event_aliases: ClassVar[tuple[str, ...]]
    event_migrations: ClassVar[tuple[Upcast, ...]]
    _codec: ClassVar[Codec[Any]]


E = TypeVar("E", bound=Event)


def event_codec(kind: type[Event]) -> Codec[Event]:
    """The codec of an event class."""
    return kind._codec


def decode_event(kind: type[E], raw: bytes, version: int) -> E:
    """An event from its stored form of any version; raises `PayloadInvalid` for a newer version, or one that cannot be read."""
    codec: Codec[E] = kind._codec
    return codec.decode(upcast(raw, version, kind.event_migrations, f"the event {kind.event_name}"))
