"""What events cost on the wire: nothing more to emit, and one flight for each page that is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from akter import Actor, Event, command, query


class Said(Event):
    """Somebody said something."""

    word: str


class Speaker(Actor):
    """Says what it is told to."""

    words: int = 0

    @command
    def say(self, words: list[str]) -> int:
        self.words += len(words)
        for word in words:
            self.emit(Said(word=word))
        return self.words

    @command
    def repeat(self, pages: int) -> int:
        return sum(len(self.events(Said)) for _ in range(pages))

    @query
    def spoken(self, pages: int) -> int:
        return sum(len(self.events(Said)) for _ in range(pages))


@pytest.fixture
def app(through: Callable[..., Any]) -> Any:
    """An app on one connection, which has run each statement once."""
    app = through(Speaker, pool_size=1, hint=False)
    warm = app.actor(Speaker, "warm")
    warm.say(["hello"])
    warm.repeat(1)
    return app


@pytest.mark.parametrize("words", [1, 100])
def test_a_turn_that_emits_takes_two_flights_and_one_statement_more_however_many_events(app: Any, proxy: Any, words: int) -> None:
    with proxy.count() as seen:
        app.actor(Speaker, "warm").say(["x"] * words)
    assert (seen.flights, len(seen.statements)) == (2, 7)


@pytest.mark.parametrize("pages", [1, 3])
def test_each_page_that_a_handler_or_a_query_reads_is_one_flight(app: Any, proxy: Any, pages: int) -> None:
    with proxy.count() as seen:
        assert app.actor(Speaker, "warm").repeat(pages) == pages
    assert (seen.flights, len(seen.statements)) == (2 + pages, 6 + pages)
    with proxy.count() as seen:
        assert app.actor(Speaker, "warm").spoken(pages) == pages
    assert (seen.flights, len(seen.statements)) == (1 + pages, 1 + pages)
    with proxy.count() as seen:
        assert [entry.event for entry in app.events(app.actor(Speaker, "warm"), Said)] == [Said(word="hello")]
    assert (seen.flights, len(seen.statements)) == (1, 1)
