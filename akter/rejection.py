"""Declared refusals: the exception a handler raises to say no, kept in the receipt and raised again on a replay."""

from __future__ import annotations

from typing import Any, ClassVar, cast, dataclass_transform

import msgspec

from akter import annotation
from akter.codec import Codec
from akter.errors import DeclarationError
from akter.payload import default_of, field


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Rejection(Exception):
    """A declared refusal: the turn's changes roll back, the receipt keeps the refusal, a retry gets it again.

    Subclass it with annotated fields: `class AlreadyPlaced(Rejection): order: str`. `name` and `aliases` are what is stored.
    """

    rejection_name: ClassVar[str] = "Rejection"
    rejection_aliases: ClassVar[tuple[str, ...]] = ()
    _fields: ClassVar[type[msgspec.Struct]] = msgspec.defstruct("Rejection", [], kw_only=True)
    _codec: ClassVar[Codec[Any]] = Codec(_fields, "Rejection")

    def __init_subclass__(cls, *, name: str | None = None, aliases: tuple[str, ...] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.rejection_name, cls.rejection_aliases = name or cls.__name__, tuple(aliases)
        found = annotation.hints(cls, cls.__qualname__)
        fields: list[Any] = []
        for key, hint in found.items():
            if annotation.is_class_variable(hint) or key.startswith("_"):
                continue
            if hasattr(Exception, key):
                raise DeclarationError(f"{cls.__qualname__}.{key}: every exception has `{key}` already; name the field otherwise")
            default = getattr(cls, key, msgspec.NODEFAULT)
            fields.append((key, hint) if default is msgspec.NODEFAULT else (key, hint, default_of(default)))
        try:
            cls._fields = msgspec.defstruct(cls.__name__, fields, kw_only=True)
        except TypeError as problem:
            raise DeclarationError(f"{cls.__qualname__}: {problem}") from problem
        cls._codec = Codec(cls._fields, cls.__qualname__)

    def __init__(self, **fields: Any) -> None:
        values = self._fields(**fields)
        super().__init__()
        for key in self._fields.__struct_fields__:
            setattr(self, key, getattr(values, key))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields and their values."""
        return {key: getattr(self, key) for key in self._fields.__struct_fields__}

    def __str__(self) -> str:
        said = (type(self).__doc__ or type(self).__name__).strip().splitlines()[0]
        given = ", ".join(f"{key}={value!r}" for key, value in self.fields.items())
        return f"{said} ({given})" if given else said

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and cast(Rejection, other).fields == self.fields

    __hash__ = Exception.__hash__

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.fields)


class UnknownRejection(Rejection):
    """A stored refusal whose class is not in this code any more."""

    name: str
    raw: str


def _rebuild(kind: type[Rejection], fields: dict[str, Any]) -> Rejection:
    return kind(**fields)


class _Stored(msgspec.Struct):
    type: str
    module: str
    fields: msgspec.Raw


_read = msgspec.json.Decoder(_Stored).decode


def encode(rejection: Rejection) -> bytes:
    """The refusal as JSON: its stored name, its module and its fields; raises `PayloadInvalid`."""
    kind = type(rejection)
    fields = kind._codec.encode(kind._fields(**rejection.fields))
    kind._codec.decode(fields)
    return msgspec.json.encode(_Stored(kind.rejection_name, kind.__module__, msgspec.Raw(fields)))


def decode(raw: bytes) -> Rejection:
    """The stored refusal as the same class with the same fields, or an `UnknownRejection` when the class is gone."""
    stored = _read(raw)
    known = [kind for kind in _subclasses(Rejection) if stored.type in (kind.rejection_name, *kind.rejection_aliases)]
    known.sort(key=lambda kind: kind.__module__ != stored.module)
    for kind in known:
        values = kind._codec.decode(bytes(stored.fields))
        return kind(**{key: getattr(values, key) for key in kind._fields.__struct_fields__})
    return UnknownRejection(name=stored.type, raw=bytes(stored.fields).decode())


def _subclasses(kind: type[Rejection]) -> list[type[Rejection]]:
    # Newest first: a class that a test or a reload defined again is the one meant.
    return [found for child in reversed(kind.__subclasses__()) for found in (child, *_subclasses(child))]
