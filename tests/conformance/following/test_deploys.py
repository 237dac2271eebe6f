"""What a deploy changes of who follows what, while older processes still run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from shops import EVERYBODY, Branch, Customer, Node, Shop, Watcher, items

from akter import Actor, DeploymentMismatch, Event, command, subscription
from akter.testing import advance


class Baked(Event):
    """A loaf was baked."""

    loaf: str


class Burnt(Event):
    """A loaf was burnt."""

    loaf: str


class Bakery(Actor):
    """Bakes."""

    @command
    def bake(self, loaf: str) -> None:
        self.emit(Baked(loaf=loaf))

    @command
    def burn(self, loaf: str) -> None:
        self.emit(Burnt(loaf=loaf))


class Before(Actor, name="Follower"):
    """Follows what is baked."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Baked, source=Bakery, to=lambda event: "f")
    def happened(self, event: Baked) -> None:
        self.items = [*self.items, event.loaf]


class After(Actor, name="Follower"):
    """Follows what is burnt, too."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Baked, Burnt, source=Bakery, to=lambda event: "f")
    def happened(self, event: Baked | Burnt) -> None:
        self.items = [*self.items, event.loaf]


ROWS = "SELECT events, delivered, due_at_ms IS NULL FROM {akter}.actor_subscriptions"


@pytest.mark.conformance("SUB-40")
def test_a_class_that_a_deploy_adds_is_told_and_an_older_process_takes_none_away(
    node: Callable[..., Node], beside: Any, summary: Callable[[], Any]
) -> None:
    old = node(Bakery, Before)
    old.app.actor(Bakery, "b").bake("rye")
    old.runner.drain()
    assert beside(ROWS) == [(["Baked"], 1, True)]
    new = node(Bakery, After)
    new.app.actor(Bakery, "b").burn("wheat")
    new.runner.drain()
    assert beside(ROWS) == [(["Baked", "Burnt"], 2, True)]
    assert summary() == {("b", "Baked"): 1, ("b", "Burnt"): 1}
    old.app.actor(Bakery, "b").bake("oat")
    old.app.actor(Bakery, "b").burn("spelt")
    assert summary() == {("b", "Baked"): 1, ("b", "Burnt"): 1}
    new.runner.drain()
    assert items(new.app, After, "f") == ["rye", "wheat", "oat", "spelt"]


class AskedBefore(Actor, name="Asking"):
    """Asks for what is baked."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Baked)
    def happened(self, event: Baked) -> None:
        self.items = [*self.items, event.loaf]

    @command
    def ask(self, bakery: str) -> None:
        self.subscribe(self.happened, self.actor(Bakery, bakery))


class AskedAfter(Actor, name="Asking"):
    """Hears of what is burnt, too."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Baked, Burnt)
    def happened(self, event: Baked | Burnt) -> None:
        self.items = [*self.items, event.loaf]


class AskedNoMore(Actor, name="Asking"):
    """Follows nothing any more."""

    items: list[str] = []  # noqa: RUF012


@pytest.mark.conformance("SUB-40")
def test_those_that_asked_follow_an_added_class_once_a_runner_of_the_new_code_starts(
    node: Callable[..., Node], beside: Any, summary: Callable[[], Any]
) -> None:
    old = node(Bakery, AskedBefore)
    old.app.actor(AskedBefore, "a").ask("b")
    old.runner.drain()
    old.app.actor(Bakery, "b").bake("rye")
    old.runner.drain()
    assert beside(ROWS) == [(["Baked"], 1, True)]
    new = node(Bakery, AskedAfter)
    new.runner.drain()
    assert beside(ROWS) == [(["Baked", "Burnt"], 1, True)]
    assert summary() == {("b", "Baked"): 1, ("b", "Burnt"): 1}
    old.app.actor(Bakery, "b").burn("wheat")
    old.runner.drain()
    new.runner.drain()
    assert items(new.app, AskedAfter, "a") == ["rye", "wheat"]
    node(Bakery, AskedBefore).runner.drain()
    assert beside(ROWS) == [(["Baked", "Burnt"], 2, True)], "an older process takes nothing away"


def test_rows_of_a_subscription_that_left_the_code_end_when_they_are_due_for_a_day(
    node: Callable[..., Node], beside: Any, summary: Callable[[], Any]
) -> None:
    old = node(Bakery, AskedBefore)
    old.app.actor(AskedBefore, "a").ask("b")
    old.runner.drain()
    old.app.actor(Bakery, "b").bake("rye")
    node(Bakery, AskedNoMore).runner.drain()
    assert beside("SELECT active, due_at_ms IS NULL FROM {akter}.actor_subscriptions") == [(True, False)]
    advance(old.app, timedelta(days=1, seconds=1))
    node(Bakery, AskedNoMore).runner.drain()
    assert beside("SELECT active, due_at_ms IS NULL FROM {akter}.actor_subscriptions") == [(False, True)]
    assert summary() == {}


@pytest.mark.conformance("SUB-41")
def test_a_row_with_a_class_that_a_process_does_not_know_waits_for_one_that_does(node: Callable[..., Node], beside: Any) -> None:
    old, new = node(Bakery, Before), node(Bakery, After)
    new.app.actor(Bakery, "b").burn("wheat")
    old.runner.drain()
    assert beside("SELECT attempts, due_at_ms IS NULL, delivered FROM {akter}.actor_subscriptions") == [(0, False, 0)]
    new.runner.drain()
    assert items(new.app, After, "f") == ["wheat"]


@pytest.mark.conformance("SUB-42")
def test_a_process_that_publishes_without_a_type_that_follows_does_not_start(node: Callable[..., Node], beside: Any) -> None:
    complete = node()
    complete.app.verify()
    lacking = node(Shop, Customer, Watcher)
    with pytest.raises(DeploymentMismatch, match=r"Shop is followed by Branch\.happened, and this process does not register Branch"):
        lacking.app.verify()
    # One that does not publish may do without, and what follows everybody is followed by whoever publishes.
    beside("DELETE FROM {akter}.actor_routed_subscriptions WHERE subscriber_type = 'Branch'")
    other = node(Shop, Customer, Watcher)
    other.app.actor(Shop, "s").place(items=["kettle"])
    beside.until("Books are told", lambda: complete.runner.drain() is None and beside(BOOKED) == [('["kettle"]',)])


BOOKED = "SELECT value->>'items' FROM {akter}.actor_state WHERE actor_type = 'Books'"


def test_a_subscription_that_left_the_code_does_not_keep_processes_from_starting(node: Callable[..., Node], beside: Any) -> None:
    node().app.verify()

    class Plain(Actor, name="Branch"):
        """Follows nothing any more."""

    without = node(*(kind for kind in EVERYBODY if kind is not Branch), Plain)
    without.app.verify()
    assert beside("SELECT subscriber_type FROM {akter}.actor_routed_subscriptions ORDER BY 1") == [("Books",), ("Customer",)]
