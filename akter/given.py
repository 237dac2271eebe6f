"""What an operator gives to look for or to change: checked before it is asked of the database, which would answer in its own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from akter.errors import PayloadInvalid
from akter.identity import check_name

_LONGEST = 1_048_576
LARGEST_PAGE = 10_000


def texts(verb: str, **given: object) -> None:
    """Raise `PayloadInvalid`, naming `verb` and argument, for what is no text that PostgreSQL can hold; empty text is one."""
    for name, value in given.items():
        stored = getattr(getattr(value, "__akter__", None), "name", None)
        if isinstance(stored, str):
            raise PayloadInvalid(f"{verb}(...): {name} is the stored name of a class, not the class itself: say {stored!r}")
        if value != "":
            check_name(value, f"{verb}(...): {name}", _LONGEST)


def optional(verb: str, **given: object) -> None:
    """The same for arguments that may be left out, as None."""
    texts(verb, **{name: value for name, value in given.items() if value is not None})


def one_of(verb: str, name: str, value: object, known: Sequence[str]) -> None:
    """Raise `PayloadInvalid` for what is none of the known words."""
    if value not in known:
        raise PayloadInvalid(f"{verb}(...): {name} is one of {', '.join(known)}, not {value!r}")


def number(verb: str, name: str, value: object, least: int = 1, most: int = LARGEST_PAGE) -> None:
    """Raise `PayloadInvalid` for what is no whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PayloadInvalid(f"{verb}(...): {name} is a whole number from {least} to {most}, not {value!r}")


def is_cursor(value: object) -> bool:
    """Whether it is what a page of waiting rows ended with."""
    return isinstance(value, tuple) and [type(part) for part in cast(tuple[object, ...], value)] == [int, str, int, str]
