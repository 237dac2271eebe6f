"""Direct calls in one transaction: they share its flights, and nothing else."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from crowd import WAIT, Crowd, given, patient, seen_quick
from sqlalchemy import text

from akter import Actor, CommandConflict, Defect, Event, NotCreated, Rejection, command
from akter.seats import Caller
from akter.testing import crash_next, inspect, pause_next, receipts

ran: list[str] = []
threads: dict[str, int] = {}
inside: dict[str, Callable[[], object]] = {}


class Counted(Event):
    """Pieces were counted."""

    pieces: int


class Refused(Rejection):
    """No."""

    seen: int


class Stock(Actor):
    """Counts pieces."""

    pieces: int = 0

    @command
    def add(self, pieces: int) -> int:
        ran.append(self.id)
        threads[self.id] = threading.get_ident()
        if self.id in inside:
            inside[self.id]()
        self.pieces += pieces
        self.emit(Counted(pieces=self.pieces))
        return self.pieces

    @command
    def refuse(self) -> None:
        ran.append(self.id)
        self.pieces += 1000
        self.emit(Counted(pieces=self.pieces))
        self.send(self.actor(Stock, "told").add, pieces=1)
        raise Refused(seen=self.pieces)

    @command
    def break_off(self) -> None:
        ran.append(self.id)
        self.pieces += 100
        raise RuntimeError("broken")

    @command
    def write(self, word: str) -> int:
        ran.append(self.id)
        self.connection.execute(text("INSERT INTO words VALUES (:word)"), {"word": word})
        self.pieces += 1
        return self.pieces

    @command
    def swallow(self, word: str) -> int:
        ran.append(self.id)
        self.pieces += 7
        with contextlib.suppress(BaseException):
            self.connection.execute(text("INSERT INTO words VALUES (:word)"), {"word": word})
        return self.pieces


class Order(Actor):
    """Exists once it is opened."""

    opened: int = 0

    @command(creates=True)
    def open(self) -> int:
        self.opened += 1
        return self.opened

    @command
    def touch(self) -> int:
        return self.opened


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    threads.clear()
    inside.clear()


@pytest.fixture
def app(akter_app: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    patient(monkeypatch)
    found = akter_app(Stock, Order)
    found.verify()
    seen_quick(found, Stock, Order)
    return found


@pytest.fixture
def crowd(app: Any, start: Any, beside: Any) -> Crowd:
    return Crowd(app, start, beside.until, partial(app.actor(Stock, "in the way").add, 1))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that starts the tests in the background lets them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def words(beside: Any) -> Callable[[], list[str]]:
    beside("CREATE TABLE words (word text)")
    return lambda: [word for (word,) in beside("SELECT word FROM words ORDER BY word")]


def transactions(beside: Any) -> dict[str, str]:
    """The transaction that wrote each actor's last receipt."""
    return dict(beside("SELECT actor_id, xmin::text FROM {akter}.actor_receipts WHERE actor_id <> 'in the way' ORDER BY committed_at_ms"))


@pytest.mark.conformance("GRP-01")
def test_calls_that_wait_for_a_seat_share_a_transaction_and_run_in_their_own_threads(app: Any, crowd: Crowd, beside: Any) -> None:
    mine: dict[str, int] = {}

    def call(id: str) -> int:
        mine[id] = threading.get_ident()
        return int(app.actor(Stock, id).add(5))

    answers = crowd.together(*(partial(call, f"s-{number}") for number in range(6)))
    assert [answer.result(WAIT) for answer in answers] == [5] * 6
    assert len(transactions(beside)) == 6
    assert len(set(transactions(beside).values())) == 1
    assert {id: threads[id] for id in mine} == mine


