"""Declared types to JSON bytes and back; the only module that encodes or decodes what is stored."""

from __future__ import annotations

import decimal
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect as shapes

from akter.errors import DeclarationError, PayloadInvalid

T = TypeVar("T")

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""One step of a migration chain: the stored mapping of version n to that of version n + 1."""


def _to_json(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"{type(value).__name__} cannot be stored")
    return dump(mode="json")


def _from_json(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise NotImplementedError(f"{kind.__name__} cannot be stored")
    return validate(value)


_encode = msgspec.json.Encoder(enc_hook=_to_json, order="deterministic").encode
_encode_sorted = msgspec.json.Encoder(enc_hook=_to_json, order="sorted").encode


class Codec(Generic[T]):
    """Encodes one declared type, refusing what PostgreSQL or another reader could not take.

    Raises `DeclarationError` when the type cannot be stored at all.
    """

    def __init__(self, kind: Any, where: str) -> None:
        self.where = where
        try:
            self._decode = msgspec.json.Decoder(kind, dec_hook=_from_json).decode
            self._shape = shapes.type_info(kind)
        except (TypeError, ValueError, RecursionError) as problem:
            raise DeclarationError(f"{where}: {problem}") from problem
        kinds = _leaves(self._shape)
        for leaf in kinds:
            if isinstance(leaf, shapes.CustomType) and not hasattr(leaf.cls, "model_validate"):
                raise DeclarationError(
                    f"{where}: {leaf.cls.__name__} cannot be stored; use a Payload, a dataclass, an attrs or pydantic class, or a plain type"
                )
        self._may_hold_nan = any(
            isinstance(leaf, shapes.FloatType | shapes.DecimalType | shapes.AnyType | shapes.CustomType) for leaf in kinds
        )
        self.plain = all(isinstance(leaf, _PLAIN) for leaf in kinds)

    def encode(self, value: T) -> bytes:
        """Encode to JSON; raises `PayloadInvalid` for NaN, NUL, lone surrogates and values that are no JSON."""
        try:
            raw = _encode(value)
            if self._may_hold_nan:
                _refuse_nan(value, self.where)
        except PayloadInvalid:
            raise
        except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as problem:
            raise self._invalid(problem) from problem
        if b"\\u0000" in raw:
            _refuse_nul(msgspec.json.decode(raw), self.where, "$")
        return raw

    def decode(self, raw: bytes | str) -> T:
        """Decode JSON into the declared type; raises `PayloadInvalid` naming the path, never the value."""
        try:
            return self._decode(raw)  # type: ignore[no-any-return]
        except PayloadInvalid:
            raise
        except (msgspec.MsgspecError, ValueError, RecursionError, NotImplementedError) as problem:
            raise self._invalid(problem) from problem

    def round_trip(self, value: T) -> tuple[bytes, T]:
        """The stored bytes of a value, and the value as anybody who reads them gets it."""
        raw = self.encode(value)
        return raw, self.decode(raw)

    def _invalid(self, problem: BaseException) -> PayloadInvalid:
        if isinstance(problem, UnicodeEncodeError):
            return PayloadInvalid(f"{self.where}: text must not contain a lone surrogate")
        if isinstance(problem, RecursionError):
            return PayloadInvalid(f"{self.where}: the value is nested too deeply, or contains itself")
        return PayloadInvalid(f"{self.where}: {problem}")


_PLAIN = (shapes.IntType, shapes.StrType, shapes.BoolType, shapes.NoneType, shapes.FloatType)


def _leaves(shape: shapes.Type, seen: set[int] | None = None) -> list[shapes.Type]:
    """Every type inside a type, containers included."""
    seen = set() if seen is None else seen
    key = id(getattr(shape, "cls", shape))
    if isinstance(shape, shapes.StructType | shapes.DataclassType | shapes.TypedDictType | shapes.NamedTupleType):
        if key in seen:
            return []
        seen.add(key)
        return [shape, *(leaf for field in shape.fields for leaf in _leaves(field.type, seen))]
    found = [shape]
    for name in ("item_type", "key_type", "value_type", "type"):
        inner = getattr(shape, name, None)
        if isinstance(inner, shapes.Type):
            found += _leaves(inner, seen)
    for name in ("types", "item_types"):
        for inner in getattr(shape, name, ()):
            found += _leaves(inner, seen)
    return found


def _refuse_nan(value: Any, where: str) -> None:
    plain = msgspec.to_builtins(value, enc_hook=_to_json, builtin_types=(decimal.Decimal,), str_keys=True)
    _walk_nan(plain, where, "$")


def _walk_nan(value: Any, where: str, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise PayloadInvalid(f"{where}: {value} is no JSON number - at `{path}`")
    if isinstance(value, decimal.Decimal) and not value.is_finite():
        raise PayloadInvalid(f"{where}: Decimal('{value}') is no number - at `{path}`")
    if isinstance(value, dict):
        for key, item in value.items():
            _walk_nan(item, where, f"{path}.{key}")
    elif isinstance(value, list | tuple | set | frozenset):
        for position, item in enumerate(value):
            _walk_nan(item, where, f"{path}[{position}]")


def _refuse_nul(value: Any, where: str, path: str) -> None:
    if isinstance(value, str) and "\0" in value:
        raise PayloadInvalid(f"{where}: text must not contain a NUL character - at `{path}`")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_nul(key, where, path)
            _refuse_nul(item, where, f"{path}.{key}")
    elif isinstance(value, list):
        for position, item in enumerate(value):
            _refuse_nul(item, where, f"{path}[{position}]")


def payload_hash(arguments: msgspec.Struct) -> str:
    """SHA-256 of the arguments in canonical form: keys sorted, defaults omitted, so a new defaulted argument changes nothing."""
    return hashlib.sha256(_encode_sorted(_canonical(arguments))).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _canonical(given)
            for field in msgspec.structs.fields(value)
            if (given := getattr(value, field.name)) != _default(field)
        }
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [_canonical(item) for item in value]
    return value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def upcast(raw: bytes, version: int, chain: Sequence[Upcast], where: str) -> bytes:
    """Bring stored bytes of `version` to the newest one; raises `PayloadInvalid` for a newer version or a failing step."""
    if version == len(chain):
        return raw
    if version > len(chain):
        raise PayloadInvalid(f"{where}: stored as version {version}, but this code knows only {len(chain)}: deploy the newer code again")
    value = msgspec.json.decode(raw)
    for number, step in enumerate(chain[version:], start=version):
        try:
            value = step(value)
        except Exception as problem:
            raise PayloadInvalid(f"{where}: the migration from version {number} failed: {problem!r}") from problem
        if not isinstance(value, dict):
            raise PayloadInvalid(f"{where}: the migration from version {number} returned {type(value).__name__}, not a mapping")
    return _encode(value)
