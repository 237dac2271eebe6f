"""What a turn costs on the wire, and that its one commit is all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from akter import Actor, Defect, Rejection, Unavailable, command, query
from akter.testing import inspect, pause_next, receipts

inside: dict[str, Callable[[], object]] = {}
"""What happens while a handler runs, between its read and its commit."""


class Refused(Rejection):
    """It was refused."""


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int) -> int:
        if "add" in inside:
            inside["add"]()
        self.balance += amount
        return self.balance

    @command
    def refuse(self) -> None:
        self.balance = -1
        raise Refused

    @command(sql=True)
    def note(self, words: list[str]) -> int:
        for word in words:
            self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        self.balance += 1
        return self.balance

    @command
    def note_unannounced(self, words: list[str]) -> int:
        return self.note(words)

    @command(sql=True)
    def note_and_refuse(self, word: str) -> None:
        self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        raise Refused

    @query
    def total(self) -> int:
        return self.balance

    @query(sql=True)
    def notes(self) -> int:
        return int(self.connection.execute(text("SELECT count(*) FROM notes")).scalar_one())


@pytest.fixture(autouse=True)
def nothing_inside() -> Iterator[None]:
    inside.clear()
    yield
    inside.clear()


@pytest.fixture
def notes(observer: Any) -> Callable[[], list[str]]:
    observer.rows("CREATE TABLE notes (word text)")
    return lambda: [word for (word,) in observer.rows("SELECT word FROM notes ORDER BY word")]


@pytest.fixture
def app(through: Callable[..., Any]) -> Any:
    """An app on one connection, which has run each statement once."""
    app = through(Account, pool_size=1)
    warm = app.actor(Account, "warm")
    warm.add(1)
    warm.total()
    with pytest.raises(Refused):
        warm.refuse()
    return app


@pytest.mark.conformance("PIPE-01")
def test_a_turn_takes_two_flights_and_six_statements(app: Any, proxy: Any) -> None:
    account = app.actor(Account, "warm")
    with proxy.count() as seen:
        assert account.add(10) == 11
    assert seen.flights == 2
    assert [statement.split()[0] for statement in seen.statements] == ["BEGIN", "SELECT", "INSERT", "SELECT", "WITH", "COMMIT"]


def test_time_limits_are_sent_again_when_much_of_the_time_is_gone(app: Any, proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("akter.turn._STALE", 1.0)
    with proxy.count() as seen:
        app.actor(Account, "warm").add(10)
    assert seen.flights == 2
    assert [statement.split()[0] for statement in seen.statements] == ["BEGIN", "SELECT", "INSERT", "SELECT", "SELECT", "WITH", "COMMIT"]
    assert "statement_timeout" in seen.statements[4]


@pytest.mark.conformance("PIPE-01")
def test_the_first_turn_of_a_new_actor_takes_two_flights(app: Any, proxy: Any) -> None:
    with proxy.count() as seen:
        assert app.actor(Account, "new").add(1) == 1
    assert (seen.flights, len(seen.statements)) == (2, 6)


def test_a_turn_that_changes_nothing_and_a_rejected_one_take_two_flights(app: Any, proxy: Any) -> None:
    account = app.actor(Account, "warm")
    account.add(0)
    with proxy.count() as seen:
        account.add(0)
    assert seen.flights == 2
    with proxy.count() as seen, pytest.raises(Refused):
        account.refuse()
    assert seen.flights == 2


@pytest.mark.conformance("PIPE-01")
def test_a_replay_is_an_admission_and_a_rollback_and_writes_nothing(app: Any, proxy: Any, observer: Any) -> None:
    account = app.actor(Account, "warm")
    with app.command_id("once"):
        assert account.add(10) == 11
    versions = "SELECT (SELECT array_agg(xmin::text) FROM actor_state), (SELECT array_agg(xmin::text) FROM actor_receipts)"
    before = observer.rows(versions)
    with proxy.count() as seen, app.command_id("once"):
        assert account.add(10) == 11
    assert seen.flights == 2
    assert [statement.split()[0] for statement in seen.statements] == ["BEGIN", "SELECT", "INSERT", "SELECT", "ROLLBACK"]
    assert observer.rows(versions) == before


@pytest.mark.conformance("PIPE-01")
def test_a_query_is_one_flight_of_one_statement(app: Any, proxy: Any) -> None:
    with proxy.count() as seen:
        assert app.actor(Account, "warm").total() == 1
    assert (seen.flights, len(seen.statements)) == (1, 1)


@pytest.mark.conformance("PIPE-02")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("verb", "savepoint"), [("note", 0), ("note_unannounced", 1)], ids=["announced", "unannounced"])
def test_each_statement_of_a_handler_adds_one_flight_and_a_savepoint_that_was_not_announced_another(
    app: Any, proxy: Any, notes: Callable[[], list[str]], count: int, verb: str, savepoint: int
) -> None:
    with proxy.count() as seen:
        getattr(app.actor(Account, "warm"), verb)([f"w{number}" for number in range(count)])
    assert seen.flights == 2 + savepoint + count
    assert len(seen.statements) == 7 + 1 + count
    assert notes() == [f"w{number}" for number in range(count)]


@pytest.mark.conformance("PIPE-02")
def test_a_rejection_takes_back_what_the_handler_wrote_without_a_flight_more(app: Any, proxy: Any, notes: Callable[[], list[str]]) -> None:
    account = app.actor(Account, "warm")
    with proxy.count() as seen, pytest.raises(Refused):
        account.note_and_refuse("lost")
    assert seen.flights == 2 + 1
    assert notes() == []
    assert len(receipts(app, account, "note_and_refuse")) == 1


def test_a_query_with_statements_adds_one_flight_for_each(app: Any, proxy: Any, notes: Callable[[], list[str]]) -> None:
    app.actor(Account, "warm").notes()
    with proxy.count() as seen:
        assert app.actor(Account, "warm").notes() == 0
    assert seen.flights <= 3


@pytest.mark.conformance("PIPE-04")
def test_a_state_that_changed_meanwhile_is_read_again_and_nothing_of_the_first_try_is_kept(
    app: Any, observer: Any, notes: Callable[[], list[str]]
) -> None:
    account = app.actor(Account, "warm")
    tries: list[str] = []

    def change() -> None:
        tries.append("try")
        if len(tries) == 1:
            observer.rows("UPDATE actor_state SET version = version + 1, value = '{\"balance\": 100}' WHERE actor_id = 'warm'")

    inside["add"] = change
    assert account.add(5) == 105
    assert len(tries) == 2
    assert len(receipts(app, account, "add")) == 2


def test_a_state_that_always_changes_meanwhile_ends_as_unavailable_with_the_handlers_rows_taken_back(
    through: Callable[..., Any], observer: Any
) -> None:
    observer.rows("CREATE TABLE notes (word text)")
    app = through(Writer, delivery=3.0, execution=2.0, lock=0.5)
    writer = app.actor(Writer, "w")
    writer.write("first")
    inside["write"] = lambda: observer.rows("UPDATE actor_state SET version = version + 1")
    # The last try may find its time over before it finds the state changed.
    with pytest.raises(Unavailable, match="changed from outside|longer than its time limit") as refused:
        writer.write("never")
    assert refused.value.retryable
    assert observer.rows("SELECT word FROM notes") == [("first",)]
    assert len(receipts(app, writer)) == 1
    inside.clear()
    assert writer.write("second") == 2


class Writer(Actor):
    """Writes into the application's table."""

    count: int = 0

    @command(sql=True)
    def write(self, word: str) -> int:
        self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        if "write" in inside:
            inside["write"]()
        self.count += 1
        return self.count


