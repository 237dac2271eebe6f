"""Every event is told once, in its source's order, whatever dies on the way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from shops import Branch, Customer, Node, Shop, Unwanted, Watcher, items, told

from akter import Actor, CommandId, Event, InvalidCommandId, command, subscription
from akter.following import Following
from akter.identity import address
from akter.testing import advance, crash_next, pause_next, receipts

LEASE = timedelta(seconds=38)
PATIENCE = 60.0


def place(node: Node, *names: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=list(names))


def watched(node: Node, *shops: str) -> None:
    for shop in shops:
        node.app.actor(Watcher, "w").watch(shop)
    node.runner.drain()


AGAIN = """UPDATE {akter}.actor_subscriptions SET delivered = 0, due_at_ms = 0 WHERE subscriber_type = :type"""
"""As after a restore, or a bug: the source's rows say that nothing was told yet."""

TAKE_AWAY = """WITH claimed AS (
    SELECT subscriber_type, subscription, subscriber_id FROM {akter}.actor_subscriptions WHERE due_at_ms IS NOT NULL
    ORDER BY subscriber_type, subscription, subscriber_id FOR UPDATE
) UPDATE {akter}.actor_subscriptions SET due_at_ms = 0, attempts = 0
WHERE (subscriber_type, subscription, subscriber_id) IN (SELECT * FROM claimed)"""
"""Locks the rows of one source in the order in which feeds lock them: otherwise the two may stop each other for good."""


@pytest.mark.conformance("SUB-09")
def test_what_was_applied_is_acknowledged_when_its_receipt_is_gone(shop: Node, beside: Any, followers: Callable[..., Any]) -> None:
    watched(shop, "s")
    place(shop, "kettle", "pot")
    shop.runner.drain()
    beside("DELETE FROM {akter}.actor_receipts")
    beside(AGAIN, type="Watcher")
    shop.runner.drain()
    assert told.times["watcher w", "s", "kettle"] == told.times["watcher w", "s", "pot"] == 1
    assert items(shop.app, Watcher, "w") == ["s:kettle", "s:pot"]
    assert followers("delivered", "due_at_ms") == [(2, None)]


@pytest.mark.conformance("SUB-10")
@pytest.mark.parametrize(("point", "runs"), [("before_commit", 2), ("after_commit", 1)])
def test_a_relay_that_dies_around_the_subscribers_commit_tells_it_once(shop: Node, point: Any, runs: int) -> None:
    watched(shop, "s")
    place(shop, "kettle", "pot")
    shop.runner.drain()
    told.clear()
    place(shop, "cup")
    crash_next(shop.app, point, command_id=_id_of(shop, 3, "w"))
    shop.runner.drain()
    advance(shop.app, LEASE, shop.runner)
    assert told.times["watcher w", "s", "cup"] == runs
    assert items(shop.app, Watcher, "w") == ["s:kettle", "s:pot", "s:cup"]


def _id_of(node: Node, position: int, watcher: str, source: str = "s", epoch: int = 1) -> str:
    """The unique end of the id of a delivery to a watcher."""
    of = Following(
        subscription="told",
        source=address("actor", "default", "Shop", source),
        epoch=epoch,
        kind="event",
        position=position,
        issued_at_ms=0,
        dynamic=True,
    )
    return of.command_id(address("actor", "default", "Watcher", watcher), 1).rpartition(".")[2]


@pytest.mark.conformance("SUB-11")
def test_a_stale_runner_below_the_cursor_changes_nothing(
    node: Callable[..., Node], start: Callable[..., Future[Any]], followers: Callable[..., Any]
) -> None:
    slow, quick = node(), node()
    watched(slow, "s")
    place(slow, "kettle")
    with pause_next(slow.app, "before_delivery", command_id=_id_of(slow, 1, "w")) as pause:
        held = start(slow.runner.drain)
        pause.wait()
        # Its lease runs out, and another runner goes past it; a pass of its own would claim it first.
        with slow.runner.relay._lock:
            advance(quick.app, LEASE)
            place(quick, "pot")
            quick.runner.drain()
            assert followers("delivered", "due_at_ms") == [(2, None)]
        pause.release()
        held.result(PATIENCE)
    assert items(slow.app, Watcher, "w") == ["s:kettle", "s:pot"]
    assert slow.runner.counts.stale > 0
    assert followers("delivered", "due_at_ms", "epoch", "active") == [(2, None, 1, True)]


@pytest.mark.conformance("SUB-12")
def test_a_declared_refusal_is_the_answer_to_its_event_and_the_next_one_follows(
    shop: Node, beside: Any, followers: Callable[..., Any]
) -> None:
    def refuse(who: str, source: str, item: str) -> None:
        if item == "pot":
            raise Unwanted(item=item)

    told.on_event = refuse
    watched(shop, "s")
    place(shop, "kettle", "pot", "cup")
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == ["s:kettle", "s:cup"]
    assert followers("delivered", "due_at_ms", "last_error") == [(3, None, None)]
    beside(AGAIN, type="Watcher")
    beside("UPDATE {akter}.actor_subscription_cursors SET applied = 0")
    shop.runner.drain()
    assert told.times["watcher w", "s", "pot"] == 1, "its receipt answers"
    assert items(shop.app, Watcher, "w") == ["s:kettle", "s:cup"]
    outcomes = [receipt.outcome for receipt in receipts(shop.app, shop.app.actor(Watcher, "w")) if receipt.command == "told"]
    assert len(outcomes) == 3


