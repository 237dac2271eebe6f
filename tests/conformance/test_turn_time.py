"""Time: a turn ends by itself, whoever is stuck in it, and its command runs once in the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from akter import Actor, Unavailable, command, query
from akter.testing import inspect, pause_next, receipts

ran: list[str] = []
first: dict[str, Callable[[Any], None]] = {}


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    first.clear()


class Slow(Actor):
    """Does on its first run what a test tells it."""

    count: int = 0

    @command
    def work(self, note: str = "work") -> int:
        ran.append(note)
        self.count += 1
        if note in first:
            first.pop(note)(self)
        return self.count

    @command(timeout=0.5)
    def hurried(self) -> int:
        ran.append("hurried")
        if "hurried" in first:
            first.pop("hurried")(self)
        return self.count

    @query(timeout=0.3)
    def sleepy(self) -> None:
        ran.append("sleepy")
        self.connection.execute(text("SELECT pg_sleep(30)"))

    @query
    def value(self) -> int:
        return self.count


def given(app: Any, id: str, call: Callable[..., Any], *args: Any) -> Any:
    with app.command_id(id):
        return call(*args)


@pytest.mark.conformance("TURN-15")
def test_a_command_whose_own_statement_exceeds_the_time_limit_is_retried_without_partial_commit(akter_app, journal) -> None:
    app = akter_app(Slow, execution=0.3, delivery=10.0)
    slow = app.actor(Slow, "s-1")
    first["work"] = lambda actor: actor.connection.execute(text("SELECT pg_sleep(30)"))
    seen = journal(app, slow)
    assert slow.work() == 1
    assert ran == ["work", "work"]
    between = [found for point, found in seen if point == "before_delivery"][1]
    assert (between.generation, between.receipts) == (None, ())
    assert (inspect(app, slow).state, len(receipts(app, slow))) == ({"count": 1}, 1)


@pytest.mark.conformance("TURN-15")
def test_a_handler_that_returns_after_its_time_limit_saves_nothing_and_is_retried(akter_app, journal) -> None:
    app = akter_app(Slow, execution=5.0, delivery=20.0)
    slow = app.actor(Slow, "s-1")
    # Shorter than the idle limit, which is a second more: the connection is alive, and the deadline alone decides.
    first["hurried"] = lambda actor: time.sleep(0.8)
    seen = journal(app, slow)
    assert slow.hurried() == 0
    assert ran == ["hurried", "hurried"]
    assert [point for point, _ in seen].count("before_commit") == 1
    assert len(receipts(app, slow)) == 1


@pytest.mark.conformance("TURN-15", "TURN-23")
def test_a_handler_stuck_in_python_loses_its_connection_and_the_actor_is_free_for_others_meanwhile(akter_app, start, other_engine) -> None:
    app, second = akter_app(Slow, execution=0.3, delivery=20.0), akter_app(Slow, engine=other_engine)
    slow = app.actor(Slow, "s-1")
    slow.work("before")
    entered, go_on = threading.Event(), threading.Event()

    def stuck(_: Any) -> None:
        entered.set()
        assert go_on.wait(20)

    first["stuck"] = stuck
    turn = start(slow.work, "stuck")
    assert entered.wait(20)
    # The lock is free as soon as the server ends the idle transaction, 1.3 seconds after it began; nobody else does anything for it.
    assert second.actor(Slow, "s-1").work("meanwhile") == 2
    assert not turn.done()
    go_on.set()
    assert turn.result(20) == 3
    assert ran == ["before", "stuck", "meanwhile", "stuck"]
    assert (inspect(app, slow).state, len(receipts(app, slow))) == ({"count": 3}, 3)
    assert slow.work("after") == 4


@pytest.mark.conformance("TURN-16")
@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03", "57014", "53000", "53200"])
def test_a_command_is_retried_after_a_retryable_error_of_its_own_sql(akter_app, beside, sqlstate) -> None:
    app = akter_app(Slow)
    beside("CREATE TABLE notes (note text)")
    slow = app.actor(Slow, "s-1")

    def write(actor: Any, fails: bool) -> None:
        actor.connection.execute(text("INSERT INTO notes VALUES ('once')"))
        if fails:
            first["work"] = lambda again: write(again, False)
            actor.connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'made' USING ERRCODE = '{sqlstate}'; END $$"))

    first["work"] = lambda actor: write(actor, True)
    assert slow.work() == 1
    assert ran == ["work", "work"]
    assert beside("SELECT note FROM notes") == [("once",)]
    assert (inspect(app, slow).state, len(receipts(app, slow))) == ({"count": 1}, 1)


@pytest.mark.conformance("TURN-16")
@pytest.mark.parametrize("sqlstate", ["22012", "23505", "57P04", "53400", "P0001"])
def test_any_other_error_of_its_own_sql_is_a_defect_at_once(akter_app, sqlstate) -> None:
    from akter import Defect

    app = akter_app(Slow)
    slow = app.actor(Slow, "s-1")
    first["work"] = lambda actor: actor.connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'made' USING ERRCODE = '{sqlstate}'; END $$"))
    with pytest.raises(Defect, match="made"):
        slow.work()
    assert ran == ["work"]
    assert inspect(app, slow).generation is None


@pytest.mark.conformance("TURN-17")
def test_the_delivery_timeout_only_ends_the_waiting_and_the_command_still_commits_once(akter_app, start) -> None:
    app = akter_app(Slow, execution=10.0)
    hasty = akter_app(Slow, execution=0.05, lock=0.05, delivery=0.3)
    slow = app.actor(Slow, "s-1")
    with pause_next(app, "before_commit") as pause:
        turn = start(given, app, "a", slow.work)
        pause.wait()
        with pytest.raises(Unavailable) as caught:
            given(hasty, "a", hasty.actor(Slow, "s-1").work)
        assert caught.value.retryable
        assert ran == ["work"]
        pause.release()
        assert turn.result(20) == 1
    assert given(hasty, "a", hasty.actor(Slow, "s-1").work) == 1
    assert ran == ["work"]
    assert (inspect(app, slow).state, len(receipts(app, slow))) == ({"count": 1}, 1)


@pytest.mark.conformance("TURN-25")
def test_a_waiter_that_gives_up_does_not_cancel_the_turn_it_waited_for(akter_app, start, beside) -> None:
    app = akter_app(Slow)
    hasty = akter_app(Slow, execution=0.05, lock=0.05, delivery=0.1)
    with pause_next(app, "before_handler") as pause:
        turn = start(given, app, "a", app.actor(Slow, "s-1").work)
        pause.wait()
        waiters = [start(given, hasty, "a", hasty.actor(Slow, "s-1").work) for _ in range(3)]
        for waiter in waiters:
            with pytest.raises(Unavailable):
                waiter.result(20)
        pause.release()
        assert turn.result(20) == 1
    assert ran == ["work"]


@pytest.mark.conformance("TURN-41")
def test_a_lock_that_is_not_free_in_time_is_asked_for_again_without_entering_the_handler(akter_app, akter_engine, start, beside) -> None:
    app = akter_app(Slow, lock=0.05)
    slow = app.actor(Slow, "s-1")
    slow.work("before")
    tries: list[str] = []
    app.faults.watch(lambda point, _: tries.append(point))
    with akter_engine.connect() as rival, rival.begin():
        rival.execute(text(f'SELECT 1 FROM "{app.schema}".actor_generations FOR UPDATE'))
        turn = start(slow.work)
        beside.until("three tries", lambda: tries.count("queued") >= 3)
        assert "before_handler" not in tries
        assert ran == ["before"]
    assert turn.result(20) == 2
    assert ran == ["before", "work"]
    assert tries.count("before_handler") == 1


@pytest.mark.conformance("TURN-41")
def test_a_lock_wait_for_an_actor_that_is_just_being_made_is_limited_too(akter_app, start, beside) -> None:
    app, hasty = akter_app(Slow), akter_app(Slow, lock=0.05)
    tries: list[str] = []
    hasty.faults.watch(lambda point, _: tries.append(point))
    with pause_next(app, "before_commit") as pause:
        making = start(app.actor(Slow, "s-1").work, "making")
        pause.wait()
        turn = start(hasty.actor(Slow, "s-1").work)
        beside.until("three tries", lambda: tries.count("queued") >= 3)
        assert ran == ["making"]
        pause.release()
        assert (making.result(20), turn.result(20)) == (1, 2)


@pytest.mark.conformance("TURN-09")
def test_a_query_past_its_time_limit_is_cancelled_on_the_server(akter_app, beside) -> None:
    app = akter_app(Slow)
    with pytest.raises(Unavailable):
        app.actor(Slow, "s-1").sleepy()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(30)%' AND pid <> pg_backend_pid()"
    assert beside(sleeping) == [(0,)]


@pytest.mark.conformance("TURN-15")
def test_the_limits_of_a_turn_do_not_stay_on_its_connection(akter_app, akter_engine) -> None:
    app = akter_app(Slow, execution=0.5, lock=0.05)
    app.actor(Slow, "s-1").work()
    app.actor(Slow, "s-1").value()
    with akter_engine.connect() as connection:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            assert connection.execute(text(f"SHOW {name}")).scalar_one() == "0"
