"""Followers that share transactions: many are told at once, and what is one's own stays its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from shops import Node, Placed, Shop, Unwanted, Watcher, items, told
from sqlalchemy import text

from akter import Actor, command, subscription
from akter.following import Following
from akter.identity import address
from akter.runner.queued import Site
from akter.testing import advance, crash_next, pause_next

LEASE = timedelta(seconds=38)
PATIENCE = 60.0
CROWD = [f"w{number:02}" for number in range(24)]

TRANSACTIONS = "SELECT count(DISTINCT xmin::text) FROM {akter}.actor_receipts WHERE command = 'told'"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler counts as slow because the machine is busy."""
    monkeypatch.setattr("akter.pace.SLOW", 60.0)
    monkeypatch.setattr("akter.runner.group.SLOW", 60.0)


@pytest.fixture
def crowd(node: Callable[..., Node]) -> Node:
    """A process whose watchers follow the shop `s` and were seen to be quick: they share transactions."""
    one = node(Shop, Watcher)
    # Their rows lie the other way round than their names.
    for name in reversed(CROWD):
        one.app.actor(Watcher, name).watch("s")
    one.app.actor(Watcher, "first").watch("other")
    one.runner.drain()
    place(one, "warm", shop="other")
    one.runner.drain()
    told.clear()
    return one


def place(node: Node, *names: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=list(names))


def mark_the_other_way_round(crowd: Node, beside: Any) -> None:
    """Place a kettle and let all become due, to be claimed in the opposite order of their names."""
    place(crowd, "kettle")
    crowd.runner.relay.run_pass()
    beside.until("they are due", lambda: beside("SELECT count(due_at_ms) FROM {akter}.actor_subscriptions") == [(24,)])
    beside(
        """UPDATE {akter}.actor_subscriptions SET due_at_ms = due_at_ms - 1000 * substr(subscriber_id, 2)::int
        WHERE due_at_ms IS NOT NULL AND subscriber_id <> 'first'"""
    )


def heard(node: Node) -> dict[str, list[str]]:
    return {name: items(node.app, Watcher, name) for name in CROWD}


def all_heard(*names: str, but: str = "") -> dict[str, list[str]]:
    return {name: [f"s:{item}" for item in names] if name != but else [] for name in CROWD}


def fails(who: str, problem: BaseException) -> None:
    def on_event(name: str, source: str, item: str) -> None:
        if name == f"watcher {who}":
            raise problem

    told.on_event = on_event


def test_followers_that_are_told_one_event_share_transactions(crowd: Node, beside: Any, followers: Callable[..., Any]) -> None:
    place(crowd, "kettle")
    crowd.runner.drain()
    assert heard(crowd) == all_heard("kettle")
    # A claim of one bucket after the other may leave some to a second one.
    assert 1 < beside(TRANSACTIONS)[0][0] <= 6
    assert crowd.runner.counts.groups >= 1
    assert followers("delivered", "due_at_ms", "attempts", type="Watcher") == [(1, None, 0)] * 25


def test_each_of_them_is_told_everything_in_its_order(crowd: Node, beside: Any) -> None:
    names = [f"item {number}" for number in range(40)]
    before = crowd.runner.counts.delivered
    for start in range(0, 40, 8):
        place(crowd, *names[start : start + 8])
    crowd.runner.drain()
    assert heard(crowd) == all_heard(*names)
    assert set(told.times.values()) == {1}
    assert crowd.runner.counts.delivered - before == 24 * 40
    assert beside(TRANSACTIONS)[0][0] < 24 * 40 / 2


@pytest.mark.conformance("SUB-17")
def test_one_that_fails_waits_with_its_reason_and_the_others_are_told(crowd: Node, beside: Any, followers: Callable[..., Any]) -> None:
    fails("w07", ValueError("torn"))
    place(crowd, "kettle", "pot")
    crowd.runner.drain()
    assert heard(crowd) == all_heard("kettle", "pot", but="w07")
    behind = beside(
        "SELECT subscriber_id, delivered, last_error LIKE '%ValueError: torn' FROM {akter}.actor_subscriptions WHERE due_at_ms > 0"
    )
    assert behind == [("w07", 0, True)]
    told.on_event = lambda *_: None
    advance(crowd.app, timedelta(seconds=2), crowd.runner)
    assert heard(crowd) == all_heard("kettle", "pot")


