"""Beginning and ending to follow: the newest request wins, and what belonged to an older one is told no more."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from shops import Node, Placed, Shop, Watcher, items, state, told

from akter import Actor, command, subscription
from akter.following import Following
from akter.identity import address
from akter.testing import advance, crash_next, pause_next

LEASE = timedelta(seconds=38)
PATIENCE = 60.0


def place(node: Node, *names: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=list(names))


def told_as(position: int, epoch: int = 1) -> str:
    """The unique end of the id under which watcher w is told of an event of shop s."""
    of = Following(
        subscription="told",
        source=address("actor", "default", "Shop", "s"),
        epoch=epoch,
        kind="event",
        position=position,
        issued_at_ms=0,
        dynamic=True,
    )
    return of.command_id(address("actor", "default", "Watcher", "w"), 1).rpartition(".")[2]


CONTROL = "SELECT intent_id FROM {akter}.actor_outbox WHERE kind = 'control'"


@pytest.mark.conformance("SUB-25", "SUB-36")
def test_after_an_end_it_can_begin_again_even_from_the_start(
    shop: Node, followers: Callable[..., Any], summary: Callable[[], dict[tuple[str, str], int]]
) -> None:
    watcher = shop.app.actor(Watcher, "w")
    watcher.watch("s")
    shop.runner.drain()
    place(shop, "kettle")
    shop.runner.drain()
    before = summary()["s", "Placed"]
    watcher.forget("s")
    shop.runner.drain()
    assert followers("epoch", "active", "due_at_ms") == [(2, False, None)]
    assert summary()["s", "Placed"] == before - 1
    place(shop, "unheard")
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == ["s:kettle"]
    watcher.watch("s", "start")
    shop.runner.drain()
    assert followers("epoch", "active", "delivered", "due_at_ms") == [(3, True, 2, None)]
    assert summary()["s", "Placed"] == before
    assert items(shop.app, Watcher, "w") == ["s:kettle", "s:kettle", "s:unheard"]


@pytest.mark.conformance("SUB-26")
def test_beginning_again_above_the_newest_event_ends_it(
    shop: Node, followers: Callable[..., Any], summary: Callable[[], dict[tuple[str, str], int]]
) -> None:
    watcher = shop.app.actor(Watcher, "w")
    watcher.watch("s")
    place(shop, "kettle")
    shop.runner.drain()
    before = summary()["s", "Placed"]
    watcher.watch("s", "9")
    shop.runner.drain()
    assert followers("epoch", "active", "due_at_ms") == [(2, False, None)]
    assert state(shop.app, shop.app.actor(Watcher, "w"))["rejected"] == ["s:9"]
    assert summary()["s", "Placed"] == before - 1
    place(shop, "unheard")
    shop.runner.drain()
    assert "s:unheard" not in items(shop.app, Watcher, "w")


@pytest.mark.conformance("SUB-34")
def test_a_delivery_that_is_on_its_way_when_it_ends_is_not_handled(
    shop: Node, start: Callable[..., Future[Any]], followers: Callable[..., Any]
) -> None:
    watcher = shop.app.actor(Watcher, "w")
    watcher.watch("s")
    shop.runner.drain()
    place(shop, "kettle")
    with pause_next(shop.app, "before_delivery", command_id=told_as(1)) as pause:
        draining = start(shop.runner.drain)
        pause.wait()
        watcher.forget("s")
        pause.release()
        draining.result(PATIENCE)
    shop.runner.drain()
    assert told.times["watcher w", "s", "kettle"] == 0
    assert followers("epoch", "active", "due_at_ms") == [(2, False, None)]


class Once(Actor):
    """Follows a shop until it is told of something."""

    heard: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @subscription(Placed, source=Shop)
    def told(self, event: Placed) -> None:
        self.heard = [*self.heard, event.item]
        self.unsubscribe(self.told, self.actor(Shop, "s"))

    @command
    def begin(self) -> None:
        self.subscribe(self.told, self.actor(Shop, "s"))


@pytest.mark.conformance("SUB-34")
def test_one_that_ends_it_while_it_is_told_is_told_nothing_more(
    node: Callable[..., Node], beside: Any, followers: Callable[..., Any]
) -> None:
    one = node(Shop, Once)
    one.app.actor(Once, "o").begin()
    one.runner.drain()
    place(one, "kettle", "pot")
    one.runner.drain()
    place(one, "cup")
    one.runner.drain()
    assert beside("SELECT value->'heard' FROM {akter}.actor_state WHERE actor_type = 'Once'") == [(["kettle"],)]
    assert beside("SELECT epoch, active FROM {akter}.actor_subscription_cursors") == [(2, False)]
    assert followers("epoch", "active", "due_at_ms", type="Once") == [(2, False, None)]


@pytest.mark.conformance("SUB-35")
def test_the_newest_request_wins_when_an_older_one_arrives_late(
    node: Callable[..., Node], start: Callable[..., Future[Any]], beside: Any, followers: Callable[..., Any]
) -> None:
    slow, quick = node(), node()
    watcher = quick.app.actor(Watcher, "w")
    watcher.watch("s", "start")
    ((id,),) = beside(CONTROL)
    with pause_next(slow.app, "after_claim", command_id=id) as pause:
        draining = start(slow.runner.drain)
        pause.wait()
        watcher.forget("s")
        quick.runner.drain()
        assert followers("epoch", "active") == [(2, False)]
        pause.release()
        draining.result(PATIENCE)
    assert followers("epoch", "active") == [(2, False)]
    place(quick, "kettle")
    quick.runner.drain()
    assert items(quick.app, Watcher, "w") == []


@pytest.mark.conformance("SUB-37")
def test_a_late_settle_does_not_touch_a_newer_subscription(
    node: Callable[..., Node], start: Callable[..., Future[Any]], followers: Callable[..., Any], summary: Callable[[], Any]
) -> None:
    slow, quick = node(), node()
    slow.app.actor(Watcher, "w").watch("s")
    slow.runner.drain()
    place(slow, "one", "two")
    counted = summary()
    with pause_next(slow.app, "before_delivery", command_id=told_as(1)) as pause:
        draining = start(slow.runner.drain)
        pause.wait()
        quick.app.actor(Watcher, "w").watch("s", "start")
        quick.runner.drain()
        now = followers("epoch", "delivered", "due_at_ms", "attempts")
        assert now == [(2, 2, None, 0)]
        pause.release()
        draining.result(PATIENCE)
    assert followers("epoch", "delivered", "due_at_ms", "attempts") == now
    assert summary() == counted
    assert items(slow.app, Watcher, "w") == ["s:one", "s:two"]


@pytest.mark.conformance("SUB-38")
def test_a_request_that_is_applied_again_changes_nothing(
    shop: Node, beside: Any, followers: Callable[..., Any], summary: Callable[[], Any]
) -> None:
    place(shop, "before")
    shop.app.actor(Watcher, "w").watch("s", "start")
    ((id,),) = beside(CONTROL)
    crash_next(shop.app, "before_outbox_delete", command_id=id)
    shop.runner.drain()
    told.clear()
    place(shop, "kettle")
    shop.runner.drain()
    now = followers("epoch", "active", "delivered", "due_at_ms")
    assert now == [(1, True, 2, None)]
    counted = summary()
    advance(shop.app, LEASE, shop.runner)
    assert beside(CONTROL) == []
    assert followers("epoch", "active", "delivered", "due_at_ms") == now
    assert summary() == counted
    assert items(shop.app, Watcher, "w") == ["s:before", "s:kettle"]


@pytest.mark.conformance("SUB-39")
def test_a_request_whose_relay_died_is_applied_when_its_lease_is_over(shop: Node, beside: Any, followers: Callable[..., Any]) -> None:
    shop.app.actor(Watcher, "w").watch("s", "start")
    place(shop, "kettle")
    ((id,),) = beside(CONTROL)
    crash_next(shop.app, "after_claim", command_id=id)
    shop.runner.drain()
    assert followers("epoch") == []
    advance(shop.app, LEASE, shop.runner)
    assert followers("epoch", "active", "delivered") == [(1, True, 1)]
    assert items(shop.app, Watcher, "w") == ["s:kettle"]


@pytest.mark.conformance("SUB-43")
def test_the_summary_is_what_the_rows_say_after_every_change(shop: Node, summary: Callable[[], dict[tuple[str, str], int]]) -> None:
    watcher, other = shop.app.actor(Watcher, "w"), shop.app.actor(Watcher, "v")
    routed = {("s", "Placed"): 3, ("s", "Shipped"): 1}
    place(shop, "kettle")
    assert summary() == routed
    for act, more in [
        (lambda: watcher.watch("s"), 1),
        (lambda: other.watch("s", "start"), 2),
        (lambda: watcher.watch("s", "0"), 2),
        (lambda: watcher.forget("s"), 1),
        (lambda: watcher.forget("s"), 1),
        (lambda: other.watch("s", "99"), 0),
        (lambda: other.watch("s"), 1),
    ]:
        act()
        shop.runner.drain()
        assert summary() == {**routed, ("s", "Placed"): 3 + more}


@pytest.mark.conformance("SUB-44")
def test_the_summary_stays_right_when_many_begin_and_end_at_once(
    node: Callable[..., Node], start: Callable[..., Future[Any]], beside: Any, summary: Callable[[], dict[tuple[str, str], int]]
) -> None:
    nodes = [node(started=True, poll=0.05) for _ in range(2)]

    def come_and_go(number: int) -> None:
        watcher = nodes[number % 2].app.actor(Watcher, f"w {number}")
        for _ in range(3):
            watcher.watch("s", "start")
            place(nodes[number % 2], f"item of {number}")
            watcher.forget("s")
        if number % 3 == 0:
            watcher.watch("s")

    for each in [start(lambda number=number: come_and_go(number)) for number in range(8)]:
        each.result(60.0)
    beside.until("everything is applied", lambda: beside("SELECT count(*) FROM {akter}.actor_outbox") == [(0,)])
    assert summary() == {("s", "Placed"): 3 + 3, ("s", "Shipped"): 1}
