"""Actors that are reset or deleted while they follow, or are followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shops import Customer, Node, Shop, Watcher, items, state, told

from akter.operating import Operator
from akter.schema_state import views_schema
from akter.testing import inspect

Rows = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def operator(shop: Node) -> Operator:
    return Operator(shop.app.engine, schema=shop.app.schema, by="ada")


def place(shop: Node, *names: str, at: str = "s") -> None:
    shop.app.actor(Shop, at).place(items=list(names))
    shop.runner.drain()


def follow(shop: Node, watcher: str = "w", at: str = "s") -> None:
    shop.app.actor(Watcher, watcher).watch(at)
    shop.runner.drain()


def test_a_deleted_actor_follows_no_more(shop: Node, operator: Operator, followers: Rows, summary: Callable[[], Any]) -> None:
    follow(shop)
    follow(shop, "other")
    place(shop, "a cup")
    assert items(shop.app, Watcher, "w") == ["s:a cup"]
    operator.delete("Watcher", "w")
    place(shop, "a plate")
    assert inspect(shop.app, shop.app.actor(Watcher, "w")).state is None
    assert items(shop.app, Watcher, "other") == ["s:a cup", "s:a plate"]
    assert followers("subscriber_id", "active") == [("other", True), ("w", False)]
    assert summary()["s", "Placed"] > 0
    follow(shop)
    place(shop, "a bowl")
    assert items(shop.app, Watcher, "w") == ["s:a bowl"]


def test_a_reset_actor_follows_on(shop: Node, operator: Operator) -> None:
    follow(shop)
    place(shop, "a cup")
    operator.reset("Watcher", "w")
    place(shop, "a plate")
    assert items(shop.app, Watcher, "w") == ["s:a plate"]


def test_those_that_follow_a_deleted_actor_are_told_one_gap(shop: Node, operator: Operator) -> None:
    follow(shop)
    place(shop, "a cup")
    shop.app.actor(Shop, "s").place(items=["never told", "neither"])
    operator.delete("Shop", "s")
    shop.runner.drain()
    place(shop, "a plate")
    found = state(shop.app, shop.app.actor(Watcher, "w"))
    assert (found["items"], found["gaps"]) == (["s:a cup", "s:a plate"], ["s:1-3"])


def test_an_event_that_is_routed_to_a_deleted_actor_begins_a_new_life(shop: Node, operator: Operator) -> None:
    place(shop, "a cup")
    assert items(shop.app, Customer, "ada") == ["s:1:a cup"]
    operator.delete("Customer", "ada")
    place(shop, "a plate")
    assert items(shop.app, Customer, "ada") == ["s:2:a plate"]


def test_a_life_tells_who_follows_and_whom(shop: Node, operator: Operator) -> None:
    follow(shop)
    place(shop, "a cup")
    (found,) = [row for row in operator.life("Shop", "s").followers if row["subscriber_type"] == "Watcher"]
    assert (found["subscriber_id"], found["subscription"], found["delivered"], found["active"]) == ("w", "told", 1, True)
    assert operator.life("Watcher", "w").follows == [
        {"subscription": "told", "source_type": "Shop", "source_id": "s", "active": True, "applied": 1}
    ]


@pytest.mark.conformance("OPS-09")
def test_who_lags_behind_and_why_is_seen(shop: Node, beside: Any, akter_schema: str) -> None:
    def refuse(who: str, _: str, item: str) -> None:
        if who == "watcher w":
            raise ValueError(f"{item} is too heavy")

    follow(shop)
    follow(shop, "other")
    told.on_event = refuse
    place(shop, "a piano", "a cup")
    asked = f"""SELECT type, id, subscriber_type, subscriber_id, behind, last_error FROM "{views_schema(akter_schema)}".subscriptions
        WHERE behind > 0 ORDER BY behind DESC"""
    ((*who, behind, why),) = beside(asked)
    assert (who, behind) == (["Shop", "s", "Watcher", "w"], 2)
    assert "a piano is too heavy" in why
