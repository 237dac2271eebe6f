"""Reading an actor's events: entries of one class after a cursor, oldest first, and never past what was committed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, NamedTuple, TypeVar, cast

from akter.errors import PayloadInvalid, RetentionGap, UnknownCursor
from akter.payload import Event, decode_event

E = TypeVar("E", bound=Event)

PAGE = 1_000
"""Entries of a page unless the reader says otherwise."""
LARGEST_PAGE = 10_000

_CURSOR = re.compile(r"0|[1-9][0-9]{0,17}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry(Generic[E]):
    """A committed event: `cursor` is where to go on reading after it, `command_id` the command that emitted it, as it is stored,
    `timestamp` when it was appended, by the database's clock."""

    cursor: str
    event: E
    command_id: str
    timestamp: datetime


class Asked(NamedTuple):
    """A page that somebody wants: the stored names of the class, the sequence after which it starts, the entries at most."""

    names: tuple[str, ...]
    after: int
    limit: int


class Kept(NamedTuple):
    """An event as it is stored."""

    sequence: int
    command_id: str
    value: bytes
    payload_version: int
    emitted_at_ms: int


class Page(NamedTuple):
    """What is stored: `head` is the newest committed sequence, `oldest` the first one, of any class, that is left after the cursor."""

    head: int
    oldest: int | None
    rows: Sequence[Kept]


def asked(kind: type[Event], after: str | None, limit: int) -> Asked:
    """Check what a reader asks for; raises `TypeError` for no event class, `UnknownCursor`, and `PayloadInvalid` for the limit."""
    if not isinstance(cast(object, kind), type) or not issubclass(kind, Event) or kind is Event:
        raise TypeError("events(...) takes the event class to read: self.events(OrderPlaced, after=cursor)")
    if isinstance(cast(object, limit), bool) or not isinstance(limit, int) or not 1 <= limit <= LARGEST_PAGE:
        raise PayloadInvalid(f"events(...): limit is a number from 1 to {LARGEST_PAGE}; the next page starts after the last entry's cursor")
    return Asked((kind.event_name, *kind.event_aliases), sequence_of(after), limit)


def sequence_of(cursor: str | None) -> int:
    """The sequence that a cursor stands for, zero for the start; raises `UnknownCursor` for what is none."""
    if cursor is None:
        return 0
    if not isinstance(cast(object, cursor), str) or not _CURSOR.fullmatch(cursor):
        raise UnknownCursor("this is no cursor: take the cursor of an entry, or event_cursor, as it is")
    return int(cursor)


def entries(kind: type[E], wanted: Asked, page: Page) -> list[Entry[E]]:
    """The entries of a page; raises `UnknownCursor`, `RetentionGap`, and `PayloadInvalid` for an event this code cannot read."""
    if wanted.after > page.head:
        raise UnknownCursor("this cursor is ahead of the actor's newest event: it belongs to another actor, or another database")
    if page.head > wanted.after and page.oldest != wanted.after + 1:
        resume = page.head if page.oldest is None else page.oldest - 1
        raise RetentionGap(after=str(wanted.after), resume_after=str(resume))
    return [
        Entry(
            str(kept.sequence),
            decode_event(kind, kept.value, kept.payload_version),
            kept.command_id,
            _EPOCH + timedelta(milliseconds=kept.emitted_at_ms),
        )
        for kept in page.rows
    ]
