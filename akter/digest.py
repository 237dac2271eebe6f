"""What two uses of one command id are compared by: a hash that depends on what the arguments say, not on how they are written."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from akter.codec import is_model, to_json

_SCALARS = frozenset({str, int, float, bool, type(None)})
_NONE = object()
_encode_sorted = msgspec.json.Encoder(enc_hook=to_json, order="sorted").encode


def payload_hash(arguments: Any) -> str:
    """SHA-256 of the arguments in canonical form: keys sorted, defaults omitted, so a new defaulted argument changes nothing."""
    return hashlib.sha256(_encode_sorted(_canonical(arguments))).hexdigest()


def _canonical(value: Any) -> Any:
    kind: Any = type(value)
    if kind in _SCALARS:
        return value
    plan = _plan(kind)
    if plan is None:
        return _unstructured(value)
    given = dict(plan.tag)
    for name, stored, default, encoded in plan.fields:
        item = getattr(value, name)
        if type(item) in _SCALARS:
            if type(item) is type(default) and item == default:
                continue
        else:
            item = _canonical(item)
            if encoded is not None and _encode_sorted(item) == encoded:
                continue
        given[stored] = item
    return given


def _unstructured(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_canonical(item) for item in value), key=_encode_sorted)
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False, exclude_defaults=True)
    return value


def _key(key: Any) -> str:
    """A dict's key as the text that is stored of it; sorting takes no other."""
    if type(key) is str:
        return key
    return str(next(iter(msgspec.to_builtins({key: None}, str_keys=True, enc_hook=to_json))))


class _Plan(NamedTuple):
    tag: dict[str, Any]
    """What tells classes of a union apart that have the same fields."""
    fields: list[tuple[str, str, Any, bytes | None]]
    """Attribute, stored name, default, and the default's canonical form."""


@lru_cache(maxsize=4096)
def _plan(kind: Hashable) -> _Plan | None:
    declared = _declared(kind)
    if declared is None:
        return None
    config = getattr(kind, "__struct_config__", None)
    tag: dict[str, Any] = {} if config is None or config.tag is None else {config.tag_field: config.tag}
    fields = [(name, stored, made, None if made is _NONE else _encode_sorted(_canonical(made))) for name, stored, made in declared]
    return _Plan(tag, fields)


def _declared(kind: Any) -> list[tuple[str, str, Any]] | None:
    """Attribute, stored name and default of every field of a structured class, or None for any other class."""
    if issubclass(kind, msgspec.Struct):
        absent = msgspec.NODEFAULT
        return [(each.name, each.encode_name, _made(each.default, each.default_factory, absent)) for each in msgspec.structs.fields(kind)]
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return [(each.name, each.name, _made(each.default, each.default_factory, missing)) for each in dataclasses.fields(kind)]
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [(each.name, each.name, _made_by_attrs(each.default)) for each in attributes]


def _made(default: Any, factory: Any, absent: object) -> Any:
    if factory is not absent:
        return factory()
    return _NONE if default is absent else default


def _made_by_attrs(default: Any) -> Any:
    if type(default).__name__ == "Factory":
        return _NONE if default.takes_self else default.factory()
    return _NONE if type(default).__name__ == "_Nothing" else default