class Counted(Event, name="Counted"):
    """As it is written today."""

    number: int


class CountedLater(Event, name="Counted"):
    """As it is written after a deploy: a field more, with a default."""

    number: int
    unit: str = "piece"


class Counter(Actor, name="Counter"):
    """Publishes numbers."""

    @command
    def count(self, number: int) -> None:
        self.emit(Counted(number=number))


class Adder(Actor, name="Adder"):
    """Adds them up."""

    total: int = 0

    @subscription(Counted, to=lambda counted: "a")
    def add(self, counted: Counted) -> None:
        self.total += counted.number


class AdderLater(Actor, name="Adder"):
    """The same after the deploy."""

    total: int = 0

    @subscription(CountedLater, to=lambda counted: "a")
    def add(self, counted: CountedLater) -> None:
        self.total += counted.number


@pytest.mark.conformance("SUB-13")
def test_what_was_told_before_a_deploy_is_not_told_again_after_it(node: Callable[..., Node], beside: Any) -> None:
    before = node(Counter, Adder)
    before.app.actor(Counter, "c").count(5)
    before.runner.drain()
    after = node(Counter, AdderLater)
    beside(AGAIN, type="Adder")
    beside("UPDATE {akter}.actor_subscription_cursors SET applied = 0")
    after.runner.drain()
    assert beside("SELECT value->>'total' FROM {akter}.actor_state WHERE actor_type = 'Adder'") == [("5",)]
    assert beside("SELECT delivered, due_at_ms, last_error FROM {akter}.actor_subscriptions") == [(1, None, None)]


@pytest.mark.conformance("SUB-14")
def test_every_delivery_has_an_id_of_its_own(shop: Node, beside: Any) -> None:
    shop.app.actor(Watcher, "v").watch("s")
    watched(shop, "s", "t")
    place(shop, "kettle", "pot")
    place(shop, "kettle", shop="t")
    shop.runner.drain()
    shop.app.actor(Watcher, "w").watch("s", "start")
    shop.runner.drain()
    ids = [row[0] for row in beside("SELECT command_id FROM {akter}.actor_receipts WHERE caller_key LIKE '%subscription%'")]
    # Of three events: the two customers' and branches' and the books' of each, v's two, w's three, and w's two again.
    assert len(ids) == len(set(ids)) == 3 * 3 + 2 + 3 + 2
    assert {id.split(".")[3][14] for id in ids} == {"8"}


@pytest.mark.conformance("SUB-15")
def test_the_id_of_a_delivery_cannot_come_from_outside(shop: Node, beside: Any) -> None:
    place(shop, "kettle")
    shop.runner.drain()
    (id,) = [row[0] for row in beside("SELECT command_id FROM {akter}.actor_receipts WHERE command = 'ordered'")]
    with pytest.raises(InvalidCommandId):
        CommandId.parse(id)
    with shop.app.command_id(id):
        shop.app.actor(Watcher, "w").watch("s")
    assert beside("SELECT count(*) FROM {akter}.actor_receipts WHERE command_id = :id AND command = 'watch'", id=id) == [(0,)]


@pytest.mark.conformance("SUB-45")
def test_two_runners_that_tell_again_and_again_keep_the_order(
    node: Callable[..., Node], beside: Any, followers: Callable[..., Any]
) -> None:
    one, other = node(started=True, poll=0.05), node(started=True, poll=0.05)
    one.app.actor(Watcher, "w").watch("s")
    beside.until("the shop is followed", lambda: followers("active") == [(True,)])
    names = [f"item {number}" for number in range(20)]
    for name in names:
        place(one, name)
        # Every lease is taken away, so what is on its way is told by the other one, too.
        beside(TAKE_AWAY)
    for runner in (one.runner, other.runner):
        runner.wake()
    beside.until("all is told", lambda: items(one.app, Watcher, "w") == [f"s:{name}" for name in names])
    beside.until("and settled", lambda: followers("delivered") == [(20,)])
    beside.until("to the routed ones, too", lambda: items(one.app, Branch, "branch of s") == names)
    beside.until("all of them", lambda: len(items(one.app, Customer, "ada")) == 20)
    assert items(one.app, Customer, "ada") == [f"s:{number}:{name}" for number, name in enumerate(names, start=1)]


@pytest.mark.conformance("SUB-46")
def test_a_subscriber_that_only_another_process_knows_is_told_there(node: Callable[..., Node], beside: Any) -> None:
    publishing, following = node(Counter, started=True), node(Counter, Listener, started=True, poll=0.05)
    following.app.actor(Listener, "l").listen("c")
    beside.until("it is followed", lambda: beside.count("actor_subscription_tags") == 1)
    publishing.app.actor(Counter, "c").count(7)
    heard = "SELECT value->>'heard' FROM {akter}.actor_state WHERE actor_type = 'Listener'"
    beside.until("it is told", lambda: beside(heard) == [("7",)])


class Listener(Actor):
    """Follows a counter."""

    heard: int = 0

    @subscription(Counted)
    def counted(self, event: Counted) -> None:
        self.heard += event.number

    @command
    def listen(self, counter: str) -> None:
        self.subscribe(self.counted, self.actor(Counter, counter))
