"""Where the due index is long to look through from its beginning, most looks begin further on, and none misses anything for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from post import NEVER, Mailbox, Node, eventually, handled, send_many

from akter.identity import address
from akter.runner import floor
from akter.runner.floor import Floor
from akter.store.probing import EVER

Make = Callable[..., Node]


class Clock:
    """The local clock, as the test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(floor.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_first_look_is_from_the_beginning(clock: Clock) -> None:
    made = Floor()
    assert (made.reached, made.wait(), made.age_ms("intents")) == (True, 0.0, EVER)


def test_a_quick_look_is_always_from_the_beginning(clock: Clock) -> None:
    made = Floor()
    made.looked(clock.now, 0.049, {"intents": 0})
    assert (made.reached, made.wait()) == (True, 0.0)


def test_a_slow_look_is_repeated_when_twenty_times_as_long_have_passed(clock: Clock) -> None:
    made = Floor()
    made.looked(clock.now, 0.5, {"intents": 0})
    assert (made.reached, made.wait()) == (False, 10.0)
    clock.now += 9.0
    assert (made.reached, made.wait()) == (False, 1.0)
    clock.now += 1.0
    assert (made.reached, made.wait()) == (True, 0.0)


def test_what_takes_very_long_puts_the_next_look_from_the_beginning_off_for_ten_seconds_only(clock: Clock) -> None:
    made = Floor()
    made.looked(clock.now, 30.0, {"intents": 0})
    assert made.wait() == 10.0


def test_the_looks_between_begin_five_seconds_before_it_or_with_the_oldest_that_it_left(clock: Clock) -> None:
    made = Floor()
    began, clock.now = clock.now, clock.now + 0.5
    made.looked(began, 0.5, {"intents": 0, "jobs": 60_000})
    clock.now = began + 2.0
    # Each with a second for the way to the database.
    assert (made.age_ms("intents"), made.age_ms("jobs"), made.age_ms("feed")) == (8_000, 63_000, EVER)


class Ages:
    """From which age on each pass of a relay looked, by family."""

    def __init__(self, one: Node) -> None:
        self.seen: list[int] = []
        family = one.runner.relay.families[0]
        claim = family.claim

        def seen(probe: Any) -> Any:
            self.seen.append(probe.age_ms)
            return claim(probe)

        family.claim = seen  # type: ignore[method-assign]


def slow(one: Node, seconds: float = 3600.0) -> None:
    """As after a look that took long."""
    one.runner.relay._floor._next = time.monotonic() + seconds


def test_what_is_older_than_the_floor_waits_for_a_look_from_the_beginning(node: Make, beside: Any) -> None:
    one = node()
    relay = one.runner.relay
    send_many(one.app, ["a"])
    relay.run_pass()
    assert relay.wait_idle(20.0)
    send_many(one.app, ["b", "c"])
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms - 60000 WHERE payload LIKE '%b%'")
    assert relay.run_pass(whole=False).claimed == 1
    assert relay.wait_idle(20.0)
    assert handled.order == ["a", "c"]
    assert relay.run_pass().claimed == 1
    assert relay.wait_idle(20.0)
    assert handled.order == ["a", "c", "b"]


def test_a_loop_that_looks_from_further_on_comes_back_for_the_beginning(node: Make, beside: Any) -> None:
    one = node()
    relay, ages = one.runner.relay, Ages(one)
    assert relay._look() > NEVER / 2
    slow(one, 7.0)
    assert 6.0 < relay._look() <= 7.0
    slow(one, 0.0)
    assert relay._look() > NEVER / 2
    assert [age == EVER for age in ages.seen] == [True, False, True]


def test_a_backlog_is_worked_off_from_its_oldest_on(node: Make, beside: Any) -> None:
    one = node(lanes={"intents": 4})
    relay, ages = one.runner.relay, Ages(one)
    send_many(one.app, [f"{number}" for number in range(12)])
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms - 60000")
    slow(one)
    while relay.run_pass(whole=False).claimed:
        assert relay.wait_idle(20.0)
    assert len(handled.taken) == 12, "nobody has looked from the beginning yet, so there is no floor"
    send_many(one.app, [f"more-{number}" for number in range(12)])
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms - 60000")
    relay.run_pass()
    assert relay.wait_idle(20.0)
    ages.seen.clear()
    while relay.run_pass(whole=False).claimed:
        assert relay.wait_idle(20.0)
    assert len(handled.taken) == 24
    assert all(60_000 <= age < 120_000 for age in ages.seen)


def test_what_a_long_transaction_asked_for_is_found_while_looks_are_slow(node: Make, beside: Any) -> None:
    one = node(started=True, poll=NEVER)
    eventually("it has looked", lambda: one.runner._loop.passed_at is not None)
    slow(one, 0.5)
    with one.app.engine.begin() as connection:
        one.app.within(connection).send(one.app.actor(Mailbox, "m").take, "late")
        connection.exec_driver_sql(f'UPDATE "{one.app.schema}".actor_outbox SET due_at_ms = due_at_ms - 60000')
    one.runner.wake()
    eventually("it came", lambda: handled.taken["late"] == 1)


def test_a_family_whose_seats_are_full_before_the_last_range_gets_no_floor(node: Make, beside: Any) -> None:
    one = node(lanes={"intents": 2})
    relay = one.runner.relay
    halves = [(-128, -1), (0, 127)]
    relay._ranges.every = lambda: halves  # type: ignore[method-assign]
    boxes = [f"box-{number}" for number in range(60)]
    low = [box for box in boxes if address("actor", "default", "Mailbox", box).bucket < 0]
    high = [box for box in boxes if box not in low]
    send_many(one.app, [f"new-{number}" for number in range(8)], low[:8])
    send_many(one.app, ["old"], high[:1])
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms - 600000 WHERE payload LIKE '%old%'")
    slow(one)
    relay.run_pass()
    assert relay.wait_idle(20.0)
    while relay.run_pass(whole=False).claimed:
        assert relay.wait_idle(20.0)
    assert handled.taken["old"] == 1


def test_after_an_old_row_that_was_taken_the_next_look_begins_five_seconds_before(node: Make, beside: Any) -> None:
    one = node()
    relay, ages = one.runner.relay, Ages(one)
    send_many(one.app, ["a"])
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms - 60000")
    relay.run_pass()
    assert relay.wait_idle(20.0)
    relay.run_pass(whole=False)
    assert 6_000 <= ages.seen[-1] < 50_000
