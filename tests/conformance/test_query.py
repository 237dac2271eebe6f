"""Queries: one committed snapshot, no lock, no receipt, and no way to change anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from akter import Actor, Defect, InsideTurn, Rejection, Unavailable, command, query
from akter.errors import TurnEnded
from akter.testing import inspect, pause_next

held: dict[str, Any] = {}
ran: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    held.clear()
    ran.clear()


class Nothing(Rejection):
    """There is nothing."""

    looked: str


class Ledger(Actor):
    """Keeps a sum in its state and the entries in a table."""

    total: int = 0
    tags: list[str] = []  # noqa: RUF012 - every actor gets its own copy

    @command
    def add(self, amount: int) -> int:
        self.total += amount
        self.connection.execute(text("INSERT INTO entries VALUES (:id, :amount)"), {"id": self.id, "amount": amount})
        return self.total

    @query
    def value(self) -> int:
        return self.total

    @query
    def compare(self) -> tuple[int, int]:
        ran.append("compare")
        if "between" in held:
            held.pop("between")()
        return self.total, self.connection.execute(text("SELECT coalesce(sum(amount), 0) FROM entries")).scalar_one()

    @query(sql=True)
    def compare_twice(self) -> tuple[int, int, int]:
        ran.append("compare_twice")
        summed = text("SELECT coalesce(sum(amount), 0) FROM entries")
        first = self.connection.execute(summed).scalar_one()
        if "between" in held:
            held.pop("between")()
        return self.total, first, self.connection.execute(summed).scalar_one()

    @query
    def stubborn(self) -> tuple[int, int]:
        ran.append("stubborn")
        if "between" in held:
            held.pop("between")()
        summed = text("SELECT coalesce(sum(amount), 0) FROM entries")
        try:
            return self.total, self.connection.execute(summed).scalar_one()
        except BaseException:
            return self.total, self.connection.execute(summed).scalar_one()

    @query
    def do(self, name: str) -> int:
        held[name](self)
        return self.total

    @query
    def refuse(self) -> None:
        self.connection.execute(text("SELECT 1"))
        held["self"] = self
        raise Nothing(looked="here")


@pytest.fixture
def ledger(akter_app: Any, beside: Any) -> Any:
    beside("CREATE TABLE entries (id text, amount int)")
    app = akter_app(Ledger)
    made = app.actor(Ledger, "l-1")
    made.add(5)
    held["app"] = app
    return made


def unchanged(beside: Any) -> bool:
    return beside(
        "SELECT (SELECT count(*) FROM entries), (SELECT count(*) FROM {akter}.actor_receipts), (SELECT version FROM {akter}.actor_state)"
    ) == [(1, 1, 1)]


@pytest.mark.conformance("TURN-09")
def test_a_query_writes_nothing_not_even_for_an_actor_nobody_has_used(ledger, beside) -> None:
    before = beside("SELECT xmin::text FROM {akter}.actor_generations UNION ALL SELECT xmin::text FROM {akter}.actor_state")
    assert ledger.value() == 5
    assert ledger.compare() == (5, 5)
    assert held["app"].actor(Ledger, "l-2").value() == 0
    assert beside("SELECT xmin::text FROM {akter}.actor_generations UNION ALL SELECT xmin::text FROM {akter}.actor_state") == before
    assert inspect(held["app"], held["app"].actor(Ledger, "l-2")).generation is None
    assert unchanged(beside)


@pytest.mark.conformance("TURN-09")
def test_a_query_waits_for_no_lock(ledger, akter_engine, akter_schema) -> None:
    with akter_engine.connect() as rival, rival.begin():
        for table in ("actor_generations", "actor_state", "actor_receipts"):
            rival.execute(text(f'SELECT 1 FROM "{akter_schema}".{table} FOR UPDATE'))
        assert ledger.value() == 5
        assert ledger.compare_twice() == (5, 5, 5)


@pytest.mark.conformance("TURN-09")
def test_state_and_own_sql_are_one_snapshot(ledger) -> None:
    held["between"] = lambda: threaded(lambda: ledger.add(1))
    assert ledger.compare_twice() == (5, 5, 5)
    assert ran == ["compare_twice"]
    assert ledger.compare_twice() == (6, 6, 6)


@pytest.mark.conformance("TURN-09")
@pytest.mark.parametrize("member", ["compare", "stubborn"])
def test_a_query_whose_state_moved_before_its_first_own_sql_starts_again_on_the_snapshot(ledger, member) -> None:
    held["between"] = lambda: threaded(lambda: ledger.add(1))
    assert getattr(ledger, member)() == (6, 6)
    assert ran == [member, member]


def threaded(call: Callable[[], Any]) -> None:
    """Call in a thread of its own, as another request would."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.conformance("TURN-38")
def test_own_sql_of_a_query_sees_no_rows_of_a_running_turn(ledger, start) -> None:
    with pause_next(held["app"], "before_commit") as pause:
        turn = start(ledger.add, 1)
        pause.wait()
        assert ledger.compare() == (5, 5)
        pause.release()
        assert turn.result(20) == 6
    assert ledger.compare() == (6, 6)


