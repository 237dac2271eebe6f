"""Subscribers whose handlers do not return: their threads are told, counted and shown as those of messages are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nodes import eventually
from shops import Node, Placed, Shop, Watcher, items, told

from akter import Actor, CursorRejected, command, subscription
from akter.operating import Operator
from akter.testing import pause_next

Make = Callable[..., Node]
LIMIT = {"execution": 0.3}
STUCK = "its handler has not returned within its time limit, and holds a thread of the runner "


@pytest.fixture
def leave() -> Iterator[threading.Event]:
    """Until it is set, a handler that is told of an item whose name begins with `stuck` does not return."""
    free = threading.Event()
    told.on_event = lambda who, source, item: item.startswith("stuck") and free.wait(60) and None
    yield free
    free.set()


def watched(node: Node, *names: str, shop: str = "s") -> None:
    for name in names:
        node.app.actor(Watcher, name).watch(shop)
    node.runner.drain()


def place(node: Node, item: str, shop: str = "s") -> None:
    node.app.actor(Shop, shop).place(items=[item])


def reasons(operator: Operator) -> list[str | None]:
    return [row.last_error for row in operator.lagging()]


def named(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    return [record for record in caplog.records if record.getMessage() == name]


def test_a_subscriber_past_its_limit_is_told_once_and_its_row_says_so(
    node: Make, leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(Shop, Watcher, heartbeat=0.05, app=LIMIT)
    operator = Operator(one.app.engine, schema=one.app.schema)
    watched(one, "w")
    one.runner.start()
    place(one, "stuck")
    one.runner.wake()
    eventually("its row says so", lambda: reasons(operator) == [STUCK + one.runner.label])
    eventually("it is counted", lambda: one.runner.overdue == 1)
    seen = one.runner._heartbeat.loop.passed_at
    eventually("it has looked again", lambda: one.runner._heartbeat.loop.passed_at != seen)
    (late,) = named(caplog, "relay.past_its_limit")
    assert (late.levelno, late.akter_subscription, late.akter_subscriber) == (logging.WARNING, "Watcher.told", "w")
    assert late.akter_thread.startswith("akter-subscription-")
    eventually("everybody knows", lambda: "threads in handlers past their time limit: 1" in operator.health().said)
    found = {one.name: (one.finding, one.remedy) for one in operator.findings()}
    kind = "hung runner" if one.runner.failed else "overdue"
    assert found[kind][0].startswith(f"the runner {one.runner.label}, subscription: ")
    assert "akter subscriptions list" in found[kind][1]
    leave.set()
    eventually("nothing is past its limit any more", lambda: one.runner.overdue == 0 and not one.runner.failed)


def test_of_those_that_share_a_transaction_the_one_that_hangs_is_named(
    node: Make, leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(Shop, Watcher, heartbeat=0.05, app={"execution": 1.0})
    operator = Operator(one.app.engine, schema=one.app.schema)
    watched(one, "a", "b", "c", "d")
    place(one, "kettle")
    one.runner.drain()
    told.on_event = lambda who, source, item: who == "watcher c" and leave.wait(60) and None
    place(one, "pot")
    one.runner.start()
    eventually("its row says so", lambda: STUCK + one.runner.label in reasons(operator))
    said = [(row.subscriber_id, row.last_error) for row in operator.lagging() if row.last_error]
    assert said == [("c", STUCK + one.runner.label)]
    assert {late.akter_subscriber for late in named(caplog, "relay.past_its_limit")} == {"c"}
    leave.set()


def test_a_runner_without_a_thread_left_for_subscribers_has_failed_and_says_when_one_waits(
    node: Make, leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(Shop, Watcher, heartbeat=0.05, lanes={"subscription": 1}, app=LIMIT)
    operator = Operator(one.app.engine, schema=one.app.schema)
    watched(one, "w", shop="s")
    watched(one, "v", shop="t")
    one.runner.start()
    place(one, "stuck")
    one.runner.wake()
    eventually("it is past its limit", lambda: one.runner.overdue == 1)
    assert one.runner.failed
    eventually("everybody knows", lambda: not operator.health().good)
    assert one.runner.hung == (), "nobody waits"
    operator.pause("subscription", "Watcher")
    place(one, "kettle", shop="t")
    one.runner.wake()
    eventually("it is due", lambda: len(operator.lagging()) == 2)
    seen = one.runner._heartbeat.loop.passed_at
    eventually("it has looked", lambda: one.runner._heartbeat.loop.passed_at not in (None, seen))
    assert one.runner.hung == (), "what is paused does not wait for a thread"
    operator.resume("subscription", "Watcher")
    eventually("one waits", lambda: one.runner.hung == ("subscription",))
    assert [(late.akter_family, late.akter_threads) for late in named(caplog, "relay.hung")] == [("subscription", 1)]
    leave.set()
    eventually("it is well again", lambda: not one.runner.failed and one.runner.hung == ())
    one.runner.wake()
    eventually("it works again", lambda: items(one.app, Watcher, "v") == ["t:kettle"])


def test_a_follower_whose_handler_hung_is_not_due_at_once_for_the_next_process(node: Make, beside: Any, leave: threading.Event) -> None:
    one = node(Shop, Watcher, heartbeat=0.05, app=LIMIT)
    watched(one, "w")
    one.runner.start()
    place(one, "stuck")
    one.runner.wake()
    eventually("it is past its limit", lambda: one.runner.overdue == 1)
    assert one.runner.abandon() == ("Shop/s to Watcher.told w",)
    (row,) = beside(
        "SELECT attempts, last_error, due_at_ms - floor(extract(epoch FROM clock_timestamp()) * 1000) FROM {akter}.actor_subscriptions"
    )
    assert row[:2] == (1, "Unavailable: its handler did not return within its time limit")
    assert row[2] <= 1000


class Reader(Actor):
    """Does not come back when it hears that there is no such cursor."""

    @subscription(Placed, source=Shop)
    def told(self, event: Placed | CursorRejected) -> None:
        if isinstance(event, CursorRejected):
            told(f"reader {self.id}", event.source, "stuck")

    @command
    def read(self, shop: str) -> None:
        self.subscribe(self.told, self.actor(Shop, shop), since="7")


def counted_as_hung(one: Node, beside: Any, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    """Wait until the only thread of the family `kind` is told, shown on its row and counted."""
    eventually("it is counted", lambda: one.runner.overdue == 1)
    assert one.runner.failed
    why = "SELECT last_error FROM {akter}.actor_outbox WHERE kind = :kind"
    eventually("its row says so", lambda: beside(why, kind=kind) == [(STUCK + one.runner.label,)])
    (late,) = named(caplog, "relay.past_its_limit")
    assert late.akter_thread.startswith(f"akter-{kind}-")
    assert [(hung.akter_family, hung.akter_threads) for hung in named(caplog, "relay.hung")] == [(kind, 1)]


def test_the_thread_of_a_feed_past_its_lease_is_counted_like_one_in_a_handler(
    node: Make, beside: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = node(Shop, Watcher, heartbeat=0.05, lanes={"feed": 1})
    watched(one, "w")
    place(one, "kettle")
    ((id,),) = beside("SELECT intent_id FROM {akter}.actor_outbox WHERE kind = 'feed'")
    with pause_next(one.app, "after_claim", command_id=id) as pause:
        one.runner.start()
        pause.wait()
        with monkeypatch.context() as late:
            late.setattr("akter.runner.handling.time", Later())
            counted_as_hung(one, beside, caplog, "feed")
        pause.release()
    eventually("it is well again", lambda: one.runner.overdue == 0 and not one.runner.failed)
    one.runner.wake()
    eventually("it is told", lambda: items(one.app, Watcher, "w") == ["s:kettle"])


class Later:
    """The clock that handlers are held against, an hour ahead."""

    def monotonic(self) -> float:
        return time.monotonic() + 3600.0


def test_the_thread_of_a_control_in_a_handler_past_its_limit_is_counted(
    node: Make, beside: Any, leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(Shop, Reader, heartbeat=0.05, lanes={"control": 1}, app=LIMIT)
    one.app.actor(Reader, "r").read("s")
    one.runner.start()
    one.runner.wake()
    counted_as_hung(one, beside, caplog, "control")
    leave.set()
    eventually("it is well again", lambda: one.runner.overdue == 0 and not one.runner.failed)