@pytest.mark.conformance("PIPE-05")
def test_a_turn_that_waited_for_a_rival_sees_what_the_rival_left(
    app: Any, through: Callable[..., Any], observer: Any, aside: Any, eventually: Any
) -> None:
    rival = through(Account)
    with app.command_id("mine"):
        app.actor(Account, "warm").add(1)
    with pause_next(rival, "before_commit") as pause:
        first = aside(lambda: rival.actor(Account, "warm").add(100))
        pause.wait()
        second = aside(lambda: app.actor(Account, "warm").add(1000))
        eventually(observer.waiting)
        pause.release()
        assert first.answer() == 102
        assert second.answer() == 1102


@pytest.mark.conformance("PIPE-05")
def test_a_duplicate_that_waited_for_its_twin_answers_from_the_twins_receipt(
    app: Any, through: Callable[..., Any], observer: Any, aside: Any, eventually: Any
) -> None:
    rival = through(Account)

    def twin(which: Any) -> int:
        with which.command_id("twin"):
            return int(which.actor(Account, "warm").add(100))

    with pause_next(rival, "before_commit") as pause:
        first = aside(lambda: twin(rival))
        pause.wait()
        second = aside(lambda: twin(app))
        eventually(observer.waiting)
        pause.release()
        assert (first.answer(), second.answer()) == (101, 101)
    assert inspect(app, app.actor(Account, "warm")).state == {"balance": 101}


