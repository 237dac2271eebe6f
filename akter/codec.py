"""Declared types to JSON bytes and back; the only module that encodes or decodes what is stored."""

from __future__ import annotations

import dataclasses
import decimal
import math
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar, get_origin

import msgspec
from msgspec import inspect as shapes

from akter.errors import DeclarationError, PayloadInvalid

T = TypeVar("T")

MAX_DEPTH = 100
"""The deepest nesting that is stored: every Python and PostgreSQL can read it, however deep the stack already is."""

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""One step of a migration chain: the stored mapping of version n to that of version n + 1."""


def is_model(kind: type[Any]) -> bool:
    """Whether a class is a pydantic model, or behaves like one."""
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def to_json(value: Any) -> Any:
    """What msgspec asks for values it does not know: pydantic models, and subclasses of text and numbers."""
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be stored")


def _from_json(kind: type, value: Any) -> Any:
    if not is_model(kind):
        raise NotImplementedError(f"{kind.__name__} cannot be stored")
    try:
        return kind.model_validate_json(_encode(value))  # type: ignore[attr-defined]
    except Exception as problem:
        raise ValueError(_told(problem)) from problem


def _told(problem: BaseException) -> str:
    """What a pydantic error says, without the values it says it about."""
    errors = getattr(problem, "errors", None)
    if errors is None:
        return type(problem).__name__
    first = errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])


_encode = msgspec.json.Encoder(enc_hook=to_json).encode


def _encode_sets(value: Any) -> bytes:
    # In two steps, because sorting takes no keys but text.
    return _encode(msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=to_json))


class Codec(Generic[T]):
    """Encodes one declared type. What comes back equals what was given, or nothing is stored.

    A datetime keeps its moment and its offset; the name of its zone is not stored. `limit` is the longest encoding in bytes, and
    `remedy` ends the message when a value is longer. Raises `DeclarationError` when the type cannot be stored at all.
    """

    def __init__(self, kind: Any, where: str, limit: int | None = None, remedy: str = "") -> None:
        self.where, self.limit, self._remedy = where, limit, remedy
        try:
            self._decode = msgspec.json.Decoder(kind, dec_hook=_from_json).decode
            leaves = list(_leaves(shapes.type_info(kind)))
        except NameError as problem:
            raise DeclarationError(f"{where}: {problem}: a type it names is not defined at the top of its module") from None
        except (TypeError, ValueError, RecursionError) as problem:
            raise DeclarationError(f"{where}: {problem}") from problem
        for leaf in leaves:
            if isinstance(leaf, shapes.CustomType) and not is_model(leaf.cls):
                raise DeclarationError(
                    f"{where}: {leaf.cls.__name__} cannot be stored: "
                    "use a Payload, a dataclass, an attrs or pydantic class, or a plain type"
                )
            if isinstance(leaf, shapes.RawType | shapes.ExtType | shapes.MemoryViewType):
                raise DeclarationError(f"{where}: {_name(leaf)} cannot be stored: use bytes")
            if isinstance(leaf, shapes.DictType) and isinstance(leaf.key_type, _NO_KEYS):
                raise DeclarationError(f"{where}: a dict's keys are stored as text, so they cannot be {_name(leaf.key_type)}")
        self.plain = not any(_is_mutable(leaf) for leaf in leaves[1:])
        """Whether nothing inside a value of this type can be changed in place."""
        self._exact = any(isinstance(leaf, shapes.AnyType) for leaf in leaves)
        # Sorted only where it is needed, so that a dict keeps its order.
        self._encode = _encode_sets if any(isinstance(leaf, shapes.SetType | shapes.FrozenSetType) for leaf in leaves) else _encode

    def encode(self, value: T) -> bytes:
        """The stored bytes of a value; raises `PayloadInvalid`, naming the path, for one that would not come back equal."""
        return self.round_trip(value)[0]

    def decode(self, raw: bytes | str) -> T:
        """Decode JSON into the declared type; raises `PayloadInvalid` naming the path, never the value."""
        try:
            return self._decode(raw)  # type: ignore[no-any-return]
        except Exception as problem:
            raise PayloadInvalid(f"{self.where}: {_reason(problem)}") from problem

    def round_trip(self, value: T) -> tuple[bytes, T]:
        """The stored bytes of a value, and the value as anybody who reads them gets it; raises as `encode` does."""
        try:
            raw = self._encode(value)
            kept: T = self._decode(raw)
            same = value == kept
        except Exception as problem:
            path, said = _culprit(value) or ("", _reason(problem))
            raise self._invalid(path, said) from problem
        if not same and (found := _difference(value, kept, "$", self._exact)):
            raise self._invalid(*found)
        if self.limit is not None and len(raw) > self.limit:
            raise PayloadInvalid(f"{self.where} is {len(raw)} bytes long; the limit is {self.limit}{self._remedy}")
        if b"\\u0000" in raw or (len(raw) > MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH):
            if found := _culprit(kept):
                raise self._invalid(*found)
        return raw, kept

    def _invalid(self, path: str, said: str) -> PayloadInvalid:
        return PayloadInvalid(f"{self.where}: {said}{f' - at `{path}`' if path else ''}")


_NO_KEYS = (
    shapes.BoolType,
    shapes.NoneType,
    shapes.TupleType,
    shapes.VarTupleType,
    shapes.FrozenSetType,
    shapes.StructType,
    shapes.DataclassType,
    shapes.NamedTupleType,
    shapes.CustomType,
)
_MUTABLE = (
    shapes.ListType,
    shapes.SetType,
    shapes.DictType,
    shapes.TypedDictType,
    shapes.AnyType,
    shapes.CustomType,
    shapes.ByteArrayType,
    shapes.DataclassType,
)


def _name(shape: shapes.Type) -> str:
    return type(shape).__name__.removesuffix("Type").lower()


def _is_mutable(shape: shapes.Type) -> bool:
    if isinstance(shape, shapes.StructType):
        kind: Any = get_origin(shape.cls) or shape.cls
        return not kind.__struct_config__.frozen
    return isinstance(shape, _MUTABLE)


def _leaves(shape: shapes.Type, seen: set[type] | None = None) -> Iterator[shapes.Type]:
    """Every type inside a type, itself and containers included."""
    seen = set() if seen is None else seen
    yield shape
    if isinstance(shape, shapes.StructType | shapes.DataclassType | shapes.TypedDictType | shapes.NamedTupleType):
        if shape.cls not in seen:
            seen.add(shape.cls)
            for field in shape.fields:
                yield from _leaves(field.type, seen)
        return
    for name in ("item_type", "key_type", "value_type", "type"):
        inner = getattr(shape, name, None)
        if isinstance(inner, shapes.Type):
            yield from _leaves(inner, seen)
    for name in ("types", "item_types"):
        for inner in getattr(shape, name, ()):
            yield from _leaves(inner, seen)


_FIRST_STEP = re.compile(r"^(\$(?:\.\w+|\[.*?\])).*$")
_QUOTED = re.compile(r"(Invalid (?:enum )?value) .*?(?= - at `|$)", re.DOTALL)


def _reason(problem: BaseException) -> str:
    """What a failed encoding or decoding says, without the values it says it about."""
    if isinstance(problem, RecursionError):
        return "the value is nested too deeply, or contains itself"
    if isinstance(problem, msgspec.MsgspecError | TypeError | ValueError | NotImplementedError):
        return _QUOTED.sub(r"\1", str(problem))
    return f"{type(problem).__name__} while it was converted"


def fields_of(value: Any) -> list[str] | None:
    """The names of what a structured value holds, or None for any other value."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if (attributes := getattr(type(value), "__attrs_attrs__", None)) is not None:
        return [attribute.name for attribute in attributes]
    if is_model(type(value)):
        return [*vars(value), *(getattr(value, "__pydantic_extra__", None) or ())]
    return None


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield _step(key), item
    elif isinstance(value, list | tuple | set | frozenset):
        for position, item in enumerate(value):
            yield f"[{position}]", item
    else:
        for name in fields_of(value) or ():
            yield f".{name}", getattr(value, name, None)


