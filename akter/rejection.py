"""Declared refusals: the exception a handler raises to say no, kept in the receipt and raised again on a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, dataclass_transform

import msgspec

from akter import annotation
from akter.codec import Codec, check_defaults
from akter.errors import DeclarationError, PayloadInvalid
from akter.payload import default_of, field


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Rejection(Exception):
    """A declared refusal: the turn's changes roll back, the receipt keeps the refusal, a retry gets it again.

    Subclass it with annotated fields: `class AlreadyPlaced(Rejection): order: str`. `name` and `aliases` are what is stored. The
    first line of the docstring is its message.
    """

    rejection_name: ClassVar[str] = "Rejection"
    rejection_aliases: ClassVar[tuple[str, ...]] = ()
    _fields: ClassVar[type[msgspec.Struct]] = msgspec.defstruct("Rejection", [], kw_only=True)
    _codec: ClassVar[Codec[Any]] = Codec(_fields, "Rejection")

    def __init_subclass__(cls, *, name: str | None = None, aliases: Sequence[str] = ()) -> None:
        super().__init_subclass__()
        where = cls.__name__
        cls.rejection_name, cls.rejection_aliases = cls.__name__ if name is None else name, annotation.names(aliases, where)
        annotation.check_stored_name(cls.rejection_name, where)
        for method in ("__init__", "__new__"):
            if method in vars(cls):
                raise DeclarationError(
                    f"{where}.{method}: a rejection is rebuilt from its fields, so it cannot have this: annotate its fields"
                )
        fields: list[Any] = []
        for key, hint in annotation.hints(cls, where).items():
            if annotation.is_class_variable(hint):
                continue
            if hasattr(Rejection, key):
                raise DeclarationError(f"{where}.{key}: every rejection has `{key}` already; name the field otherwise")
            if key.startswith("_"):
                raise DeclarationError(f"{where}.{key}: a field cannot start with an underscore; annotate it ClassVar if it is none")
            default = getattr(cls, key, msgspec.NODEFAULT)
            fields.append((key, hint) if default is msgspec.NODEFAULT else (key, hint, default_of(default)))
        try:
            cls._fields = msgspec.defstruct(cls.__name__, fields, kw_only=True, module=cls.__module__)
        except TypeError as problem:
            raise DeclarationError(f"{where}: {problem}") from problem
        cls._codec = Codec(cls._fields, where)
        check_defaults(cls._fields, where)

    def __init__(self, **fields: Any) -> None:
        try:
            values = self._fields(**fields)
        except TypeError as problem:
            raise TypeError(f"{type(self).__name__}(): {problem}") from None
        super().__init__()
        for key in self._fields.__struct_fields__:
            setattr(self, key, getattr(values, key))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields and their values."""
        return {key: getattr(self, key) for key in self._fields.__struct_fields__}

    def __str__(self) -> str:
        said = ((type(self).__doc__ or "").strip() or type(self).__name__).splitlines()[0]
        given = ", ".join(f"{key}={value!r}" for key, value in self.fields.items())
        return f"{said} ({given})" if given else said

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rejection) and type(other) is type(self) and other.fields == self.fields

    def __hash__(self) -> int:
        return hash(type(self))

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.fields)


class UnknownRejection(Rejection):
    """A stored refusal whose class, in this code, is gone or has other fields."""

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
    return msgspec.json.encode(_Stored(kind.rejection_name, kind.__module__, msgspec.Raw(fields)))


def decode(raw: bytes) -> Rejection:
    """The stored refusal as the same class with the same fields, or an `UnknownRejection` when this code has none that fits."""
    stored = _read(raw)
    fields = bytes(stored.fields)
    kind = _known(stored.type, stored.module)
    if kind is not None:
        try:
            values = kind._codec.decode(fields)
        except PayloadInvalid:
            # The refusal stands, whatever became of its class: it must not turn into another kind of failure.
            pass
        else:
            return kind(**{key: getattr(values, key) for key in kind._fields.__struct_fields__})
    return UnknownRejection(name=stored.type, raw=fields.decode())


def _known(name: str, module: str) -> type[Rejection] | None:
    """The class of a stored name: the one of its module, or else the only one there is."""
    every: list[type[Rejection]] = [Rejection, *_subclasses(Rejection)]
    found = [kind for kind in every if name in (kind.rejection_name, *kind.rejection_aliases)]
    here = [kind for kind in found if kind.__module__ == module]
    if here:
        return here[0]
    return found[0] if len({(kind.__module__, kind.__qualname__) for kind in found}) == 1 else None


def _subclasses(kind: type[Rejection]) -> list[type[Rejection]]:
    # Newest first: a class that a test or a reload defined again is the one meant.
    return [found for child in reversed(kind.__subclasses__()) for found in (child, *_subclasses(child))]