@pytest.mark.conformance("BATCH-01", "PIPE-03")
def test_commands_of_one_actor_share_a_transaction_in_their_order_each_on_what_the_one_before_left(
    app: Any, crowd: Crowd, beside: Any
) -> None:
    stock = app.actor(Stock, "s")
    stock.add(100)
    answers = crowd.together(*(partial(given, app, f"c-{pieces}", stock.add, pieces) for pieces in (1, 2, 3)))
    assert [answer.result(WAIT) for answer in answers] == [101, 103, 106]
    found = inspect(app, stock)
    assert (found.state, found.version, found.event_sequence) == ({"pieces": 106}, 2, 4)
    assert [event["value"] for event in found.events] == [f'{{"pieces":{pieces}}}' for pieces in (100, 101, 103, 106)]
    assert {receipt.command_id[-3:]: receipt.outcome for receipt in found.receipts if receipt.command_id.startswith("u:")} == {
        "c-1": {"ok": 101},
        "c-2": {"ok": 103},
        "c-3": {"ok": 106},
    }
    written = "SELECT DISTINCT xmin::text FROM {akter}.actor_receipts WHERE actor_id = 's' AND command_id LIKE 'u:%'"
    assert beside(written) == beside("SELECT xmin::text FROM {akter}.actor_state WHERE actor_id = 's'")


@pytest.mark.conformance("PIPE-03")
def test_a_member_does_not_begin_before_the_one_before_it_at_its_actor_is_done(app: Any, crowd: Crowd, beside: Any) -> None:
    held: list[bool] = []
    others = [f"b-{number}" for number in range(6)]

    def hold() -> None:
        if not held:
            held.append(True)
            beside.until("the others have run", lambda: set(others) <= set(ran))

    inside["a"] = hold
    stock = app.actor(Stock, "a")
    answers = crowd.together(
        partial(stock.add, 1), partial(stock.add, 10), partial(stock.add, 100), *(partial(app.actor(Stock, id).add, 1) for id in others)
    )
    assert [answer.result(WAIT) for answer in answers] == [1, 11, 111, *(1 for _ in others)]
    assert len(set(transactions(beside).values())) == 1


@pytest.mark.conformance("BATCH-01", "PIPE-18")
def test_nothing_is_visible_and_nobody_is_answered_before_the_shared_commit(app: Any, crowd: Crowd, beside: Any) -> None:
    with pause_next(app, "before_commit", command_id="last") as pause:
        answers = crowd.together(
            partial(app.actor(Stock, "a").add, 1),
            partial(app.actor(Stock, "a").add, 2),
            partial(given, app, "last", app.actor(Stock, "b").add, 3),
        )
        pause.wait()
        beside.until("the others are done", lambda: ran.count("a") == 2)
        assert not any(answer.done() for answer in answers)
        assert beside("SELECT count(*) FROM {akter}.actor_state WHERE actor_id IN ('a', 'b')") == [(0,)]
        assert transactions(beside) == {}
    assert [answer.result(WAIT) for answer in answers] == [1, 3, 3]
    assert len(set(transactions(beside).values())) == 1