@pytest.mark.conformance("TURN-09")
@pytest.mark.parametrize(
    "misuse",
    [
        pytest.param(lambda actor: setattr(actor, "total", 99), id="assignment"),
        pytest.param(lambda actor: actor.tags.append("x"), id="change in place"),
        pytest.param(lambda actor: actor.cancel("key"), id="cancel"),
        pytest.param(lambda actor: actor.send(actor.add, 1), id="send"),
        pytest.param(lambda actor: actor.connection.execute(text("INSERT INTO entries VALUES ('x', 1)")), id="insert"),
        pytest.param(lambda actor: actor.session.execute(text("DELETE FROM entries")), id="delete in the session"),
        pytest.param(lambda actor: actor.connection.execute(text("CREATE TABLE more ()")), id="ddl"),
    ],
)
def test_a_query_that_would_change_something_is_refused_with_the_remedy(ledger, beside, misuse) -> None:
    held["misuse"] = misuse
    with pytest.raises(InsideTurn, match="@command"):
        ledger.do("misuse")
    assert unchanged(beside)
    assert ledger.value() == 5


@pytest.mark.conformance("TURN-09")
@pytest.mark.parametrize("misuse", [lambda actor: setattr(actor, "total", 99), lambda actor: actor.cancel("key")], ids=["set", "cancel"])
def test_a_refusal_that_a_query_swallows_is_raised_when_it_returns(ledger, misuse) -> None:
    def swallow(actor: Any) -> None:
        with pytest.raises(InsideTurn):
            misuse(actor)

    held["swallow"] = swallow
    with pytest.raises(InsideTurn):
        ledger.do("swallow")


@pytest.mark.conformance("TURN-14")
@pytest.mark.parametrize("member", ["add", "value"])
@pytest.mark.parametrize("swallow", [False, True])
def test_a_query_cannot_call_actors(ledger, beside, member, swallow) -> None:
    def call(_: Any) -> None:
        other = held["app"].actor(Ledger, "l-2")
        try:
            other.add(1) if member == "add" else other.value()
        except InsideTurn:
            if not swallow:
                raise

    held["call"] = call
    with pytest.raises(InsideTurn, match=r"self\.send"):
        ledger.do("call")
    assert unchanged(beside)


@pytest.mark.conformance("TURN-09")
def test_a_query_may_reject_after_its_own_sql_and_gives_its_connection_back(ledger, akter_engine) -> None:
    for _ in range(20):
        with pytest.raises(Nothing) as caught:
            ledger.refuse()
        assert caught.value == Nothing(looked="here")
    assert akter_engine.pool.checkedout() == 0
    assert ledger.value() == 5


@pytest.mark.conformance("TURN-09", "TURN-27")
def test_what_a_query_kept_is_of_no_use_after_it_even_if_it_failed(ledger) -> None:
    def keep(actor: Any) -> None:
        held.update(self=actor, connection=actor.connection, session=actor.session)

    held["keep"] = keep
    ledger.do("keep")
    _useless()
    held.pop("self")
    with pytest.raises(Nothing):
        ledger.refuse()
    with pytest.raises(TurnEnded):
        _ = held["self"].connection


def _useless() -> None:
    with pytest.raises(TurnEnded):
        held["self"].total = 99
    with pytest.raises(TurnEnded):
        _ = held["self"].connection
    with pytest.raises(TurnEnded):
        _ = held["self"].session
    for kept in ("connection", "session"):
        with pytest.raises(SQLAlchemyError):
            held[kept].execute(text("SELECT 1"))


@pytest.mark.conformance("TURN-09")
@pytest.mark.parametrize("verb", ["COMMIT", "ROLLBACK"])
def test_a_query_that_ends_its_transaction_still_writes_nothing(ledger, beside, verb) -> None:
    def escape(actor: Any) -> None:
        actor.connection.exec_driver_sql(verb)
        actor.connection.exec_driver_sql("INSERT INTO entries VALUES ('x', 1)")

    held["escape"] = escape
    ledger.do("escape")
    assert unchanged(beside)
    assert ledger.compare() == (5, 5)


@pytest.mark.conformance("TURN-09")
@pytest.mark.parametrize("verb", ["commit", "rollback", "close"])
def test_a_query_cannot_end_its_snapshot_through_the_connection(ledger, verb) -> None:
    held["end"] = lambda actor: getattr(actor.connection, verb)()
    with pytest.raises(InsideTurn):
        ledger.do("end")
    assert ledger.compare() == (5, 5)


@pytest.mark.conformance("TURN-09")
def test_a_failing_query_is_a_defect_with_its_cause_and_leaves_the_connection_clean(ledger, akter_engine) -> None:
    def fail(actor: Any) -> None:
        actor.connection.execute(text("SELECT 1 / 0"))

    held["fail"] = fail
    with pytest.raises(Defect, match="division by zero"):
        ledger.do("fail")
    assert akter_engine.pool.checkedout() == 0
    assert ledger.compare() == (5, 5)


@pytest.mark.conformance("TURN-09")
def test_a_query_runs_again_when_the_pooled_connection_had_died(ledger, beside) -> None:
    beside("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    assert ledger.value() == 5
    assert ledger.compare() == (5, 5)


@pytest.mark.conformance("TURN-09")
def test_a_query_of_an_unreachable_database_is_unavailable() -> None:
    import sqlalchemy

    from akter import Akter

    app = Akter(sqlalchemy.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"), actors=[Ledger])
    with pytest.raises(Unavailable):
        app.actor(Ledger, "l-1").value()


@pytest.mark.conformance("TURN-09")
def test_a_query_gets_copies_of_the_state_and_gives_out_copies(ledger) -> None:
    class Tagged(Ledger, name="Ledger"):
        """Shows its tags."""

        @query
        def shown(self) -> list[str]:
            return self.tags

    app = held["app"]
    other = type(app)(app.engine, actors=[Tagged], schema=app.schema).actor(Tagged, "l-1")
    shown = other.shown()
    shown.append("mine")
    assert other.shown() == []
