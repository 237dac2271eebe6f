"""The feed: one row for whatever an actor published, spread over those that follow without losing any."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from shops import Node, Shop, Watcher, items, told
from sqlalchemy import text

from akter.following import Following
from akter.identity import address
from akter.runner.single import transaction
from akter.store import feed, summary
from akter.store.flight import compile_core
from akter.testing import advance, crash_next, pause_next

LEASE = timedelta(seconds=38)
PATIENCE = 60.0


def place(node: Node, *names: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=list(names))


FEEDS = "SELECT actor_id, attempts, timer_key, target_type FROM {akter}.actor_outbox WHERE kind = 'feed' ORDER BY 1"


@pytest.mark.conformance("SUB-28")
def test_a_publishing_turn_leaves_one_feed_row_however_much_it_publishes_and_whoever_follows(shop: Node, beside: Any) -> None:
    place(shop, "one", "two", "three")
    assert beside(FEEDS) == [("s", 0, "$feed", "Shop")]
    place(shop, "four")
    assert beside(FEEDS) == [("s", 0, "$feed", "Shop")]
    place(shop, "five", shop="t")
    assert beside(FEEDS) == [("s", 0, "$feed", "Shop"), ("t", 0, "$feed", "Shop")]
    shop.runner.drain()
    assert beside(FEEDS) == []


@pytest.mark.conformance("SUB-29")
def test_what_nobody_follows_leaves_no_feed_row(shop: Node, beside: Any) -> None:
    shop.app.actor(Shop, "s").paint("green")
    assert (beside.count("actor_events"), beside.count("actor_outbox"), beside.count("actor_subscriptions")) == (1, 0, 0)
    place(shop, "kettle")
    shop.runner.drain()
    shop.app.actor(Shop, "s").paint("red")
    assert (beside.count("actor_events"), beside.count("actor_outbox")) == (3, 0)


@pytest.mark.conformance("SUB-27")
def test_a_feed_whose_relay_died_is_spread_when_its_lease_is_over(shop: Node, beside: Any) -> None:
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "kettle")
    ((id,),) = beside("SELECT intent_id FROM {akter}.actor_outbox WHERE kind = 'feed'")
    crash_next(shop.app, "after_claim", command_id=id)
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == []
    assert beside(FEEDS) == [("s", 1, "$feed", "Shop")]
    advance(shop.app, LEASE, shop.runner)
    assert items(shop.app, Watcher, "w") == ["s:kettle"]
    assert beside(FEEDS) == []


@pytest.mark.conformance("SUB-31")
def test_what_was_spread_is_told_without_waiting_for_a_poll(node: Callable[..., Node], beside: Any) -> None:
    street = node(started=True, poll=3600.0)
    street.app.actor(Watcher, "w").watch("s")
    beside.until(
        "it is followed", lambda: beside("SELECT 1 FROM {akter}.actor_subscriptions WHERE subscriber_id = 'w' AND active") == [(1,)]
    )
    place(street, "kettle")
    beside.until("it is told", lambda: items(street.app, Watcher, "w") == ["s:kettle"])


@pytest.mark.conformance("SUB-32")
def test_what_is_published_while_a_feed_is_spread_is_not_forgotten(shop: Node, start: Callable[..., Future[Any]], beside: Any) -> None:
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "kettle")
    ((id,),) = beside("SELECT intent_id FROM {akter}.actor_outbox WHERE kind = 'feed'")
    with pause_next(shop.app, "before_outbox_delete", command_id=id) as pause:
        draining = start(shop.runner.drain)
        pause.wait()
        place(shop, "pot")
        pause.release()
        draining.result(PATIENCE)
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == ["s:kettle", "s:pot"]
    assert beside(FEEDS) == []


@pytest.mark.conformance("SUB-32")
def test_what_is_marked_while_a_row_settles_makes_it_due_again(
    shop: Node, node: Callable[..., Node], start: Callable[..., Future[Any]], followers: Callable[..., Any]
) -> None:
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "kettle")
    with pause_next(shop.app, "before_commit", command_id=_id_of(shop)) as pause:
        draining = start(shop.runner.drain)
        pause.wait()
        # Read before, so its settle counts this one event as all there is; meanwhile another one is published and spread.
        place(shop, "pot")
        start(_spread, node()).result(PATIENCE)
        assert followers("delivered", "marked") == [(0, 2)]
        pause.release()
        draining.result(PATIENCE)
    shop.runner.drain()
    assert items(shop.app, Watcher, "w") == ["s:kettle", "s:pot"]
    assert followers("delivered", "marked", "due_at_ms") == [(2, 2, None)]


def _spread(node: Node) -> None:
    """Spread the shop's feed, and tell nobody."""
    with transaction(node.app.engine, node.app.schema) as connection:
        summary.mark(connection, address("actor", "default", "Shop", "s"), None)


