"""Flights and statements of each operation, as they were committed: a change that adds one is seen here."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from akter import Actor, Event, Rejection, command, query

BASELINE = Path(__file__).parents[2] / "benchmarks" / "flights.json"


class Full(Rejection):
    """There is no room."""


class Counted(Event):
    """It was counted."""

    count: int


class Shelf(Actor):
    """Holds things."""

    things: int = 0

    @command
    def put(self, count: int = 1) -> int:
        self.things += count
        return self.things

    @command
    def refuse(self) -> None:
        raise Full

    @command
    def tell(self, count: int) -> None:
        for number in range(count):
            self.send(self.actor(Shelf, f"other-{number}").put, 1)

    @command
    def remind(self) -> None:
        self.after(timedelta(hours=1), key="k").send(self.put, 1)

    @command
    def record(self) -> None:
        self.emit(Counted(count=self.things))

    @command(sql=True)
    def write(self, count: int) -> None:
        for _ in range(count):
            self.connection.execute(text("SELECT 1"))

    @query
    def held(self) -> int:
        return self.things


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(Full):
        call()


def operations(app: Any) -> dict[str, Callable[[], Any]]:
    shelf = app.actor(Shelf, "warm")

    def again() -> None:
        with app.command_id("again"):
            shelf.put()

    return {
        "turn": shelf.put,
        "turn that changes nothing": lambda: shelf.put(0),
        "turn that is rejected": lambda: refused(shelf.refuse),
        "first turn of an actor": lambda: app.actor(Shelf, "new").put(),
        "replay of a receipt": again,
        "query": shelf.held,
        "turn with an event": shelf.record,
        "turn with a message": lambda: shelf.tell(1),
        "turn with 100 messages": lambda: shelf.tell(100),
        "turn with a timer that has a key": shelf.remind,
        "turn with 2 own statements": lambda: shelf.write(2),
        "message from outside": lambda: app.send(shelf.put, 1),
    }


def test_no_operation_takes_more_or_fewer_flights_and_statements_than_was_committed(
    through: Callable[..., Any], proxy: Any, observer: Any
) -> None:
    app = through(Shelf, pool_size=1, hint=False)
    found: dict[str, dict[str, int]] = {}
    for name, operation in operations(app).items():
        if name != "first turn of an actor":
            operation()
        with proxy.count() as seen:
            operation()
        found[name] = {"flights": seen.flights, "statements": len(seen.statements)}
    assert found == json.loads(BASELINE.read_text()), json.dumps(found, indent=2)
