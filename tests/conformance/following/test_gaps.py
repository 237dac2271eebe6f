"""Events that are gone before a follower was told of them: kept a while for it, and then told, or counted, as one gap."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from shops import Books, Branch, Customer, Node, Shop, Watcher, items, state, told

from akter.testing import advance, sweep

KEPT, HELD = timedelta(days=30), timedelta(days=7)
A_SECOND = timedelta(seconds=1)


def place(node: Node, *names: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=list(names))


def events(beside: Any) -> list[int]:
    return [row[0] for row in beside("SELECT sequence FROM {akter}.actor_events WHERE actor_id = 's' ORDER BY 1")]


def fail(who: str) -> None:
    def on_event(name: str, source: str, item: str) -> None:
        if name.startswith(who):
            raise ValueError(item)

    told.on_event = on_event


@pytest.mark.conformance("SUB-47")
def test_events_are_held_for_a_follower_that_was_not_told_and_then_go_as_one_gap(
    shop: Node, beside: Any, followers: Callable[..., Any]
) -> None:
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "before")
    shop.runner.drain()
    fail("watcher")
    place(shop, "one", "two")
    shop.runner.drain()
    advance(shop.app, KEPT + A_SECOND)
    sweep(shop.app)
    assert events(beside) == [2, 3], "what nobody waits for went"
    advance(shop.app, HELD)
    sweep(shop.app)
    assert events(beside) == []
    told.clear()
    place(shop, "after")
    shop.runner.drain()
    advance(shop.app, timedelta(seconds=300), shop.runner)
    assert state(shop.app, shop.app.actor(Watcher, "w"))["gaps"] == ["s:1-3"]
    assert items(shop.app, Watcher, "w") == ["s:before", "s:after"]
    assert followers("delivered", "due_at_ms", "gap_through") == [(4, None, None)]


@pytest.mark.conformance("SUB-47")
def test_pruning_what_does_not_concern_a_follower_is_no_gap_to_it(shop: Node, beside: Any, followers: Callable[..., Any]) -> None:
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    for _ in range(3):
        shop.app.actor(Shop, "s").paint("green")
    shop.runner.drain()
    advance(shop.app, KEPT + A_SECOND)
    sweep(shop.app)
    assert events(beside) == []
    assert followers("delivered") == [(3,)]
    place(shop, "after")
    shop.runner.drain()
    watcher = state(shop.app, shop.app.actor(Watcher, "w"))
    assert (watcher["gaps"], watcher["items"]) == ([], ["s:after"])


def test_events_are_held_for_followers_that_no_relay_has_marked_yet(shop: Node, beside: Any) -> None:
    place(shop, "one", "two")
    advance(shop.app, KEPT + A_SECOND)
    sweep(shop.app)
    assert events(beside) == [1, 2]
    shop.runner.drain()
    assert items(shop.app, Branch, "branch of s") == ["one", "two"]
    sweep(shop.app)
    assert events(beside) == []


@pytest.mark.conformance("SUB-47")
def test_events_that_go_before_a_feed_is_spread_are_one_gap_to_those_that_no_relay_has_marked(
    shop: Node, beside: Any, followers: Callable[..., Any]
) -> None:
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "one", "two")
    advance(shop.app, KEPT + HELD + A_SECOND)
    sweep(shop.app)
    assert events(beside) == []
    assert followers("delivered", "due_at_ms") == [(0, None)], "it was told of nothing yet, so it is not moved on"
    place(shop, "after")
    shop.runner.drain()
    assert state(shop.app, shop.app.actor(Watcher, "w"))["gaps"] == ["s:0-2"]
    assert items(shop.app, Watcher, "w") == ["s:after"]


@pytest.mark.conformance("SUB-48")
def test_from_the_start_of_a_pruned_history_the_gap_is_told_first(shop: Node, beside: Any) -> None:
    place(shop, "one", "two", "three")
    shop.runner.drain()
    beside("DELETE FROM {akter}.actor_events WHERE sequence <= 2")
    shop.app.actor(Watcher, "w").watch("s", "start")
    shop.runner.drain()
    assert [item for who, _, item in told.order if who == "watcher w"] == ["gap 0-2", "three"]
    beside("DELETE FROM {akter}.actor_events")
    shop.app.actor(Watcher, "v").watch("s", "start")
    shop.runner.drain()
    assert state(shop.app, shop.app.actor(Watcher, "v"))["gaps"] == ["s:0-3"], "even when nothing is left to be told"


@pytest.mark.conformance("SUB-49")
def test_a_gap_is_counted_where_no_event_says_whom_to_tell_and_told_to_a_singleton(shop: Node, beside: Any, caplog: Any) -> None:
    place(shop, "one")
    shop.runner.drain()
    place(shop, "two", "three")
    beside("DELETE FROM {akter}.actor_events WHERE sequence = 2")
    shop.runner.drain()
    assert items(shop.app, Customer, "ada") == ["s:1:one", "s:3:three"]
    assert beside("SELECT subscriber_type, gaps, delivered FROM {akter}.actor_subscriptions ORDER BY 1") == [
        ("Books", 0, 3),
        ("Branch", 1, 3),
        ("Customer", 1, 3),
    ]
    assert [record.message for record in caplog.records].count("subscription.gap") == 2
    assert state(shop.app, shop.app.actor(Books))["gaps"] == ["s:1-2"]
    assert items(shop.app, Books) == ["one", "three"]


@pytest.mark.conformance("SUB-50")
def test_a_gap_that_is_told_again_is_the_same_whatever_went_meanwhile(shop: Node, beside: Any, followers: Callable[..., Any]) -> None:
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "one", "two", "three", "four")
    beside("DELETE FROM {akter}.actor_events WHERE sequence <= 2")
    seen: list[str] = []

    def watch(point: str, call: Any) -> None:
        if point == "before_handler" and call.address.actor_type == "Watcher":
            seen.append(call.id)

    shop.app.faults.watch(watch)
    fail("watcher")
    shop.runner.drain()
    ((through, at),) = followers("gap_through", "gap_at_ms")
    assert through == 2
    beside("DELETE FROM {akter}.actor_events WHERE sequence = 3")
    told.on_event = lambda who, source, item: None
    advance(shop.app, timedelta(seconds=2), shop.runner)
    order = [item for who, _, item in told.order if who == "watcher w"]
    assert (set(order[:-2]), order[-2:]) == ({"gap 0-2"}, ["gap 2-3", "four"])
    assert len(order) >= 4
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3
    assert str(at) in seen[0]
    assert state(shop.app, shop.app.actor(Watcher, "w"))["gaps"] == ["s:0-2", "s:2-3"]
    assert followers("gap_through", "delivered", "due_at_ms") == [(None, 4, None)]