@pytest.mark.conformance("SUB-12")
def test_one_that_refuses_has_its_answer_and_the_others_are_told(crowd: Node, beside: Any, followers: Callable[..., Any]) -> None:
    fails("w07", Unwanted(item="kettle"))
    place(crowd, "kettle")
    crowd.runner.drain()
    assert heard(crowd) == all_heard("kettle", but="w07")
    assert beside("SELECT count(*) FROM {akter}.actor_receipts WHERE command = 'told' AND outcome::text LIKE '%Unwanted%'") == [(1,)]
    assert followers("delivered", "due_at_ms", type="Watcher") == [(1, None)] * 25


def test_one_whose_actor_is_busy_holds_up_only_itself(
    crowd: Node, beside: Any, other_engine: sqlalchemy.Engine, akter_schema: str, start: Callable[..., Future[Any]]
) -> None:
    place(crowd, "kettle")
    with other_engine.begin() as busy:
        locked = f"""SELECT 1 FROM "{akter_schema}".actor_generations WHERE actor_id = 'w07' FOR NO KEY UPDATE"""
        busy.exec_driver_sql(locked)
        draining = start(crowd.runner.drain)
        beside.until("the others are told", lambda: heard(crowd) == all_heard("kettle", but="w07"))
    draining.result(PATIENCE)
    advance(crowd.app, timedelta(seconds=2), crowd.runner)
    assert heard(crowd) == all_heard("kettle")


@pytest.mark.conformance("SUB-10")
@pytest.mark.parametrize(("point", "runs"), [("before_commit", 2), ("after_commit", 1)])
def test_a_process_that_dies_around_their_commit_tells_each_of_them_once(crowd: Node, point: Any, runs: int) -> None:
    place(crowd, "kettle")
    crash_next(crowd.app, point)
    crowd.runner.drain()
    advance(crowd.app, LEASE, crowd.runner)
    assert heard(crowd) == all_heard("kettle")
    assert max(told.times.values()) == runs


@pytest.mark.conformance("SUB-11")
def test_a_stale_runner_with_many_of_them_changes_nothing(
    crowd: Node, node: Callable[..., Node], start: Callable[..., Future[Any]], followers: Callable[..., Any]
) -> None:
    quick = node(Shop, Watcher)
    place(crowd, "kettle")
    with pause_next(crowd.app, "before_delivery") as pause:
        held = start(crowd.runner.drain)
        pause.wait()
        # Their leases run out, and another runner goes past it.
        advance(quick.app, LEASE)
        place(quick, "pot")
        quick.runner.drain()
        pause.release()
        held.result(PATIENCE)
    quick.runner.drain()
    assert heard(quick) == all_heard("kettle", "pot")
    assert set(told.times.values()) == {1}
    assert followers("delivered", "due_at_ms", type="Watcher")[1:] == [(2, None)] * 24


@pytest.mark.conformance("SUB-34")
def test_one_that_ended_its_subscription_meanwhile_hears_nothing_more(
    crowd: Node, start: Callable[..., Future[Any]], beside: Any, summary: Callable[..., Any]
) -> None:
    place(crowd, "kettle")
    with pause_next(crowd.app, "before_delivery") as pause:
        held = start(crowd.runner.drain)
        pause.wait()
        crowd.app.actor(Watcher, "w07").forget("s")
        pause.release()
        held.result(PATIENCE)
    crowd.runner.drain()
    assert heard(crowd) == all_heard("kettle", but="w07")
    assert summary()["s", "Placed"] == 23


@pytest.mark.conformance("SUB-34")
def test_one_that_ended_its_subscription_is_ended_by_the_group_that_would_have_told_it(
    crowd: Node, start: Callable[..., Future[Any]], beside: Any, followers: Callable[..., Any], summary: Callable[..., Any]
) -> None:
    mark_the_other_way_round(crowd, beside)
    free = threading.Event()

    def hold_the_end(point: str, subject: Any) -> None:
        if point == "after_claim" and isinstance(subject, Site) and subject.address.actor_type == "Watcher":
            free.wait(PATIENCE)

    crowd.app.faults.watch(hold_the_end)
    try:
        # One of those that are claimed first, so it is not alone.
        with pause_next(crowd.app, "before_delivery", command_id=_told_as("w22")) as pause:
            draining = start(crowd.runner.drain)
            pause.wait()
            crowd.app.actor(Watcher, "w22").forget("s")
            pause.release()
            columns = ("subscriber_id", "epoch", "active", "due_at_ms")
            # Under the epoch that was told; the request to end it, which has the next one, is held.
            ended = [("w22", 1, False, None)]
            beside.until("it is ended", lambda: [row for row in followers(*columns) if not row[2]] == ended)
    finally:
        free.set()
    draining.result(PATIENCE)
    crowd.runner.drain()
    assert [row for row in followers(*columns) if not row[2]] == [("w22", 2, False, None)]
    assert heard(crowd) == all_heard("kettle", but="w22")
    assert summary()["s", "Placed"] == 23


