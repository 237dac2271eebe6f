"""Whom an event reaches, and from where on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shops import Books, Branch, Customer, Node, Placed, Shop, Unwanted, Watcher, items, state, told

from akter import Actor, Defect, Event, command, subscription


def place(node: Node, *names: str, shop: str = "s", customer: str = "ada") -> None:
    node.app.actor(Shop, shop).place(items=list(names), customer=customer)


@pytest.mark.conformance("SUB-01")
def test_an_event_reaches_the_actor_its_route_names_by_event_or_by_source(shop: Node) -> None:
    place(shop, "kettle", "pot", customer="ada")
    place(shop, "pan", customer="bob")
    place(shop, "cup", shop="t", customer="ada")
    shop.app.actor(Shop, "s").ship("kettle")
    shop.runner.drain()
    ada = items(shop.app, Customer, "ada")
    assert sorted(ada) == ["s:1:kettle", "s:2:pot", "t:1:cup"]
    assert ada.index("s:1:kettle") < ada.index("s:2:pot")
    assert items(shop.app, Customer, "bob") == ["s:3:pan"]
    assert items(shop.app, Branch, "branch of s") == ["kettle", "pot", "pan", "kettle"]
    assert items(shop.app, Branch, "branch of t") == ["cup"]


@pytest.mark.conformance("SUB-02")
def test_an_event_reaches_the_singleton(shop: Node) -> None:
    place(shop, "kettle")
    place(shop, "cup", shop="t")
    shop.runner.drain()
    assert sorted(items(shop.app, Books)) == ["cup", "kettle"]


@pytest.mark.conformance("SUB-03")
def test_from_now_on_what_was_before_is_not_told(shop: Node) -> None:
    place(shop, "before")
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "after", "later")
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == ["s:after", "s:later"]


@pytest.mark.conformance("SUB-04")
def test_from_the_start_all_of_a_source_is_told_that_publishes_nothing_more(shop: Node) -> None:
    names = [f"item {number}" for number in range(40)]
    place(shop, *names)
    shop.runner.drain()
    shop.app.actor(Watcher, "w").watch("s", "start")
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == [f"s:{name}" for name in names]


@pytest.mark.conformance("SUB-05")
def test_from_a_cursor_on_what_comes_after_it_is_told(shop: Node) -> None:
    place(shop, "one", "two", "three")
    cursor = shop.app.events(shop.app.actor(Shop, "s"), Placed, limit=2)[-1].cursor
    shop.app.actor(Watcher, "w").watch("s", cursor)
    shop.runner.drain()
    place(shop, "four")
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == ["s:three", "s:four"]


@pytest.mark.conformance("SUB-06")
def test_a_turn_that_fails_subscribes_to_nothing(shop: Node, beside: Any) -> None:
    watcher = shop.app.actor(Watcher, "w")
    with pytest.raises(Unwanted):
        watcher.watch_and_refuse("s")
    with pytest.raises(Defect):
        watcher.watch_and_break("s")
    assert (beside.count("actor_outbox"), beside.count("actor_subscription_cursors")) == (0, 0)


@pytest.mark.conformance("SUB-07")
def test_a_cursor_above_the_newest_event_is_rejected_and_leaves_nothing_that_follows(
    shop: Node, beside: Any, followers: Callable[..., Any], summary: Callable[[], Any]
) -> None:
    shop.app.actor(Watcher, "w").watch("s", "7")
    shop.runner.drain()
    assert state(shop.app, shop.app.actor(Watcher, "w"))["rejected"] == ["s:7"]
    assert followers("active", "epoch", "due_at_ms") == [(False, 1, None)]
    assert beside("SELECT epoch, active FROM {akter}.actor_subscription_cursors") == [(1, False)]
    place(shop, "kettle")
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == []
    assert ("s", "Placed") in summary(), "those that are routed follow it"
    assert beside("SELECT count(*) FROM {akter}.actor_outbox") == [(0,)]


class Opened(Event):
    """A kiosk was opened."""

    by: str


class Kiosk(Actor):
    """Exists from its opening on."""

    @command(creates=True)
    def open(self, by: str) -> None:
        self.emit(Opened(by=by))


class Passer(Actor):
    """Follows a kiosk."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Opened)
    def opened(self, event: Opened) -> None:
        self.items = [*self.items, event.by]

    @command
    def wait_for(self, kiosk: str) -> None:
        self.subscribe(self.opened, self.actor(Kiosk, kiosk))


@pytest.mark.conformance("SUB-08")
def test_an_actor_that_does_not_exist_yet_is_followed_from_its_creation_on(node: Callable[..., Node], beside: Any) -> None:
    street = node(Kiosk, Passer)
    street.app.actor(Passer, "p").wait_for("k")
    street.runner.drain()
    assert beside("SELECT created FROM {akter}.actor_generations WHERE actor_type = 'Kiosk'") == [(False,)]
    street.app.actor(Kiosk, "k").open("ada")
    street.runner.drain()
    assert items(street.app, Passer, "p") == ["ada"]


@pytest.mark.conformance("SUB-16")
def test_what_was_rolled_back_is_told_to_nobody(shop: Node, beside: Any) -> None:
    with pytest.raises(Unwanted):
        shop.app.actor(Shop, "s").place_and_refuse("kettle")
    with pytest.raises(Defect):
        shop.app.actor(Shop, "s").place_and_break("kettle")
    shop.runner.drain()
    assert (beside.count("actor_events"), beside.count("actor_outbox"), beside.count("actor_subscriptions")) == (0, 0, 0)
    assert told.order == []


@pytest.mark.conformance("SUB-22")
def test_sources_of_equal_ids_in_two_tenants_are_two(shop: Node) -> None:
    with shop.app.tenant("acme"):
        shop.app.actor(Watcher, "w").watch("s")
        shop.app.actor(Shop, "s").place(items=["acme's"])
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    with shop.app.tenant("acme"):
        shop.app.actor(Shop, "s").place(items=["more of acme's"])
    place(shop, "ours")
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == ["s:ours"]
    assert items(shop.app, Customer, "ada") == ["s:1:ours"]
    with shop.app.tenant("acme"):
        assert items(shop.app, Watcher, "w") == ["s:more of acme's"]
        assert items(shop.app, Customer, "ada") == ["s:1:acme's", "s:2:more of acme's"]
