"""Events that older code emitted, told by newer code to those that follow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from shops import Node, items

from akter import Actor, Event, command, subscription
from akter.testing import advance


class Sown(Event, name="sown"):
    """What older code emits."""

    seed: str


class Planted(Event, name="planted", aliases=["sown"], migrations=[lambda old: {"seed": old["seed"], "rows": 1}]):
    """What the same fact is called since, and says."""

    seed: str
    rows: int


class Torn(Event, name="torn", aliases=["sown"], migrations=[lambda old: {"seed": old["missing"]}]):
    """A release whose step fails."""

    seed: str


class Field(Actor):
    """Publishes."""

    @command
    def sow(self, seed: str) -> None:
        self.emit(Sown(seed=seed))


class Newer(Actor, name="Field"):
    """Publishes the newer event."""

    @command
    def plant(self, seed: str, rows: int) -> None:
        self.emit(Planted(seed=seed, rows=rows))


class Barn(Actor):
    """The first release of what follows."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Sown, source=Field, to=lambda event: "barn")
    def told(self, event: Sown) -> None:
        self.items = [*self.items, event.seed]


class Later(Actor, name="Barn"):
    """The second release."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Planted, source=Newer, to=lambda event: "barn")
    def told(self, event: Planted) -> None:
        self.items = [*self.items, f"{event.seed}*{event.rows}"]


class Failing(Actor, name="Barn"):
    """A release that cannot read what was sown."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Torn, source=Newer, to=lambda event: "barn")
    def told(self, event: Torn) -> None:
        self.items = [*self.items, event.seed]


@pytest.mark.conformance("EVO-03")
def test_events_of_older_code_are_delivered_as_their_class_is_now_in_their_order(node: Callable[..., Node]) -> None:
    old, new = node(Field, Barn), node(Newer, Later)
    old.app.actor(Field, "f").sow("rye")
    old.runner.drain()
    old.app.actor(Field, "f").sow("oat")
    new.app.actor(Newer, "f").plant("wheat", 3)
    new.runner.drain()
    assert items(new.app, Later, "barn") == ["rye", "oat*1", "wheat*3"]


@pytest.mark.conformance("EVO-07")
def test_an_event_whose_step_fails_is_not_skipped_and_the_one_behind_it_waits(node: Callable[..., Node], beside: Any) -> None:
    old = node(Field, Barn)
    old.app.actor(Field, "f").sow("rye")
    old.app.actor(Field, "f").sow("oat")
    failing = node(Newer, Failing)
    failing.runner.drain()
    ((delivered, attempts, error),) = beside("SELECT delivered, attempts, last_error FROM {akter}.actor_subscriptions")
    assert (delivered, attempts) == (0, 1)
    assert "the migration from version 0 failed with KeyError" in error
    assert items(failing.app, Failing, "barn") == []
    mended = node(Newer, Later)
    advance(mended.app, timedelta(minutes=5), mended.runner)
    assert items(mended.app, Later, "barn") == ["rye*1", "oat*1"]
