"""How Python values become the parameters of a statement: text, as PostgreSQL reads it."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

_NUL = "a text with a NUL cannot be stored"


def text(value: Any) -> bytes | None:
    """A parameter; raises `ValueError` for a text with a NUL."""
    write = _WRITERS.get(type(value))
    # Members of a str enum, and other subclasses.
    return _checked(str(value).encode()) if write is None else write(value)


def _checked(encoded: bytes) -> bytes:
    if b"\0" in encoded:
        # To libpq it would be the end of the text.
        raise ValueError(_NUL)
    return encoded


def _array(values: list[Any]) -> bytes:
    """An array's literal. A column of one type is joined and escaped as a whole: a turn may write thousands of rows."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return b"{%b}" % ",".join(map(str, values)).encode()
    if kinds == {NoneType}:
        return b"{%b}" % b",".join([b"NULL"] * len(values))
    if kinds == {str}:
        joined = "\0".join(values).encode()
    elif kinds == {bytes}:
        joined = b"\0".join(values)
    else:
        return b"{%b}" % b",".join(map(_element, values))
    if joined.count(b"\0") >= len(values):
        raise ValueError(_NUL)
    return b'{"%b"}' % joined.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\0", b'","')


_WRITERS: dict[type, Callable[[Any], bytes | None]] = {
    str: lambda value: _checked(value.encode()),
    int: lambda value: b"%d" % value,
    NoneType: lambda value: None,
    bool: lambda value: b"t" if value else b"f",
    bytes: _checked,
    list: _array,
}


def _element(value: Any) -> bytes:
    written = text(value)
    if written is None:
        return b"NULL"
    if isinstance(value, int):
        return written
    return b'"' + written.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
