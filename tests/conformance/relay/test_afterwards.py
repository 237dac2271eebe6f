"""A loop's thread delivers a message that was named, while another one goes on with the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from post import NEVER, Node, Sender, eventually, handled, letters, send_many

from akter.runner import lane
from akter.runner.loop import Loop

Make = Callable[..., Node]


class Passes:
    """A loop whose passes ask for something afterwards as often as they are told to."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.after: list[Callable[[], None]] = []
        self.loop = Loop("test-loop", self._work)
        self.loop.start()

    def _work(self) -> float:
        self.threads.append(threading.current_thread())
        if self.after:
            self.loop.afterwards(self.after.pop(0))
        return NEVER

    def next(self) -> threading.Thread:
        count = len(self.threads)
        self.loop.wake()
        eventually("a pass", lambda: len(self.threads) > count)
        return self.threads[-1]


@pytest.fixture
def passes() -> Iterator[Passes]:
    made = Passes()
    eventually("the first pass", lambda: len(made.threads) == 1)
    yield made
    made.loop.stop()
    assert made.loop.join(10)
    eventually("no thread is left", lambda: not [one for one in made.threads if one.is_alive()])


class Held:
    """Something that takes until it is let go."""

    def __init__(self) -> None:
        self.began, self.leave, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        self.leave.wait(30)
        self.ended.set()


def test_another_thread_goes_on_while_what_came_afterwards_is_done(passes: Passes) -> None:
    held = Held()
    passes.after.append(held)
    first = passes.next()
    assert held.began.wait(10)
    second = passes.next()
    assert second is not first
    assert passes.loop.alive
    assert (first.name, second.name) == ("test-loop", "test-loop")
    held.leave.set()
    assert held.ended.wait(10)
    assert passes.next() is second, "the first one is spare now"


def test_the_spare_thread_is_the_next_to_go_on_and_there_is_never_more_than_one(passes: Passes) -> None:
    held = [Held(), Held(), Held()]
    passes.after.extend(held)
    doing = []
    for one in held:
        doing.append(passes.next())
        assert one.began.wait(10)
    current = passes.next()
    assert len({*doing, current}) == 4
    for one in held:
        one.leave.set()
    eventually("one is spare, and two have ended", lambda: sum(one.is_alive() for one in doing) == 1)
    (spare,) = [one for one in doing if one.is_alive()]
    quick = Held()
    quick.leave.set()
    passes.after.append(quick)
    assert passes.next() is current
    assert quick.ended.wait(10)
    assert passes.next() is spare


def test_a_stop_waits_for_the_loop_and_not_for_what_came_afterwards(passes: Passes) -> None:
    held = Held()
    passes.after.append(held)
    first = passes.next()
    assert held.began.wait(10)
    passes.next()
    passes.loop.stop()
    assert passes.loop.join(10)
    assert first.is_alive()
    held.leave.set()
    first.join(10)
    assert not first.is_alive()


def test_a_loop_for_which_there_is_no_other_thread_goes_on_when_it_is_done(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    held.leave.set()
    passes.after.append(held)

    def refuse(loop: Loop) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Loop, "_start", refuse)
    first = passes.next()
    assert held.ended.wait(10)
    assert passes.next() is first


@pytest.mark.parametrize("how", ["from this process", "from another one"])
def test_a_message_that_takes_long_does_not_keep_others_waiting(node: Make, beside: Any, how: str) -> None:
    one = node(started=True, poll=NEVER, listen=True, lanes={"intents": 3})
    assert one.runner._listener is not None
    eventually("it listens", lambda: one.runner._listener.connected_once)  # type: ignore[union-attr]
    sender = one if how == "from this process" else node()
    leave = threading.Event()
    handled.on_take = lambda mailbox, letter: letter.startswith("slow") and leave.wait(30) and None
    send = sender.app.actor(Sender, "s").send_all
    for number in (1, 2):
        send([f"slow-{number}"], [f"box-{number}"])
        eventually("it runs", lambda number=number: handled.taken[f"slow-{number}"] == 1)
    send(["quick"], ["box-3"])
    eventually("it came past them", lambda: letters(one.app, "box-3") == ["quick"])
    send(["slow-3"], ["box-4"])
    eventually("it runs", lambda: handled.taken["slow-3"] == 1)
    send(["last"], ["box-5"])
    leave.set()
    eventually("all came", lambda: beside.count("actor_outbox") == 0)
    assert set(handled.taken.values()) == {1}
    one.runner.stop(grace=20)
    eventually("no thread is left", lambda: not [one for one in threading.enumerate() if one.name in ("akter-listen", "akter-relay")])


def at_rest(node: Make) -> Node:
    """A runner whose first look at everything is over: it would start what it finds in a thread of the lane."""
    one = node(started=True, poll=NEVER)
    eventually("it has looked", lambda: one.runner._loop.passed_at is not None)
    return one


def test_a_message_delivered_by_the_thread_that_claimed_it_is_inside_the_runner(node: Make) -> None:
    one = at_rest(node)
    said: list[str] = []

    def stop(mailbox: Any, letter: str) -> None:
        for refused in (one.runner.stop, one.runner.drain, one.runner.wait):
            with pytest.raises(Exception, match="inside"):
                refused()
        said.append(threading.current_thread().name)

    handled.on_take = stop
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    eventually("it was taken", lambda: letters(one.app, "m") == ["a"])
    assert said == ["akter-relay"]
    one.runner.stop()


def test_what_a_framework_looks_after_is_looked_after_in_that_thread_too(node: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one, looked = at_rest(node), list[str]()
    monkeypatch.setattr(lane, "after_work", [lambda: looked.append(threading.current_thread().name)])
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    eventually("it was looked after", lambda: looked == ["akter-relay"])


def test_a_stop_while_such_a_message_runs_waits_for_it(node: Make, beside: Any) -> None:
    one = node(started=True, poll=NEVER)
    leave = threading.Event()
    handled.on_take = lambda mailbox, letter: leave.wait(30) and None
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    eventually("it runs", lambda: handled.taken["a"] == 1)
    reports: list[Any] = []
    stopping = threading.Thread(target=lambda: reports.append(one.runner.stop(grace=20)))
    stopping.start()
    eventually("it claims no more", lambda: one.runner.relay._stopping)
    assert not reports
    leave.set()
    stopping.join(20)
    assert letters(one.app, "m") == ["a"]
    assert beside.count("actor_outbox") == 0


def test_a_message_claimed_as_the_runner_stops_is_given_back(node: Make, beside: Any) -> None:
    one = node()
    send_many(one.app, ["a"], ["m"])
    began = time.monotonic()
    found = beside("SELECT bucket, routing_key, intent_id, target_type FROM {akter}.actor_outbox")
    works: list[Callable[[], None]] = []
    from akter.named import Named

    one.runner.relay._look_by = float("inf")
    assert one.runner.relay.take([Named(*row) for row in found], works.append)
    assert (one.runner._lane.held, len(works)) == (1, 1)
    one.runner.relay.stop_claiming(5)
    works[0]()
    assert one.runner._lane.wait_idle(1.0)
    assert not handled.taken
    assert beside("SELECT attempts FROM {akter}.actor_outbox") == [(0,)]
    assert time.monotonic() - began < 30
