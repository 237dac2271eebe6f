"""What cannot be told waits, with its reason, and holds back what is behind it in its row and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from shops import Books, Branch, Customer, Node, Shop, Watcher, items, told

from akter import Actor, Defect, Event, command, subscription
from akter.call import Call
from akter.caller import System
from akter.identity import address
from akter.member import Member as Admitting
from akter.store.wire import Wire
from akter.testing import advance
from akter.turn import Turn


def place(node: Node, *names: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=list(names))


def fail_at(which: str, who: str = "") -> None:
    def fail(name: str, source: str, item: str) -> None:
        if item == which and name.startswith(who):
            raise ValueError(f"{item} is torn")

    told.on_event = fail


WAITS = """SELECT source_id, subscription, last_error, delivered FROM {akter}.actor_subscriptions
    WHERE last_error IS NOT NULL ORDER BY 1, 2"""


@pytest.mark.conformance("SUB-17")
def test_an_event_that_fails_holds_back_its_own_source_and_no_other(shop: Node, beside: Any) -> None:
    fail_at("torn", "watcher")
    for source in ("s", "t"):
        shop.app.actor(Watcher, "w").watch(source)
    shop.runner.drain()
    place(shop, "one", "torn", "two")
    place(shop, "three", "four", shop="t")
    shop.runner.drain()
    assert sorted(items(shop.app, Watcher, "w")) == ["s:one", "t:four", "t:three"]
    assert beside(WAITS) == [("s", "told", "Defect: " + _defect("Watcher.told", "Watcher/w", "torn is torn"), 1)]
    told.on_event = lambda who, source, item: None
    advance(shop.app, timedelta(seconds=2), shop.runner)
    assert [item for item in items(shop.app, Watcher, "w") if item.startswith("s:")] == ["s:one", "s:torn", "s:two"]
    assert beside(WAITS) == []


def _defect(where: str, actor: str, said: str) -> str:
    return f"{where} of {actor} failed and nothing was saved: ValueError: {said}"


@pytest.mark.conformance("SUB-18")
def test_a_routed_event_that_fails_holds_back_its_own_subscription_only(shop: Node, beside: Any) -> None:
    fail_at("torn", "customer")
    place(shop, "torn", "two")
    shop.runner.drain()
    assert items(shop.app, Customer, "ada") == []
    assert items(shop.app, Branch, "branch of s") == ["torn", "two"]
    assert items(shop.app, Books) == ["torn", "two"]
    assert [row[:2] for row in beside(WAITS)] == [("s", "ordered")]


@pytest.mark.conformance("SUB-19")
def test_what_fails_waits_longer_each_time_up_to_the_longest_wait_and_says_why(node: Callable[..., Node], beside: Any) -> None:
    street = node(Shop, Customer, max_backoff=6.0)
    fail_at("torn", "customer")
    place(street, "torn")
    waited = []
    for _ in range(5):
        street.runner.drain()
        ((due_in, attempts, error),) = beside(
            """SELECT due_at_ms - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
                 - (SELECT clock_offset_ms FROM {akter}.actor_deployment), attempts, last_error
               FROM {akter}.actor_subscriptions WHERE subscription = 'ordered'"""
        )
        waited.append(due_in)
        assert attempts == len(waited)
        assert error == "Defect: " + _defect("Customer.ordered", "Customer/ada", "torn is torn")
        advance(street.app, timedelta(milliseconds=max(0, due_in) + 1))
    assert all(wait <= most for wait, most in zip(waited, [1000, 2000, 4000, 6000, 6000], strict=True))
    # Longer than the longest wait of two tries before; a slow machine looks at them late.
    assert all(wait > least for wait, least in zip(waited[2:], [1000, 2000, 4000], strict=True))
    assert told.times["customer ada", "s", "torn"] == 5


@pytest.mark.conformance("SUB-20")
def test_a_route_to_no_possible_id_waits(shop: Node, beside: Any) -> None:
    told.on_route = lambda placed: "" if placed.item == "torn" else placed.customer
    place(shop, "one", "torn", "two")
    shop.runner.drain()
    assert items(shop.app, Customer, "ada") == ["s:1:one"]
    assert beside(WAITS) == [("s", "ordered", "PayloadInvalid: what `to` of Customer.ordered returns must not be empty", 1)]
    told.on_route = lambda placed: placed.customer
    advance(shop.app, timedelta(seconds=2), shop.runner)
    assert items(shop.app, Customer, "ada") == ["s:1:one", "s:2:torn", "s:3:two"]


@pytest.mark.conformance("SUB-21")
def test_a_route_that_raises_waits(shop: Node, beside: Any) -> None:
    def lost(placed: Any) -> str:
        raise LookupError("nobody knows the customer")

    told.on_route = lost
    place(shop, "one")
    shop.runner.drain()
    assert items(shop.app, Customer, "ada") == []
    assert beside(WAITS) == [("s", "ordered", "LookupError: nobody knows the customer", 0)]
    told.on_route = lambda placed: placed.customer
    advance(shop.app, timedelta(seconds=2), shop.runner)
    assert items(shop.app, Customer, "ada") == ["s:1:one"]


@pytest.mark.conformance("SUB-23")
def test_only_akter_calls_what_follows(shop: Node, beside: Any) -> None:
    handle: Any = shop.app.actor(Watcher, "w")
    with pytest.raises(AttributeError, match=r"Watcher\.told is called by akter when an event is delivered, not on a handle"):
        _ = handle.told
    definition = shop.app.actors["Watcher"]
    where = address("actor", "default", "Watcher", "w")
    follows = definition.subscriptions["told"]
    # Even a call made by hand, in the name of the deployment, dies: nothing says which event it is.
    forged = Call(
        definition=definition,
        command=follows,
        address=where,
        id="u:me:forged",
        minted=None,
        arguments=(None, None),
        payload_hash="",
        caller=System("subscription", address("actor", "default", "Shop", "s")),
    )
    shop.app.verify()
    with Wire(shop.app.engine, shop.app.surroundings.statements) as wire:
        (found,) = Turn(wire, time.monotonic() + 10.0, shop.app.surroundings).admit([forged])
        with pytest.raises(Defect, match="follows events and is no command"):
            Admitting(forged, shop.app.surroundings).admit(found)
    # Nor does a message reach it, however it came into the outbox.
    beside(
        """INSERT INTO {akter}.actor_outbox (bucket, routing_key, tenant_id, actor_type, actor_id, intent_id, target_type, target_id,
             command, payload, caller, due_at_ms, scheduled_at_ms)
           VALUES (:bucket, :key, 'default', 'Watcher', 'w', 'forged', 'Watcher', 'w', 'told', '{}', '{"source":"subscription"}', 0, 0)""",
        bucket=where.bucket,
        key=where.routing_key,
    )
    shop.runner.drain()
    assert beside("SELECT attempts, last_error FROM {akter}.actor_outbox") == [
        (1, "UnknownActor: Watcher has no command 'told': keep its old name as an alias, @command(aliases=...)")
    ]
    assert beside.count("actor_receipts") == 0


class Rung(Event):
    """A bell rang."""

    number: int


class Bell(Actor):
    """Rings."""

    @command
    def ring(self, number: int) -> None:
        self.emit(Rung(number=number))


class Recluse(Actor, access=lambda access: access.member == "come"):
    """Lets nobody in who is not told of a bell."""

    heard: int = 0

    @subscription(Rung, to=lambda rung: "r")
    def rung(self, rung: Rung) -> None:
        self.heard += rung.number


@pytest.mark.conformance("SUB-24")
def test_what_was_published_arrives_as_the_systems_own_whoever_may_call(node: Callable[..., Node], beside: Any) -> None:
    street = node(Bell, Recluse)
    street.app.actor(Bell, "b").ring(3)
    street.runner.drain()
    assert beside("SELECT value->>'heard' FROM {akter}.actor_state WHERE actor_type = 'Recluse'") == [("3",)]
    assert beside("SELECT caller_key FROM {akter}.actor_receipts WHERE command = 'rung'") == [
        ('["System","subscription",["default","Bell","b"],null]',)
    ]


def test_a_subscriber_that_does_not_exist_is_passed_over(node: Callable[..., Node], beside: Any, caplog: Any) -> None:
    street = node(Bell, Member)
    street.app.actor(Bell, "b").ring(1)
    street.runner.drain()
    assert "subscription.not_created" in [record.message for record in caplog.records]
    street.app.actor(Member, "m").enrol()
    street.app.actor(Bell, "b").ring(2)
    street.runner.drain()
    assert beside("SELECT value->>'heard' FROM {akter}.actor_state WHERE actor_type = 'Member'") == [("2",)]


class Member(Actor):
    """Exists from its enrolment on."""

    heard: int = 0

    @command(creates=True)
    def enrol(self) -> None: ...

    @subscription(Rung, to=lambda rung: "m")
    def rung(self, rung: Rung) -> None:
        self.heard += rung.number


def test_a_stopped_runner_leaves_what_it_did_not_begin_to_others(node: Callable[..., Node]) -> None:
    one, other = node(started=True), node()
    place(one, *[f"item {number}" for number in range(40)])
    one.runner.stop()
    other.runner.drain()
    assert items(other.app, Branch, "branch of s") == [f"item {number}" for number in range(40)]
