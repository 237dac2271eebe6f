"""What messages, timers and their delivery cost on the wire."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from akter import Actor, Attempt, Job, command, cron
from akter.runner import Runner
from akter.testing import inspect, pause_next


def telephone(attempt: Attempt, number: str) -> None:
    """Call somebody."""


class Clerk(Actor):
    """Sends itself reminders."""

    reminded: int = 0
    call = Job(telephone)

    @command
    def remind(self, seconds: float, key: str | None = None) -> None:
        self.after(timedelta(seconds=seconds), key=key).send(self.note)

    @command
    def call_later(self, seconds: float, key: str) -> None:
        self.after(timedelta(seconds=seconds), key=key).enqueue(self.call, number="112")

    @command
    def spread(self, many: int) -> None:
        for _ in range(many):
            self.send(self.note)

    @command
    def forget(self, key: str) -> None:
        self.cancel(key)

    @command
    def note(self) -> None:
        self.reminded += 1


@pytest.fixture
def app(through: Callable[..., Any]) -> Any:
    """An app on one connection, which has run each statement once, and tells nobody what is due."""
    app = through(Clerk, pool_size=1, hint=False)
    warm = app.actor(Clerk, "warm")
    warm.remind(3600, "k")
    warm.forget("k")
    return app


@pytest.mark.conformance("PIPE-09")
def test_a_turn_with_a_timer_takes_two_flights(app: Any, proxy: Any) -> None:
    with proxy.count() as seen:
        app.actor(Clerk, "warm").remind(60)
    assert (seen.flights, len(seen.statements)) == (2, 7)


@pytest.mark.conformance("PIPE-09")
def test_a_thousand_messages_take_one_statement(app: Any, proxy: Any, observer: Any) -> None:
    with proxy.count() as seen:
        app.actor(Clerk, "warm").spread(1000)
    assert (seen.flights, len(seen.statements)) == (2, 7)
    assert observer.one("SELECT count(*) FROM actor_outbox") == 1000


@pytest.mark.conformance("PIPE-09")
def test_a_delay_counts_from_the_commit(app: Any, aside: Any, observer: Any) -> None:
    with pause_next(app, "before_commit") as pause:
        turn = aside(lambda: app.actor(Clerk, "warm").remind(60))
        pause.wait()
        observer.rows("SELECT pg_sleep(0.3)")
        (released,) = observer.rows("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    turn.answer()
    (row,) = inspect(app, app.actor(Clerk, "warm")).outbox
    assert row["due_at_ms"] >= released[0] + 60_000
    assert row["scheduled_at_ms"] == row["due_at_ms"]


@pytest.mark.conformance("PIPE-10")
def test_a_keyed_timer_its_replacement_and_its_cancellation_take_two_flights_each(app: Any, proxy: Any, observer: Any) -> None:
    warm = app.actor(Clerk, "warm")
    for work, left in (
        (lambda: warm.remind(60, "k"), 1),
        (lambda: warm.remind(90, "k"), 1),
        (lambda: warm.call_later(60, "k"), 2),
        (lambda: warm.call_later(90, "k"), 2),
        (lambda: warm.forget("k"), 0),
    ):
        with proxy.count() as seen:
            work()
        assert seen.flights == 2
        assert observer.one("SELECT count(*) FROM actor_outbox") == left


@pytest.mark.parametrize(("ride", "flights"), [(True, 3), (False, 4)], ids=["ride", "two steps"])
def test_a_group_of_messages_costs_a_claim_and_one_turn(through: Callable[..., Any], proxy: Any, ride: bool, flights: int) -> None:
    app = through(Clerk, pool_size=3, hint=False)
    runner = Runner(app, listen=False, ride=ride, lanes={"jobs": 0})
    counts: list[int] = []
    for many in (40, 32, 3, 30):
        # More than one thread can take: rows that were found to share are claimed as many as there are.
        runner._lane.sharing = many < 40
        with app.engine.begin() as connection:
            app.within(connection).send_many([(app.actor(Clerk, f"clerk-{number}").note, {}) for number in range(many)])
        with proxy.count() as seen:
            done = runner.relay.run_pass()
            assert runner._lane.wait_idle(20.0)
        if many <= 30:
            assert done.claimed == many
            counts.append(seen.flights)
        runner.drain()
    runner.stop()
    assert counts == [flights, flights]


class Timekeeper(Actor):
    """Has schedules."""

    @command
    def tell(self) -> None: ...

    @cron("0 3 * * *")
    @cron("0 15 * * *", tz="Europe/Berlin")
    def wind(self) -> None: ...


def test_schedules_add_one_statement_to_the_first_turn_and_nothing_to_the_ones_after_it(
    through: Callable[..., Any], proxy: Any, observer: Any
) -> None:
    app = through(Timekeeper, pool_size=1, hint=False)
    app.actor(Timekeeper, "warm").tell()
    counts: list[tuple[int, int]] = []
    for _ in range(3):
        with proxy.count() as seen:
            app.actor(Timekeeper, "a").tell()
        counts.append((seen.flights, len(seen.statements)))
    assert counts == [(2, 7), (2, 6), (2, 6)]
    assert observer.one("SELECT count(*) FROM actor_outbox") == 4
    again = through(Timekeeper, pool_size=1, hint=False)
    again.actor(Timekeeper, "warm").tell()
    with proxy.count() as seen:
        again.actor(Timekeeper, "a").tell()
    assert (seen.flights, len(seen.statements)) == (2, 7), "another process looks once, too"


@pytest.mark.parametrize(("ride", "flights"), [(True, 3), (False, 4)], ids=["ride", "two steps"])
def test_a_tick_costs_what_a_message_costs(through: Callable[..., Any], proxy: Any, observer: Any, ride: bool, flights: int) -> None:
    app = through(Timekeeper, pool_size=3, hint=False)
    app.actor(Timekeeper, "a").tell()
    runner = Runner(app, listen=False, ride=ride)
    counts: list[int] = []
    for _ in range(3):
        observer.rows("UPDATE actor_outbox SET due_at_ms = 0 WHERE starts_with(timer_key, '$cron:UTC')")
        with proxy.count() as seen:
            assert runner.relay.run_pass().claimed == 1
            assert runner.relay.wait_idle(20.0)
        counts.append(seen.flights)
    runner.stop()
    assert counts[-1] == flights
    assert observer.one("SELECT count(*) FROM actor_receipts WHERE command = 'wind'") == 3
