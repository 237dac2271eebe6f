"""The rows of schedules that a turn's commit brings along: those of an actor that may not have them yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from akter import caller as callers
from akter.caller import System
from akter.cron import Entry
from akter.definition import Definition
from akter.identity import Address
from akter.store import schedule
from akter.store.flight import Line
from akter.store.rows import key, parameters
from akter.store.wire import Statements

_MOST = 20_000
"""Actors remembered before the older half of them is forgotten."""

_LONG = 300.0
"""Seconds after which an actor is asked for again, so that a row somebody deleted comes back."""


class Planted(NamedTuple):
    """An actor of a type with schedules; `generation` is another one once it was reset."""

    definition: Definition
    address: Address
    generation: int


class Planting:
    """Remembers whose rows are there, so that most turns write nothing for them. `keep_ms`: how long a tick's receipt lives."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._seen: set[tuple[Address, int]] = set()
        self._before: set[tuple[Address, int]] = set()
        self._since, self._lock = time.monotonic(), threading.Lock()

    def missing(self, actors: Iterable[Planted]) -> list[Planted]:
        """Those whose rows nobody here saw lately, each once."""
        found: dict[tuple[Address, int], Planted] = {}
        for actor in actors:
            self._forget()
            name = (actor.address, actor.generation)
            if name not in self._seen and name not in self._before:
                found[name] = actor
        return list(found.values())

    def line(self, statements: Statements, actors: Sequence[Planted], now_ms: int) -> Line:
        """The statement that writes the rows that are missing; `now_ms` is at most the database's time."""
        rows = [row for actor in actors for row in _rows(actor, now_ms)]
        return Line(statements.get(schedule.plant), {"keep_ms": self._keep_ms, **parameters("tick_", rows, True)})

    def saw(self, actors: Iterable[Planted]) -> None:
        """Remember that the rows of these are committed."""
        with self._lock:
            self._seen.update((actor.address, actor.generation) for actor in actors)

    def _forget(self) -> None:
        """Forget those that were seen before the last time something was forgotten."""
        if len(self._seen) < _MOST and time.monotonic() - self._since < _LONG:
            return
        with self._lock:
            self._before, self._seen, self._since = self._seen, set(), time.monotonic()


def times(entry: Entry, now_ms: int) -> dict[str, int]:
    """The next time of a schedule and the one after it, as the statements take them."""
    first, second = entry.schedule.next_two(now_ms)
    return {"first_ms": first, "second_ms": second}


def _rows(actor: Planted, now_ms: int) -> Iterable[dict[str, Any]]:
    mine, caller = key(actor.address), callers.to_json(System("cron", actor.address))
    # In one order, so that two processes that write the same rows wait for each other and not for both.
    for name, entry in sorted(actor.definition.schedules.items()):
        yield {**mine, "timer_key": name, "command": entry.command.name, "payload": b"{}", "caller": caller, **times(entry, now_ms)}