@pytest.mark.conformance("BATCH-02")
def test_a_group_has_at_most_32_members(akter_app: Any, start: Any, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor

    patient(monkeypatch)
    app = akter_app(Stock)
    app.verify()
    seen_quick(app, Stock)
    with ThreadPoolExecutor(42) as callers:
        crowd = Crowd(app, callers.submit, beside.until, partial(app.actor(Stock, "in the way").add, 1))
        answers = crowd.together(*(partial(app.actor(Stock, f"s-{number}").add, 1) for number in range(40)))
        assert [answer.result(WAIT) for answer in answers] == [1] * 40
    sizes = beside("SELECT count(*) FROM {akter}.actor_receipts WHERE actor_id LIKE 's-%' GROUP BY xmin::text ORDER BY 1")
    assert sizes == [(8,), (32,)]


@pytest.mark.conformance("BATCH-03", "GRP-01")
def test_a_rejection_keeps_its_receipt_and_discards_only_its_own(app: Any, crowd: Crowd, beside: Any) -> None:
    first, refused, last = crowd.together(
        partial(app.actor(Stock, "a").add, 1), app.actor(Stock, "a").refuse, partial(app.actor(Stock, "a").add, 2)
    )
    assert (first.result(WAIT), last.result(WAIT)) == (1, 3)
    with pytest.raises(Refused) as caught:
        refused.result(WAIT)
    assert caught.value == Refused(seen=1001)
    found = inspect(app, app.actor(Stock, "a"))
    assert (found.state, len(found.receipts), len(found.events), found.event_sequence) == ({"pieces": 3}, 3, 2, 2)
    assert beside.count("actor_outbox") == 0
    assert len(set(transactions(beside).values())) == 1


@pytest.mark.conformance("BATCH-04", "GRP-01")
def test_a_defect_is_its_own_callers_and_the_others_commit_without_it(app: Any, crowd: Crowd, beside: Any) -> None:
    first, broken, last = crowd.together(
        partial(app.actor(Stock, "a").add, 1), app.actor(Stock, "a").break_off, partial(app.actor(Stock, "a").add, 2)
    )
    assert (first.result(WAIT), last.result(WAIT)) == (1, 3)
    with pytest.raises(Defect, match="broken"):
        broken.result(WAIT)
    assert inspect(app, app.actor(Stock, "a")).state == {"pieces": 3}
    assert len(receipts(app, app.actor(Stock, "a"))) == 2
    assert ran.count("a") == 3


def test_what_a_member_is_refused_with_is_its_own(app: Any, crowd: Crowd) -> None:
    with app.command_id("used"):
        app.actor(Stock, "a").add(1)
    missing, conflict, opened, touched = crowd.together(
        app.actor(Order, "o").touch,
        partial(given, app, "used", app.actor(Stock, "a").add, 2),
        app.actor(Order, "o").open,
        app.actor(Order, "o").touch,
    )
    with pytest.raises(NotCreated):
        missing.result(WAIT)
    with pytest.raises(CommandConflict):
        conflict.result(WAIT)
    assert (opened.result(WAIT), touched.result(WAIT)) == (1, 1)


@pytest.mark.conformance("BATCH-05")
def test_a_crash_before_the_shared_commit_lets_each_run_again_alone(app: Any, crowd: Crowd, beside: Any) -> None:
    crash_next(app, "before_commit", command_id="b")
    answers = crowd.together(*(partial(given, app, id, app.actor(Stock, id).add, 1) for id in "abc"))
    assert [answer.result(WAIT) for answer in answers] == [1, 1, 1]
    assert len(set(transactions(beside).values())) == 3
    assert [len(receipts(app, app.actor(Stock, id))) for id in "abc"] == [1, 1, 1]


@pytest.mark.conformance("BATCH-05")
def test_a_crash_after_the_shared_commit_is_answered_by_the_receipt(app: Any, crowd: Crowd, beside: Any) -> None:
    for id in "abc":
        crash_next(app, "after_commit", command_id=id)
    answers = crowd.together(*(partial(given, app, id, app.actor(Stock, id).add, 1) for id in "abc"))
    assert [answer.result(WAIT) for answer in answers] == [1, 1, 1]
    assert len(set(transactions(beside).values())) == 1
    assert sorted(ran) == ["a", "b", "c", "in the way"]


@pytest.mark.conformance("BATCH-06")
def test_a_second_use_of_an_id_waits_for_the_first_and_is_answered_by_its_receipt(app: Any, crowd: Crowd, beside: Any) -> None:
    stock = app.actor(Stock, "a")
    first, again, last = crowd.together(
        partial(given, app, "same", stock.add, 1), partial(given, app, "same", stock.add, 1), partial(stock.add, 10)
    )
    assert (first.result(WAIT), again.result(WAIT), last.result(WAIT)) == (1, 1, 11)
    assert ran.count("a") == 2
    assert len(receipts(app, stock)) == 2


@pytest.mark.conformance("GRP-02")
def test_members_whose_transaction_lost_its_fence_run_again_alone(app: Any, crowd: Crowd, beside: Any) -> None:
    app.actor(Stock, "b").add(1)
    stolen: list[bool] = []

    def steal() -> None:
        # Somebody writes the state without the lock, as no turn would.
        if not stolen:
            stolen.append(True)
            beside("UPDATE {akter}.actor_state SET value = '{\"pieces\": 50}', version = version + 1 WHERE actor_id = 'b'")

    inside["b"] = steal
    answers = crowd.together(*(partial(app.actor(Stock, id).add, 1) for id in "abc"))
    assert [answer.result(WAIT) for answer in answers] == [1, 51, 1]
    assert len(set(transactions(beside).values())) == 3


@pytest.mark.conformance("GRP-03")
def test_a_call_in_the_main_thread_shares_with_nobody_so_an_interrupt_there_is_its_own(
    app: Any, start: Any, beside: Any, interruptible: None
) -> None:
    with pause_next(app, "before_commit", command_id="busy") as busy:
        held = start(given, app, "busy", app.actor(Stock, "in the way").add, 1)
        busy.wait()
        others = [start(app.actor(Stock, id).add, 1) for id in "ac"]
        beside.until("they wait", lambda: len(app._turns._seats._waiting) == 2)
        # The main thread is the one that a signal reaches.
        inside["b"] = _thread.interrupt_main
        with pytest.raises(KeyboardInterrupt):
            app.actor(Stock, "b").add(1)
        assert app.actor(Stock, "d").add(1) == 1
        assert [other.done() for other in others] == [False, False]
    assert [one.result(WAIT) for one in (held, *others)] == [1, 1, 1]
    assert receipts(app, app.actor(Stock, "b")) == ()
    found = transactions(beside)
    assert found["a"] == found["c"] != found["d"]


@pytest.mark.conformance("GRP-03")
def test_a_member_that_is_interrupted_while_it_waits_commits_nothing_and_the_others_run_alone(
    app: Any, crowd: Crowd, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.group.PATIENCE", 0.5)
    with pause_next(app, "before_commit", command_id="slow") as pause:
        slow, other = crowd.together(
            partial(given, app, "slow", app.actor(Stock, "a").add, 1),
            partial(app.actor(Stock, "b").add, 1),
        )
        pause.wait()
        beside.until("its handler has run", lambda: "b" in ran)
        # As a time limit does that is set from another thread: it takes effect when the member wakes.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threads["b"]), ctypes.py_object(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            other.result(WAIT)
    assert slow.result(WAIT) == 1
    assert inspect(app, app.actor(Stock, "b")).state is None
    assert receipts(app, app.actor(Stock, "b")) == ()
    assert len(receipts(app, app.actor(Stock, "a"))) == 1


def test_a_caller_whose_seat_is_free_and_whom_nobody_woke_takes_it(
    app: Any, start: Any, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats = app._turns._seats
    monkeypatch.setattr(seats, "_free", 1)
    monkeypatch.setattr("akter.seats._LOOK", 0.1)
    with pause_next(app, "before_commit", command_id="busy") as busy:
        held = start(given, app, "busy", app.actor(Stock, "in the way").add, 1)
        busy.wait()
        other = start(app.actor(Stock, "a").add, 1)
        beside.until("it waits", lambda: len(seats._waiting) == 1)
        monkeypatch.setattr(Caller, "ring", lambda caller: None)
    assert (held.result(WAIT), other.result(5.0)) == (1, 1)


@pytest.mark.conformance("GRP-04")
@pytest.mark.parametrize("slow", ["a", "c"], ids=["the leader", "a follower"])
def test_a_slow_member_is_withdrawn_and_commits_once_alone(
    app: Any, crowd: Crowd, beside: Any, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    others = [id for id in "abc" if id != slow]
    monkeypatch.setattr("akter.group.PATIENCE", 1.0)
    with pause_next(app, "before_handler", command_id=f"slow-{slow}") as pause:
        answers = crowd.together(*(partial(given, app, f"slow-{id}", app.actor(Stock, id).add, 1) for id in "abc"))
        pause.wait()
        beside.until("the others are answered", lambda: set(transactions(beside)) == set(others))
        assert [answer.done() for answer, id in zip(answers, "abc", strict=True) if id == slow] == [False]
        assert {answer.result(WAIT) for answer, id in zip(answers, "abc", strict=True) if id != slow} == {1}
    assert [answer.result(WAIT) for answer in answers] == [1, 1, 1]
    found = transactions(beside)
    assert found[slow] not in {found[id] for id in others}
    assert [len(receipts(app, app.actor(Stock, id))) for id in "abc"] == [1, 1, 1]


@pytest.mark.conformance("GRP-04")
@pytest.mark.parametrize("told", [False, True], ids=["to begin", "how it ended"])
def test_a_caller_that_is_late_to_wake_the_next_one_holds_nobody_up_for_long(
    app: Any, crowd: Crowd, beside: Any, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr("akter.group.PATIENCE", 0.2)
    woken, late = Caller.pass_on, list[Caller]()

    def pass_on(caller: Caller) -> None:
        if caller.next is None or (caller.verdict is not None) is not told:
            return woken(caller)
        late.append(caller)
        caller.next = None

    monkeypatch.setattr(Caller, "pass_on", pass_on)
    answers = crowd.together(*(partial(app.actor(Stock, id).add, 1) for id in "abcd"))
    assert [answer.result(10.0) for answer in answers] == [1, 1, 1, 1]
    assert late
    assert [len(receipts(app, app.actor(Stock, id))) for id in "abcd"] == [1, 1, 1, 1]


@pytest.mark.conformance("GRP-04")
def test_a_member_that_is_done_while_the_others_commit_without_it_runs_again(
    akter_app: Any, start: Any, beside: Any, other_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it handed over then is in no transaction, so nobody may tell its caller that it is saved."""
    patient(monkeypatch)
    monkeypatch.setattr("akter.group.PATIENCE", 1.0)
    monkeypatch.setattr("akter.shared._LOCK", WAIT)
    app = akter_app(Stock, lock=9.0)
    app.verify()
    seen_quick(app, Stock)
    crowd = Crowd(app, start, beside.until, partial(app.actor(Stock, "in the way").add, 1))
    with other_engine.connect() as holding, pause_next(app, "before_handler", command_id="slow") as pause:
        lock = f'LOCK TABLE "{app.schema}".actor_receipts IN EXCLUSIVE MODE'
        inside["a"] = lambda: holding.execute(text(lock))
        answers = crowd.together(
            partial(app.actor(Stock, "a").add, 1),
            partial(given, app, "slow", app.actor(Stock, "b").add, 1),
            partial(app.actor(Stock, "c").add, 1),
        )
        pause.wait()
        beside.until_waiting(1)
        pause.release()
        # Again, alone, and behind the lock of the transaction that commits.
        beside.until_waiting(2)
        assert not answers[1].done()
        holding.rollback()
        assert [answer.result(WAIT) for answer in answers] == [1, 1, 1]
    found = transactions(beside)
    assert found["a"] == found["c"] != found["b"]
    assert inspect(app, app.actor(Stock, "b")).state == {"pieces": 1}


def test_those_behind_a_slow_member_of_their_actor_run_alone_behind_it(
    app: Any, crowd: Crowd, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.group.PATIENCE", 0.2)
    with pause_next(app, "before_handler", command_id="slow") as pause:
        first, *behind = crowd.together(
            partial(given, app, "slow", app.actor(Stock, "a").add, 1),
            partial(app.actor(Stock, "a").add, 10),
            partial(app.actor(Stock, "a").add, 10),
        )
        pause.wait()
        assert sorted(answer.result(WAIT) for answer in behind) == [10, 20]
    assert first.result(WAIT) == 21


@pytest.mark.conformance("GRP-05")
def test_a_statements_error_is_its_members_and_the_others_run_again_alone(
    app: Any, crowd: Crowd, beside: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "akter.turn")
    beside("CREATE FUNCTION no_more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no more'; END $$")
    beside("CREATE TRIGGER no_more BEFORE INSERT ON {akter}.actor_events FOR EACH ROW WHEN (NEW.actor_id = 'b') EXECUTE FUNCTION no_more()")
    first, failing, last = crowd.together(*(partial(app.actor(Stock, id).add, 1) for id in "abc"))
    assert (first.result(WAIT), last.result(WAIT)) == (1, 1)
    with pytest.raises(Defect, match="no more"):
        failing.result(WAIT)
    assert set(transactions(beside)) == {"a", "c"}
    assert len(set(transactions(beside).values())) == 2
    assert sorted(ran) == ["a", "a", "b", "b", "c", "c", "in the way"]
    assert [record.message for record in caplog.records if record.message.startswith("turn.group")] == ["turn.group_fell_apart"]


def test_a_member_that_touches_sql_leaves_runs_again_alone_and_is_remembered(
    app: Any, crowd: Crowd, beside: Any, words: Callable[[], list[str]]
) -> None:
    answers = crowd.together(
        partial(app.actor(Stock, "a").add, 1), partial(app.actor(Stock, "b").write, "one"), partial(app.actor(Stock, "c").add, 1)
    )
    assert [answer.result(WAIT) for answer in answers] == [1, 1, 1]
    found = transactions(beside)
    assert found["a"] == found["c"] != found["b"]
    assert (words(), ran.count("b")) == (["one"], 2)
    ran.clear()
    with pause_next(app, "before_commit", command_id="quick") as pause:
        held = crowd._start(given, app, "quick", app.actor(Stock, "a").add, 1)
        pause.wait()
        # It does not wait with the quick ones.
        assert app.actor(Stock, "b").write("two") == 2
    assert held.result(WAIT) == 2
    assert (words(), ran.count("b")) == (["one", "two"], 1)


@pytest.mark.conformance("GRP-06")
def test_a_member_that_swallows_that_it_must_leave_leaves_all_the_same(
    app: Any, crowd: Crowd, beside: Any, words: Callable[[], list[str]]
) -> None:
    answers = crowd.together(
        partial(app.actor(Stock, "a").add, 1), partial(app.actor(Stock, "a").swallow, "x"), partial(app.actor(Stock, "a").add, 1)
    )
    assert sorted(answer.result(WAIT) for answer in answers)[0] == 1
    # It and the one behind it ran again, in whichever order, and what it did in the group is gone.
    assert inspect(app, app.actor(Stock, "a")).state == {"pieces": 9}
    assert (words(), len(receipts(app, app.actor(Stock, "a")))) == (["x"], 3)


@pytest.mark.conformance("GRP-07")
def test_an_actor_that_is_busy_elsewhere_does_not_hold_up_its_neighbours(
    app: Any, crowd: Crowd, start: Any, beside: Any, akter_app: Any, other_engine: Any
) -> None:
    second = akter_app(Stock, engine=other_engine)
    with pause_next(second, "before_commit") as pause:
        busy = start(second.actor(Stock, "b").add, 5)
        pause.wait()
        answers = crowd.together(*(partial(app.actor(Stock, id).add, 1) for id in "abc"))
        assert [answers[0].result(WAIT), answers[2].result(WAIT)] == [1, 1]
        assert not answers[1].done()
    assert (busy.result(WAIT), answers[1].result(WAIT)) == (5, 6)


@pytest.mark.conformance("PIPE-15")
def test_a_group_that_loses_its_database_answers_every_caller(app: Any, crowd: Crowd, beside: Any) -> None:
    killed: list[bool] = []

    def kill() -> None:
        if not killed:
            killed.append(True)
            beside(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND state = 'idle in transaction'"
            )

    inside["b"] = kill
    answers = crowd.together(*(partial(app.actor(Stock, id).add, 1) for id in "abc"))
    assert [answer.result(WAIT) for answer in answers] == [1, 1, 1]
    assert [len(receipts(app, app.actor(Stock, id))) for id in "abc"] == [1, 1, 1]


def test_a_lone_call_waits_for_nobody(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(*_: Any) -> float:
        raise AssertionError("a lone call waited")

    monkeypatch.setattr("akter.seats.Seats._patience", waits)
    assert [app.actor(Stock, "a").add(1) for _ in range(20)] == list(range(1, 21))


def test_a_quick_call_takes_a_free_seat_when_those_before_it_take_long(app: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("akter.seats.PATIENCE", 0.02)
    with pause_next(app, "before_commit", command_id="long") as pause:
        held = start(given, app, "long", app.actor(Stock, "a").add, 1)
        pause.wait()
        assert app.actor(Stock, "b").add(1) == 1
        assert not held.done()
    assert held.result(WAIT) == 1


def test_a_call_whose_time_is_over_before_it_has_a_seat_says_so(akter_app: Any, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from akter import Unavailable

    patient(monkeypatch)
    app = akter_app(Stock, execution=0.2, delivery=0.3, lock=0.1)
    app.verify()
    seen_quick(app, Stock)
    seats = app._turns._seats
    while seats._free:
        seats._free -= 1
    with pytest.raises(Unavailable, match="every turn seat"):
        app.actor(Stock, "b").add(1)
    assert not seats._waiting