def _id_of(node: Node) -> str:
    of = Following(
        subscription="told",
        source=address("actor", "default", "Shop", "s"),
        epoch=1,
        kind="event",
        position=1,
        issued_at_ms=0,
        dynamic=True,
    )
    return of.command_id(address("actor", "default", "Watcher", "w"), 1).rpartition(".")[2]


@pytest.mark.conformance("SUB-33")
def test_a_row_that_waits_for_its_next_try_is_not_hurried_by_what_comes_after(
    shop: Node, beside: Any, followers: Callable[..., Any]
) -> None:
    def fail(who: str, source: str, item: str) -> None:
        if who.startswith("watcher"):
            raise ValueError(item)

    told.on_event = fail
    shop.app.actor(Watcher, "w").watch("s")
    shop.runner.drain()
    place(shop, "kettle")
    shop.runner.drain()
    # So that no slow machine gets to the next try.
    beside("UPDATE {akter}.actor_subscriptions SET due_at_ms = due_at_ms + 600000 WHERE due_at_ms IS NOT NULL")
    ((due, marked),) = followers("due_at_ms", "marked")
    place(shop, "pot")
    shop.runner.drain()
    assert followers("due_at_ms", "marked") == [(due, 2)]
    assert marked == 1
    assert told.times["watcher w", "s", "pot"] == 0


@pytest.mark.conformance("SUB-30")
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_whether_anybody_follows_is_looked_up_by_key_among_many_summaries(shop: Node, beside: Any, akter_schema: str, mode: str) -> None:
    shop.app.verify()
    beside(
        """INSERT INTO {akter}.actor_subscription_tags
           SELECT (n::bigint << 40) >> 56, n::bigint << 40, 'default', 'Shop', 'shop ' || n, 'Placed', 1
           FROM generate_series(1, 100000) AS n"""
    )
    beside("ANALYZE {akter}.actor_subscription_tags")
    statement = compile_core(feed.publish(False), akter_schema)
    where = address("actor", "default", "Shop", "shop 5")
    row = {"bucket": where.bucket, "routing_key": where.routing_key, "tenant_id": "default", "actor_type": "Shop", "actor_id": "shop 5"}
    values: dict[str, Any] = {
        **{f"head_{name}": [value] for name, value in {**row, "count": 1}.items()},
        **{f"event_{name}": [value] for name, value in {**row, "event": "Placed", "command_id": "c", "value": "{}"}.items()},
        "event_payload_version": [0],
        "event_ord": [1],
        "feed_caller": "{}",
        "feed_bucket": where.bucket,
        "feed_routing_key": where.routing_key,
        "feed_tenant_id": "default",
        "feed_source_type": "Shop",
        "feed_source_id": "shop 5",
        "feed_events": ["Placed"],
    }
    with shop.app.engine.connect() as connection:
        connection.execute(text(f"SET LOCAL plan_cache_mode = {mode}"))
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor:
            cursor.execute(b"PREPARE publishing AS " + statement.sql)
            given = ", ".join(_literal(values[name]) for name in statement.parameters)
            cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE publishing ({given})")
            (plan,) = cursor.fetchone()
    nodes = list(_nodes((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"]))
    scans = [node for node in nodes if node.get("Relation Name") == "actor_subscription_tags"]
    assert [(node["Node Type"], node.get("Index Name")) for node in scans] == [("Index Only Scan", "actor_subscription_tags_pkey")]
    assert "event" in scans[0]["Index Cond"]


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "ARRAY[" + ", ".join(_literal(item) for item in value) + "]"
    return str(value) if isinstance(value, int) else f"'{value}'"


def _nodes(plan: dict[str, Any]) -> Any:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
