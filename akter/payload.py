"""Values that cross a turn's boundary, and facts that a turn commits: frozen, keyword-only classes of annotated fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform, overload

import msgspec

from akter.codec import Codec, Upcast
from akter.errors import DeclarationError

T = TypeVar("T")


@overload
def field(*, default: T) -> T: ...
@overload
def field(*, default_factory: Callable[[], T]) -> T: ...
def field(*, default: Any = msgspec.NODEFAULT, default_factory: Any = msgspec.NODEFAULT) -> Any:
    """Declare a field whose default is made anew for every value: `skus: list[str] = field(default_factory=list)`."""
    return msgspec.field(default=default, default_factory=default_factory)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, msgspec.field))
class _Frozen(msgspec.StructMeta):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any) -> Any:
        config.setdefault("frozen", True)
        config.setdefault("kw_only", True)
        return super().__new__(mcls, name, bases, namespace, **config)


def default_of(value: Any) -> Any:
    """A default that every value gets a copy of its own of."""
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=lambda: copy.deepcopy(value))
    return value


class Payload(msgspec.Struct, metaclass=_Frozen):
    """A value in a command's arguments, result or state: annotate its fields, and construct it with keywords."""


class _EventType(_Frozen):
    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        aliases: Sequence[str] = (),
        migrations: Sequence[Upcast] = (),
        **config: Any,
    ) -> Any:
        stored = config.pop("name", name)
        cls = super().__new__(mcls, name, bases, namespace, **config)
        if not isinstance(stored, str) or not stored:
            raise DeclarationError(f"{name}: `name` must be a text that is not empty")
        cls.event_name = stored
        cls.event_aliases = tuple(aliases)
        cls.event_migrations = tuple(migrations)
        return cls


class Event(msgspec.Struct, metaclass=_EventType):
    """A committed fact. `class Placed(Event, name="Placed", aliases=(), migrations=[...])`; the name is what is stored."""

    event_name: ClassVar[str]
    event_aliases: ClassVar[tuple[str, ...]]
    event_migrations: ClassVar[tuple[Upcast, ...]]


def event_codec(kind: type[Event]) -> Codec[Event]:
    """The codec of an event class; raises `DeclarationError` when a field cannot be stored."""
    return Codec(kind, kind.__qualname__)
