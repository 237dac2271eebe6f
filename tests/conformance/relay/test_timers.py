"""Timers fire at their time, whatever the poll: the relay wakes at the earliest due time that it knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from post import NEVER, Mailbox, Node, Sender, eventually, handled, letters
from test_claim_plans import FILL, MODES, Plan, nodes_of

from akter.runner import timers
from akter.runner.loop import Loop
from akter.runner.timers import Timers
from akter.store import probing
from akter.store.flight import compile_core

Make = Callable[..., Node]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(timers, "time", found)
    return found


def started(node: Make) -> Node:
    """A runner that polls once an hour, and has looked once."""
    one = node(started=True, poll=NEVER)
    eventually("it has looked", lambda: one.runner._loop.passed_at is not None)
    return one


def test_timers_of_this_process_fire_between_polls_one_after_the_other(node: Make) -> None:
    one = started(node)
    one.app.actor(Sender, "s").send_all(["second"], ["m"], after_ms=600)
    one.app.actor(Sender, "s").send_all(["first"], ["m"], after_ms=200)
    eventually("both fired", lambda: letters(one.app, "m") == ["first", "second"])


def test_a_timer_for_a_moment_fires_between_polls_whoever_staged_it(node: Make) -> None:
    one = started(node)
    with one.app.engine.begin() as connection:
        staging = one.app.within(connection)
        staging.at(datetime.now(UTC) + timedelta(milliseconds=300)).send(one.app.actor(Mailbox, "m").take, "at")
        staging.after(timedelta(milliseconds=400)).send(one.app.actor(Mailbox, "n").take, "after")
    eventually("both fired", lambda: handled.taken == {"at": 1, "after": 1})


def test_timers_that_others_planted_fire_between_polls_one_after_the_other(node: Make) -> None:
    other = node()
    for number in range(3):
        other.app.actor(Sender, f"s-{number}").send_all([f"letter-{number}"], ["m"], after_ms=2000 + 200 * number)
    one = started(node)
    eventually("all fired", lambda: letters(one.app, "m") == ["letter-0", "letter-1", "letter-2"])


def test_no_timer_fires_before_its_time(node: Make, beside: Any) -> None:
    one = started(node)
    early: list[int] = []

    def look(mailbox: Mailbox, letter: str) -> None:
        ((left,),) = beside(
            "SELECT max(scheduled_at_ms) - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM {akter}.actor_outbox"
        )
        early.append(left)

    handled.on_take = look
    one.app.actor(Sender, "s").send_all(["a"], ["m"], after_ms=300)
    eventually("it fired", lambda: letters(one.app, "m") == ["a"])
    assert len(early) == 1
    assert early[0] <= 0


def test_a_timer_far_away_leaves_the_poll_as_it_is(clock: Clock) -> None:
    known = Timers(poll=1.0)
    assert known.ask()
    known.answered(3_600_000)
    assert known.wait(1.05) == 1.05
    assert not known.came()
    assert not known.ask(), "it was asked a moment ago"
    clock.now += 0.95
    assert known.ask(), "about once a poll"


def test_the_next_look_is_at_the_earliest_known_time(clock: Clock) -> None:
    known = Timers(poll=1.0)
    known.ask()
    known.answered(800)
    known.expect(clock.now + 0.3)
    known.expect(clock.now + 0.6)
    assert known.wait(1.0) == pytest.approx(0.3)
    clock.now += 0.3
    assert known.came()
    assert known.ask(), "what comes next is not remembered, so the database is asked"
    known.answered(None)
    assert known.wait(1.0) == 1.0


def test_what_is_expected_while_the_claim_is_under_way_is_not_forgotten(clock: Clock) -> None:
    known = Timers(poll=1.0)
    known.ask()
    known.expect(clock.now + 0.2)
    known.answered(700)
    assert known.wait(1.0) == pytest.approx(0.2)


def test_a_claim_that_failed_is_asked_again(clock: Clock) -> None:
    known = Timers(poll=1.0)
    known.ask()
    known.unanswered()
    assert known.ask()


def test_looks_that_find_nothing_come_more_seldom_and_never_more_seldom_than_the_poll(clock: Clock) -> None:
    known = Timers(poll=1.0)
    waits: list[float] = []
    for _ in range(12):
        known.expect(clock.now)
        waits.append(round(known.wait(1.0), 3))
        known.ask()
        known.looked(False)
    assert waits == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0, 1.0]
    known.looked(True)
    known.expect(clock.now)
    assert known.wait(1.0) == 0.005


def test_many_timers_that_nobody_here_can_deliver_cost_few_looks(node: Make, beside: Any) -> None:
    one = node(started=True, poll=0.5)
    passes: list[float] = []
    real = one.runner.relay.run_pass

    def run_pass(**only: Any) -> Any:
        passes.append(time.monotonic())
        return real(**only)

    one.runner.relay.run_pass = run_pass  # type: ignore[method-assign]
    fill = FILL.format(schema="{akter}").replace("%%", "%").replace("{{}}", "{}")
    for name, value in {"name": "'ghost-'", "kind": "'intent'", "target": "'Ghost'", "rows": "2000", "due": ":due"}.items():
        fill = fill.replace(f"%({name})s", value)
    now = beside("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0]
    # One a millisecond, for two seconds.
    beside(
        fill.replace("::bigint << 56", r"\:\:bigint << 56").replace("::text", r"\:\:text").replace("::bigint AS", r"\:\:bigint AS"),
        due=now + 500,
    )
    eventually("all are due", lambda: bool(beside("SELECT extract(epoch FROM clock_timestamp()) * 1000 > :end", end=now + 2600)[0][0]))
    seconds = time.monotonic() - passes[0]
    assert len(passes) <= 12 + 2 * seconds / 0.45
    assert beside("SELECT count(*), max(attempts) FROM {akter}.actor_outbox") == [(2000, 0)]


def test_a_timer_that_comes_while_all_seats_are_taken_waits_for_one_and_not_in_a_loop(node: Make, beside: Any) -> None:
    one = node(started=True, poll=NEVER, lanes={"intents": 1})
    leave = threading.Event()
    handled.on_take = lambda mailbox, letter: letter == "slow" and leave.wait(30) and None
    one.app.send(one.app.actor(Mailbox, "m").take, "slow")
    eventually("the only seat is taken", lambda: handled.taken["slow"] == 1)
    passes: list[float] = []
    real = one.runner.relay.run_pass

    def run_pass(**only: Any) -> Any:
        passes.append(time.monotonic())
        return real(**only)

    one.runner.relay.run_pass = run_pass  # type: ignore[method-assign]
    one.app.actor(Sender, "s").send_all(["a"], ["n"], after_ms=100)
    late = "SELECT extract(epoch FROM clock_timestamp()) * 1000 > max(scheduled_at_ms) + 700 FROM {akter}.actor_outbox"
    eventually("its time is over", lambda: bool(beside(late)[0][0]))
    assert len(passes) <= 2
    leave.set()
    eventually("it fired", lambda: letters(one.app, "n") == ["a"])


@pytest.mark.parametrize("mode", MODES)
def test_what_is_due_next_is_read_off_the_front_of_the_index(akter_database: str, akter_schema: str, mode: str) -> None:
    statement = compile_core(probing.next_due(), akter_schema)
    values = {**statement.constants, "first": -128, "last": 127, "kinds": "{intent,job}"}
    arguments = ", ".join(psycopg.sql.quote(str(values[name])) for name in statement.parameters)
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as connection:
        fill = FILL.format(schema=f'"{akter_schema}"').encode()
        for kind, rows, due in (("intent", 10_000, 0), ("job", 10_000, 0), ("intent", 200_000, 2**52)):
            connection.execute(fill, {"name": f"{kind}-{due}-", "rows": rows, "kind": kind, "target": "Ghost", "due": due})
        connection.execute(f'ANALYZE "{akter_schema}".actor_outbox'.encode())
        connection.execute(f"SET plan_cache_mode = {mode}".encode())
        connection.execute(b"PREPARE following AS " + statement.sql)
        row = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE following({arguments})".encode()).fetchone()
        assert row is not None
        plan = Plan(list(nodes_of(row[0][0]["Plan"])))
        assert plan.due
        for found in plan.due:
            assert "due_at_ms >" in found["Index Cond"], found
            assert "bucket =" in found["Index Cond"], found
        assert (plan.read, plan.filtered) == (256, 0)
        answer = connection.execute(f"EXECUTE following({arguments})".encode()).fetchone()
        now = connection.execute(b"SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
        assert answer is not None
        assert now is not None
        assert answer[0] == pytest.approx(2**52 + 1 - now[0], abs=60_000)


def test_a_loop_is_woken_at_a_moment_and_remembers_only_the_earliest() -> None:
    passes: list[float] = []

    def work() -> float:
        passes.append(time.monotonic())
        return 3600.0

    loop = Loop("test", work)
    loop.start()
    try:
        eventually("it ran", lambda: len(passes) == 1)
        now = time.monotonic()
        loop.wake_by(now + 3000.0)
        loop.wake_by(now + 0.2)
        loop.wake_by(now + 2000.0)
        eventually("it ran again", lambda: len(passes) == 2)
        assert passes[1] >= now + 0.2
        loop.wake()
        eventually("it was woken", lambda: len(passes) == 3)
    finally:
        loop.stop()
        assert loop.join(20.0)
    assert len(passes) == 3
