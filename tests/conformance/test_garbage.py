"""What a command leaves is gone when it is over: a collection of garbage holds the interpreter, and would come every few turns."""

from __future__ import annotations

from typing import Any, cast

import pytest
from collected import garbage
from sqlalchemy import text

from akter import Actor, Akter, command, query
from akter.seats import Caller


class Book(Actor):
    """Adds up."""

    sum: int = 0

    @command
    def add(self, amount: int) -> int:
        self.sum += amount
        return self.sum

    @command
    def tell(self) -> str:
        return self.send(self.actor(Book, "other").add, amount=1)

    @command(sql=True)
    def write(self) -> int:
        self.connection.execute(text("CREATE TEMPORARY TABLE IF NOT EXISTS words (word text)"))
        return int(self.connection.execute(text("SELECT count(*) FROM words")).scalar_one())

    @query
    def total(self) -> int:
        return self.sum


@pytest.mark.parametrize("name", ["add", "tell", "write", "total"])
def test_calls_leave_nothing_for_the_collector_of_garbage(akter_app: Any, name: str) -> None:
    app: Akter = akter_app(Book)
    book = app.actor(Book, "b")

    def work() -> None:
        for _ in range(5):
            getattr(book, name)(**({"amount": 1} if name == "add" else {}))

    work()
    assert garbage(work) == []


def test_the_test_would_see_a_cycle() -> None:
    def work() -> None:
        seat = Caller(cast(Any, None), 1.0, 1.0, shares=False)
        seat.next = seat

    assert garbage(work) == ["Caller"]
