"""Calls that wait for one another, so that they share a transaction however busy the machine is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest
from sqlalchemy import text

from akter import Actor, Akter, Rejection, command
from akter.testing import pause_next

ENDLESS = 60.0
WAIT = 60.0

ran: list[str] = []
threads: dict[str, int] = {}
inside: dict[str, Callable[[], object]] = {}


class Refused(Rejection):
    """No."""

    seen: int


class Stock(Actor):
    """Counts pieces."""

    pieces: int = 0

    @command
    def add(self, pieces: int) -> int:
        ran.append(self.id)
        threads[self.id] = threading.get_ident()
        if self.id in inside:
            inside[self.id]()
        self.pieces += pieces
        return self.pieces

    @command
    def refuse(self) -> None:
        ran.append(self.id)
        raise Refused(seen=self.pieces)

    @command(sql=True)
    def count_rows(self) -> int:
        ran.append(self.id)
        return int(self.connection.execute(text("SELECT 7")).scalar_one())


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction at a time, and nobody is in a hurry."""
    monkeypatch.setattr("akter.seats.TOGETHER", 1)
    for limit in ("akter.seats.PATIENCE", "akter.group.PATIENCE", "akter.pace.SLOW"):
        monkeypatch.setattr(limit, ENDLESS)


def seen_quick(app: Akter, *kinds: type[Any]) -> None:
    """All commands of these actors were seen to be quick."""
    for kind in kinds:
        for member in kind.__akter__.members.values():
            app._turns._pace.saw(member, 0.0, used_sql=False)


def given(app: Akter, id: str, call: Callable[..., Any], *args: Any) -> Any:
    """Call under an id."""
    with app.command_id(id):
        return call(*args)


class Crowd:
    """Callers of one app. `in_the_way` is a quick command that holds the one transaction until all of them wait."""

    def __init__(self, app: Akter, start: Callable[..., Future[Any]], until: Callable[..., None], in_the_way: Callable[[], Any]) -> None:
        self.app, self._start, self._until, self._in_the_way, self._number = app, start, until, in_the_way, count()

    def together(self, *calls: Callable[[], Any]) -> list[Future[Any]]:
        """Let these calls wait in this order, and begin in one transaction, led by the first."""
        return self.behind(self._in_the_way, *calls)

    def behind(self, first: Callable[[], Any], *calls: Callable[[], Any]) -> list[Future[Any]]:
        """The same, behind a command of one's own."""
        id, found = f"in the way {next(self._number)}", list[Future[Any]]()
        with pause_next(self.app, "before_commit", command_id=id) as pause:
            held = self._start(given, self.app, id, first)
            pause.wait()
            for number, call in enumerate(calls, start=1):
                found.append(self._start(call))
                self._until(f"{number} calls wait", lambda number=number: len(self.app._turns._seats._waiting) >= number)
        held.result(WAIT)
        return found