@pytest.mark.conformance("PIPE-05")
def test_a_rival_that_never_ends_makes_a_turn_unavailable_and_says_that_the_actor_is_busy(
    through: Callable[..., Any], observer: Any
) -> None:
    app = through(Account, delivery=0.5, execution=0.3, lock=0.1)
    account = app.actor(Account, "a")
    account.add(1)
    observer.rows("BEGIN")
    observer.rows("SELECT FROM actor_generations FOR UPDATE")
    with pytest.raises(Unavailable, match="busy"):
        account.add(1)
    observer.rows("ROLLBACK")
    assert account.add(1) == 2


FAILING = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'the last straw' USING ERRCODE = '{state}'; END IF;
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER failing AFTER INSERT ON actor_receipts {moment} FOR EACH ROW EXECUTE FUNCTION fail()
"""


@pytest.mark.conformance("PIPE-06")
@pytest.mark.parametrize("moment", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["a statement before the commit", "the commit itself"])
def test_when_a_part_of_the_commit_fails_all_of_it_is_rolled_back(app: Any, observer: Any, moment: str) -> None:
    account = app.actor(Account, "warm")
    observer.rows(FAILING.format(times=1, state="23514", moment=moment))
    with pytest.raises(Defect, match="the last straw"):
        account.add(10)
    found = inspect(app, account)
    assert (found.state, len(found.receipts)) == ({"balance": 1}, 2)
    assert account.add(10) == 11


@pytest.mark.conformance("PIPE-06")
def test_a_commit_that_fails_for_a_passing_reason_is_tried_again(app: Any, observer: Any) -> None:
    account = app.actor(Account, "warm")
    observer.rows(FAILING.format(times=2, state="40P01", moment="DEFERRABLE INITIALLY DEFERRED"))
    assert account.add(10) == 11
    assert observer.one("SELECT last_value FROM tries") == 3
    assert len(receipts(app, account, "add")) == 2


@pytest.mark.conformance("PIPE-14")
def test_a_group_of_waiting_calls_takes_two_flights(
    app: Any, proxy: Any, aside: Any, observer: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.seats.TOGETHER", 1)
    for limit in ("akter.seats.PATIENCE", "akter.group.PATIENCE", "akter.pace.SLOW"):
        monkeypatch.setattr(limit, 60.0)
    app._turns._pace.saw(app.actors["Account"].members["add"], 0.0, used_sql=False)

    def busy() -> int:
        with app.command_id("busy"):
            return int(app.actor(Account, "busy").add(1))

    with pause_next(app, "before_commit", command_id="busy") as pause, proxy.count() as seen:
        held = aside(busy)
        pause.wait()
        calls = []
        for number in range(5):
            calls.append(aside(lambda number=number: app.actor(Account, f"a-{number}").add(1)))
            eventually(lambda number=number: len(app._turns._seats._waiting) > number)
        pause.release()
        assert [call.answer() for call in (held, *calls)] == [1] * 6
    # Two of the one that held the seat, and two of the five.
    assert seen.flights == 4
    assert len(set(observer.rows("SELECT xmin::text FROM actor_receipts WHERE actor_id LIKE 'a-%'"))) == 1
