"""Rows of the outbox that somebody named as due now: what a wake-up may carry, and a hint between processes too.

A name is a tip and nothing more: whoever hears it claims under the same conditions as ever, and what is named wrongly, twice or not at
all is found by the next look at everything that is due.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MOST = 16
"""Rows that one hint names; more of them are found sooner by looking."""

_LONGEST = 4000
"""Bytes of a hint, of which PostgreSQL carries 7999."""
_PLAIN = re.compile(r"[A-Za-z0-9_.$-]{1,600}")


class Named(NamedTuple):
    """One message: its key in the outbox, the type that it is for, and how its actor is routed, unless an older version named it."""

    bucket: int
    routing_key: int
    intent_id: str
    target_type: str
    target_key: int | None = None

    def __str__(self) -> str:
        return "/".join(str(part) for part in self if part is not None)


class Gathered:
    """What came in since it was last taken: rows, or more than can be named, which is everything that is due."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[Named, None] = {}
        self._everything = False

    def add(self, rows: Iterable[Named] = ()) -> None:
        """Add rows, or everything when there are none."""
        added = dict.fromkeys(rows)
        with self._lock:
            self._rows.update(added)
            if not added or len(self._rows) > MOST:
                self._everything = True

    @property
    def some(self) -> bool:
        """Whether there is anything."""
        return self._everything or bool(self._rows)

    def take(self) -> list[Named] | None:
        """Take it: the rows, none when nothing came in, and `None` when it is everything."""
        with self._lock:
            rows = None if self._everything else list(self._rows)
            self._rows, self._everything = {}, False
        return rows


def said(me: str, rows: Sequence[Named]) -> str:
    """What a hint says: who says it, and the rows, unless that is too long or would show an id of the application's own.

    Every role of the database may listen; ids that akter minted and names of types tell nobody anything.
    """
    if not rows or len(rows) > MOST or not all(_PLAIN.fullmatch(text) for row in rows for text in row[2:4]):
        return me
    text = " ".join((me, *map(str, rows)))
    return text if len(text) <= _LONGEST else me


def heard(text: str) -> tuple[str, list[Named]]:
    """Who says it, and the rows; none in the hint of an older version, or in one that nobody can read: it means everything."""
    me, *rows = text.split(" ")
    try:
        return me, [_row(row) for row in rows[:MOST]]
    except ValueError:
        return me, []


def _row(text: str) -> Named:
    parts = text.split("/")
    bucket, *keys = map(int, parts[:2] + parts[4:])
    if len(parts) not in (4, 5) or not all(map(_PLAIN.fullmatch, parts[2:4])):
        raise ValueError(text)
    if not -128 <= bucket < 128 or not all(-(2**63) <= key < 2**63 for key in keys):
        raise ValueError(text)
    return Named(bucket, keys[0], parts[2], parts[3], *keys[1:])