def test_what_was_tried_before_does_not_share_again(crowd: Node, beside: Any) -> None:
    mark_the_other_way_round(crowd, beside)
    crash_next(crowd.app, "before_commit")
    crowd.runner.drain()
    waiting = "SELECT subscriber_id, attempts FROM {akter}.actor_subscriptions WHERE due_at_ms IS NOT NULL ORDER BY 1"
    died = beside(waiting)
    assert len(died) > 1
    assert {attempts for _, attempts in died} == {1}
    advance(crowd.app, LEASE, crowd.runner)
    assert heard(crowd) == all_heard("kettle")
    names = [name for name, _ in died]
    apart = "SELECT count(DISTINCT xmin::text), count(*) FROM {akter}.actor_receipts WHERE command = 'told' AND actor_id = ANY(:names)"
    assert beside(apart, names=names) == [(len(names), len(names))]
    assert max(told.times[f"watcher {name}", "s", "kettle"] for name in names) == 2


def test_one_that_wants_sql_of_its_own_is_told_alone_and_once(node: Callable[..., Node], beside: Any) -> None:
    one = node(Shop, Clerk)
    beside("CREATE TABLE written (clerk text, item text)")
    for name in CROWD:
        one.app.actor(Clerk, name).begin("s")
    one.runner.drain()
    for item in ("kettle", "pot", "written down", "cup"):
        place(one, item)
        one.runner.drain()
    assert beside("SELECT item, count(*), count(DISTINCT clerk) FROM written GROUP BY 1") == [("written down", 24, 24)]
    counted = "SELECT DISTINCT value->>'heard' FROM {akter}.actor_state WHERE actor_type = 'Clerk'"
    assert beside(counted) == [("4",)]


class Clerk(Actor):
    """Keeps one thing that it hears in a table of its own."""

    heard: int = 0

    @subscription(Placed, source=Shop)
    def told(self, event: Placed) -> None:
        self.heard += 1
        if event.item == "written down":
            self.connection.execute(text("INSERT INTO written VALUES (:clerk, :item)"), {"clerk": self.id, "item": event.item})

    @command
    def begin(self, shop: str) -> None:
        self.subscribe(self.told, self.actor(Shop, shop))


def _told_as(watcher: str) -> str:
    """The unique end of the id under which a watcher is told of the first event."""
    of = Following(
        subscription="told",
        source=address("actor", "default", "Shop", "s"),
        epoch=1,
        kind="event",
        position=1,
        issued_at_ms=0,
        dynamic=True,
    )
    return of.command_id(address("actor", "default", "Watcher", watcher), 1).rpartition(".")[2]


def test_their_rows_are_locked_in_the_order_of_their_names(
    crowd: Node, beside: Any, other_engine: sqlalchemy.Engine, akter_schema: str, start: Callable[..., Future[Any]]
) -> None:
    row = f"""SELECT 1 FROM "{akter_schema}".actor_subscriptions WHERE subscriber_id = '%s' FOR UPDATE NOWAIT"""
    mark_the_other_way_round(crowd, beside)
    # As a feed does that is marking them: it holds the first, and comes to the others.
    with pause_next(crowd.app, "before_delivery", command_id=_told_as("w00")) as pause:
        draining = start(crowd.runner.drain)
        pause.wait()
        with other_engine.begin() as feed:
            feed.exec_driver_sql(row % "w00")
            pause.release()
            beside.until_waiting()
            feed.exec_driver_sql(row % "w10")
    draining.result(PATIENCE)
    crowd.runner.drain()
    assert heard(crowd) == all_heard("kettle")