def _step(key: object) -> str:
    """A dict's key as part of a path; keys that are no names may be anybody's data, and messages go to logs."""
    return f".{key}" if isinstance(key, str) and len(key) <= 40 and key.isidentifier() else "[...]"


def _culprit(value: Any) -> tuple[str, str] | None:
    """Where in a value the first thing is that cannot be stored, and why."""
    waiting = [("$", value, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return _FIRST_STEP.sub(r"\1", path), f"the value is nested deeper than {MAX_DEPTH} levels, or contains itself"
        if said := _problem(value):
            return path, said
        if isinstance(value, dict) and (said := next(filter(None, map(_problem, value)), None)):
            return path, f"a key is wrong: {said}"
        waiting += [(path + step, item, depth + 1) for step, item in _children(value)][::-1]
    return None


def _problem(value: Any) -> str | None:
    if isinstance(value, str):
        if "\0" in value:
            return "text must not contain a NUL character"
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            return "text must not contain a lone surrogate"
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{float(value)} is no JSON number"
    if isinstance(value, decimal.Decimal):
        return None if not value.is_nan() else f"Decimal('{value}') is no number"
    if isinstance(value, dict | list | tuple | set | frozenset) or fields_of(value) is not None:
        return None
    try:
        _encode(value)
    except Exception as problem:  # noqa: BLE001 - whatever it is, it becomes the message
        return _reason(problem)
    return None


def _equal(given: Any, kept: Any) -> bool:
    try:
        return bool(given == kept)
    except Exception:  # noqa: BLE001 - what cannot be compared is compared part by part
        return False


def _difference(given: Any, kept: Any, path: str, exact: bool) -> tuple[str, str] | None:
    """Where a value would come back as another one, and how; `exact` when not even a tuple may come back as a list."""
    if _equal(given, kept):
        return None
    if isinstance(given, datetime) and isinstance(kept, datetime):
        # Around a change of the clock Python calls equal moments of two zones unequal.
        if given.utcoffset() == kept.utcoffset() and given.replace(tzinfo=None) == kept.replace(tzinfo=None):
            return None
        return path, "this moment cannot be stored exactly: give it an offset of whole minutes"
    same = type(given) is type(kept)
    if same and isinstance(given, dict):
        if missing := [key for key in given if key not in kept]:
            return path + _step(missing[0]), "this key would not come back"
        pairs = [(_step(key), item, kept[key]) for key, item in given.items()]
    elif isinstance(given, list | tuple) and isinstance(kept, list | tuple) and len(given) == len(kept) and (same or not exact):
        pairs = [(f"[{position}]", *pair) for position, pair in enumerate(zip(given, kept, strict=True))]
    elif same and (names := fields_of(given)) is not None:
        pairs = [(f".{name}", getattr(given, name, None), getattr(kept, name, None)) for name in names]
    elif said := _problem(given):
        return path, said
    elif same:
        return path, "it would come back as another value"
    else:
        return path, f"Expected `{type(kept).__name__}`, got `{type(given).__name__}`"
    return next((found for step, one, other in pairs if (found := _difference(one, other, path + step, exact))), None)


def check_defaults(kind: type[msgspec.Struct], where: str) -> None:
    """Refuse fields whose default does not fit their type; raises `DeclarationError` naming the field."""
    for field in msgspec.structs.fields(kind):
        if field.required:
            continue
        codec: Codec[Any] = Codec(field.type, f"{where}.{field.name}")
        try:
            codec.encode(field.default if field.default is not msgspec.NODEFAULT else field.default_factory())
        except PayloadInvalid as problem:
            raise DeclarationError(f"{problem}: give it a default of its type") from problem


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def keep_unknown(stored: bytes, written: bytes, known: frozenset[str]) -> bytes:
    """An object as it is written in place of a stored one: with the fields of that one which this code does not know."""
    unknown = {name: raw for name, raw in _members(stored).items() if name not in known}
    return msgspec.json.encode({**_members(written), **unknown}) if unknown else written


def chain(steps: object, where: str) -> tuple[Upcast, ...]:
    """The steps of a migration chain; raises `DeclarationError` for what is none."""
    if not isinstance(steps, list | tuple) or not all(callable(step) for step in steps):
        raise DeclarationError(f"{where}: migrations is a list of functions, each taking and returning a mapping")
    return tuple(steps)


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
            raise PayloadInvalid(f"{where}: the migration from version {number} failed with {type(problem).__name__}") from problem
        if not isinstance(value, dict):
            raise PayloadInvalid(f"{where}: the migration from version {number} returned {type(value).__name__}, not a mapping")
    if found := _culprit(value):
        raise PayloadInvalid(f"{where}: a migration made what cannot be stored: {found[1]} - at `{found[0]}`")
    return _encode(value)
