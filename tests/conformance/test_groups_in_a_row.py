"""Groups of direct calls, one after the other on one connection: the commit of each carries the admission of the next."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

import pytest
import sqlalchemy
from collected import garbage
from crowd import ENDLESS, WAIT, Crowd, Refused, Stock, given, inside, patient, ran, seen_quick, threads
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from proxied import Proxy
from sqlalchemy import text

from akter import Akter, Defect
from akter.caller import System
from akter.chain import RunsAlone
from akter.seats import Caller
from akter.store import flight
from akter.store.link import Link
from akter.testing import crash_next, inspect, pause_next, receipts


class Flights:
    """What was sent, in order: the first word of each statement, `behind` another flight what is not answered with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        self.landed = 0

        def fly(connection: Any, link: Any, lines: Any, seconds: float) -> Any:
            self.sent.append(_words(lines))
            return flight.fly(connection, link, lines, seconds)

        def depart(connection: Any, link: Any, lines: Any, behind: Any, seconds: float) -> Any:
            self.sent.append(f"{_words(lines)} | {_words(behind)}")
            return flight.depart(connection, link, lines, behind, seconds)

        def land(connection: Any, link: Any, behind: Any, seconds: float) -> Any:
            self.landed += 1
            return flight.land(connection, link, behind, seconds)

        for made in (fly, depart, land):
            monkeypatch.setattr(f"akter.store.wire.{made.__name__}", made)

    @property
    def carried(self) -> int:
        """How many commits carried an admission."""
        return sum("|" in sent for sent in self.sent)


def _words(lines: Any) -> str:
    return " ".join(line.statement.sql.split()[0].decode() for line in lines)


ALONE, ADMISSION = "BEGIN SELECT INSERT SELECT", "BEGIN SELECT SELECT INSERT SELECT"
COMMIT = "WITH COMMIT"


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    threads.clear()
    inside.clear()
    # Two callers are a group, so that those who wait make several.
    patient(monkeypatch)
    monkeypatch.setattr("akter.seats.MOST", 2)
    monkeypatch.setattr("akter.shared._LOCK", WAIT)


def made(akter_app: Any, **options: Any) -> Akter:
    found: Akter = akter_app(Stock, lock=9.0, **options)
    found.verify()
    seen_quick(found, Stock)
    found._turns._pace.saw(Stock.__akter__.members["count_rows"], 0.0, used_sql=True)
    return found


@pytest.fixture
def app(akter_app: Any) -> Akter:
    return made(akter_app)


@pytest.fixture
def crowd(app: Akter, start: Any, beside: Any) -> Crowd:
    return Crowd(app, start, beside.until, partial(app.actor(Stock, "in the way").add, 1))


@pytest.fixture
def flights(app: Akter, monkeypatch: pytest.MonkeyPatch) -> Flights:
    app.actor(Stock, "in the way").add(1)
    ran.clear()
    return Flights(monkeypatch)


@pytest.fixture
def second(akter_app: Any, other_engine: Any) -> Any:
    """The app of another process."""
    return akter_app(Stock, engine=other_engine)


@pytest.fixture
def nothing_lost(app: Akter) -> Iterator[None]:
    """In the end every seat is free and every connection is in the pool."""
    seats = app._turns._seats
    before = seats._free
    yield
    assert (seats._free, seats._sharing, seats._sharers, len(seats._waiting)) == (before, 0, 0, 0)
    assert app.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


pytestmark = pytest.mark.usefixtures("nothing_lost")


def adds(app: Akter, ids: str, pieces: int = 1) -> list[Callable[[], Any]]:
    """A call of `add` for each of these actors, under an id like the actor's."""
    return [partial(given, app, id, app.actor(Stock, id).add, pieces) for id in ids]


def results(answers: list[Future[Any]]) -> list[Any]:
    return [answer.result(WAIT) for answer in answers]


def groups(beside: Any) -> list[str]:
    """The actors whose last receipts one transaction wrote, in order of their names."""
    found = beside(
        "SELECT string_agg(actor_id, '' ORDER BY actor_id) FROM {akter}.actor_receipts WHERE actor_id <> 'in the way'"
        " GROUP BY xmin::text ORDER BY 1"
    )
    return [ids for (ids,) in found]


def backends(beside: Any) -> set[int]:
    """The server's processes that serve the app's connections."""
    asked = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    return {pid for (pid,) in beside(f"{asked} AND pid <> pg_backend_pid()")}


class Held:
    """Commits that wait: a deferred trigger of these actors' receipts asks for a lock that somebody has."""

    def __init__(self, connection: Any, beside: Any) -> None:
        self._connection, self._beside = connection, beside

    def wait(self) -> None:
        """Until a COMMIT has arrived and waits."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
        self._beside.until("a commit waits", lambda: self._beside(asked) == [(1,)])

    def release(self) -> None:
        self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
        self._connection.commit()


@pytest.fixture
def held_commit(app: Akter, beside: Any, other_engine: Any) -> Iterator[Held]:
    """The commit with the receipt of actor `a` waits."""
    beside("CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$")
    beside(
        "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON {akter}.actor_receipts DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW WHEN (NEW.actor_id = 'a') EXECUTE FUNCTION hold()"
    )
    with other_engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(7)"))
        held = Held(connection, beside)
        yield held
        held.release()


@pytest.mark.conformance("PIPE-16")
def test_the_admission_of_the_next_group_is_sent_behind_the_commit_of_the_one_before_it(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights
) -> None:
    assert results(crowd.together(*adds(app, "abcdef"))) == [1, 1, 1, 1, 1, 1]
    assert groups(beside) == ["ab", "cd", "ef"]
    assert flights.sent == [
        ALONE,
        COMMIT,
        ADMISSION,
        f"{COMMIT} | {ADMISSION}",
        f"{COMMIT} | {ADMISSION}",
        COMMIT,
    ]
    assert flights.landed == 2


@pytest.mark.conformance("PIPE-16")
def test_three_groups_in_a_row_are_four_flights(akter_app: Any, akter_database: str, start: Any, beside: Any) -> None:
    proxy = Proxy(akter_database)
    engine = sqlalchemy.create_engine(proxy.url, pool_size=1, max_overflow=0)
    try:
        app = made(akter_app, engine=engine)
        stock = app.actor(Stock, "in the way")
        stock.add(1)
        crowd = Crowd(app, start, beside.until, partial(stock.add, 1))
        # Whatever is prepared for groups is prepared once.
        assert results(crowd.together(*adds(app, "uvwx"))) == [1, 1, 1, 1]
        with proxy.count() as seen:
            assert results(crowd.together(*adds(app, "abcdef"))) == [1, 1, 1, 1, 1, 1]
        # Two of the call that is in the way, one admission, three commits.
        assert seen.flights == 2 + 1 + 3
        words = " ".join(statement.split()[0] for statement in seen.statements)
        assert words == " ".join([ALONE, COMMIT, *[ADMISSION, COMMIT] * 3])
    finally:
        app.close()
        engine.dispose()
        proxy.close()


@pytest.mark.conformance("PIPE-16", "PIPE-18")
def test_the_handlers_of_the_next_group_wait_for_the_commit_that_carries_their_admission(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights, held_commit: Held
) -> None:
    answers = crowd.together(*adds(app, "abcd"))
    held_commit.wait()
    assert flights.sent[-1] == f"{COMMIT} | {ADMISSION}"
    assert sorted(ran) == ["a", "b", "in the way"]
    assert groups(beside) == []
    assert [answer.done() for answer in answers] == [False, False, False, False]
    held_commit.release()
    assert results(answers) == [1, 1, 1, 1]
    assert sorted(ran) == ["a", "b", "c", "d", "in the way"]


@pytest.mark.conformance("PIPE-16")
def test_the_first_group_is_answered_while_the_next_ones_admission_waits_for_a_lock_of_somebody_else(
    app: Akter, crowd: Crowd, second: Any, start: Any, beside: Any, flights: Flights
) -> None:
    with pause_next(second, "before_commit") as pause:
        busy = start(second.actor(Stock, "d").add, 10)
        pause.wait()
        ran.clear()
        answers = crowd.together(*adds(app, "abcd"))
        assert results(answers[:2]) == [1, 1]
        beside.until_waiting(1)
        # Its handlers wait for their own admission.
        assert sorted(ran) == ["a", "b", "in the way"]
        assert [answer.done() for answer in answers[2:]] == [False, False]
        assert flights.carried == 1
    assert busy.result(WAIT) == 10
    assert results(answers[2:]) == [1, 11]
    assert groups(beside) == ["ab", "cd", "d"]


@pytest.mark.conformance("PIPE-16", "GRP-07")
def test_a_next_group_with_an_actor_that_is_busy_elsewhere_for_long_runs_alone(
    app: Akter, crowd: Crowd, second: Any, start: Any, beside: Any, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.shared._LOCK", 0.1)
    with pause_next(second, "before_commit") as pause:
        busy = start(second.actor(Stock, "d").add, 10)
        pause.wait()
        answers = crowd.together(*adds(app, "abcd"))
        assert results(answers[:3]) == [1, 1, 1]
        assert not answers[3].done()
        assert flights.carried == 1
    assert (busy.result(WAIT), answers[3].result(WAIT)) == (10, 11)
    assert ran.count("c") == 1


FAILURES: dict[str, Callable[[Any], object]] = {
    "its state was changed from outside": lambda beside: beside(
        "UPDATE {akter}.actor_state SET value = '{\"pieces\": 50}', version = version + 1 WHERE actor_id = 'b'"
    ),
    "a statement fails": lambda beside: beside(
        "CREATE TRIGGER no_more BEFORE INSERT ON {akter}.actor_receipts"
        " FOR EACH ROW WHEN (NEW.actor_id = 'b' AND NEW.command_id LIKE '%b') EXECUTE FUNCTION no_more()"
    ),
    "the commit fails": lambda beside: beside(
        "CREATE CONSTRAINT TRIGGER no_more AFTER INSERT ON {akter}.actor_receipts DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW WHEN (NEW.actor_id = 'b' AND NEW.command_id LIKE '%b') EXECUTE FUNCTION no_more()"
    ),
}


@pytest.mark.conformance("PIPE-17")
@pytest.mark.parametrize("how", FAILURES)
def test_a_commit_that_fails_takes_nothing_of_the_next_group_with_it(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights, how: str
) -> None:
    app.actor(Stock, "b").add(5)
    ran.clear()
    flights.sent.clear()
    beside("CREATE FUNCTION no_more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no more'; END $$")
    if how.startswith("its state"):
        once = [True]
        inside["b"] = lambda: once.pop() and FAILURES[how](beside) if once else None
    else:
        FAILURES[how](beside)
    before = backends(beside)
    answers = crowd.together(*adds(app, "abcd"))
    assert [answers[number].result(WAIT) for number in (0, 2, 3)] == [1, 1, 1]
    if how.startswith("its state"):
        assert answers[1].result(WAIT) == 51
    else:
        with pytest.raises(Defect, match="no more"):
            answers[1].result(WAIT)
    # The connection is as good as before.
    assert before <= backends(beside)
    # What went with the failed commit was never looked at: the group was admitted anew, and its handlers ran once.
    assert (flights.carried, flights.landed, flights.sent.count(ADMISSION)) == (1, 0, 2)
    assert sorted(ran) == ["a", "a", "b", "b", "c", "d", "in the way"]
    assert "cd" in groups(beside)
    assert [len(receipts(app, app.actor(Stock, id))) for id in "abcd"] == [1, 2 if how.startswith("its state") else 1, 1, 1]
    assert [inspect(app, app.actor(Stock, id)).state for id in "abcd"] == [
        {"pieces": 1},
        {"pieces": 51 if how.startswith("its state") else 5},
        {"pieces": 1},
        {"pieces": 1},
    ]


@pytest.mark.conformance("PIPE-18")
def test_a_later_group_is_hidden_until_its_own_commit(app: Akter, crowd: Crowd, beside: Any, flights: Flights) -> None:
    with pause_next(app, "before_commit", command_id="d") as pause:
        answers = crowd.together(*adds(app, "abcd"))
        assert results(answers[:2]) == [1, 1]
        pause.wait()
        beside.until("its neighbour is done", lambda: "c" in ran)
        assert groups(beside) == ["ab"]
        assert beside("SELECT actor_id FROM {akter}.actor_state WHERE actor_id <> 'in the way' ORDER BY 1") == [("a",), ("b",)]
        assert beside("SELECT actor_id FROM {akter}.actor_generations WHERE actor_id IN ('c', 'd')") == []
        assert [answer.done() for answer in answers[2:]] == [False, False]
    assert results(answers[2:]) == [1, 1]
    assert (groups(beside), flights.landed) == (["ab", "cd"], 1)


@pytest.mark.conformance("PIPE-19")
def test_callers_of_a_committed_group_get_their_outcomes_whatever_the_next_one_raises(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights
) -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    inside["c"] = inside["d"] = broken
    first, refused, *later = crowd.together(*adds(app, "a"), app.actor(Stock, "b").refuse, *adds(app, "cd"))
    assert first.result(WAIT) == 1
    with pytest.raises(Refused) as caught:
        refused.result(WAIT)
    assert caught.value == Refused(seen=0)
    for answer in later:
        with pytest.raises(Defect, match="broken"):
            answer.result(WAIT)
    assert (flights.carried, flights.landed) == (1, 1)
    assert groups(beside) == ["ab"]
    assert sorted(ran) == ["a", "b", "c", "d", "in the way"]


@pytest.mark.conformance("PIPE-19", "BATCH-05")
@pytest.mark.parametrize("point", ["queued", "before_handler", "before_commit", "after_commit"])
def test_a_crash_in_the_next_group_leaves_the_committed_one_as_it_is(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights, point: Any
) -> None:
    crash_next(app, point, command_id="c")
    assert results(crowd.together(*adds(app, "abcd"))) == [1, 1, 1, 1]
    assert (flights.carried, flights.landed) == (1, 1)
    assert (ran.count("a"), ran.count("b")) == (1, 1)
    assert groups(beside)[0] == "ab"
    assert [len(receipts(app, app.actor(Stock, id))) for id in "abcd"] == [1, 1, 1, 1]


@pytest.mark.conformance("PIPE-19")
def test_a_crash_after_the_commit_that_carried_an_admission_is_answered_by_the_receipt(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights
) -> None:
    for id in "ab":
        crash_next(app, "after_commit", command_id=id)
    assert results(crowd.together(*adds(app, "abcd"))) == [1, 1, 1, 1]
    assert flights.landed == 1
    assert sorted(ran) == ["a", "b", "c", "d", "in the way"]
    assert groups(beside) == ["ab", "cd"]


@pytest.mark.conformance("PIPE-15", "PIPE-19")
@pytest.mark.parametrize("when", ["admission", "handler"])
def test_a_connection_lost_between_two_commits_costs_nobody_an_answer_and_no_command_runs_twice(
    app: Akter, crowd: Crowd, second: Any, start: Any, beside: Any, flights: Flights, when: str
) -> None:
    def kill(state: str) -> bool:
        killed = beside(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND "
            + state
        )
        assert killed == [(True,)]
        return True

    if when == "handler":
        once = [True]
        inside["c"] = lambda: once.pop() and kill("state = 'idle in transaction'") if once else None
        answers = crowd.together(*adds(app, "abcd"))
        assert results(answers) == [1, 1, 1, 1]
    else:
        with pause_next(second, "before_commit", command_id="other") as pause:
            busy = start(given, second, "other", second.actor(Stock, "d").add, 10)
            pause.wait()
            ran.clear()
            answers = crowd.together(*adds(app, "abcd"))
            beside.until_waiting(1)
            kill("wait_event_type = 'Lock'")
            assert results(answers[:3]) == [1, 1, 1]
        assert (busy.result(WAIT), answers[3].result(WAIT)) == (10, 11)
    assert flights.landed == 1
    assert (ran.count("a"), ran.count("b")) == (1, 1)
    assert "ab" in groups(beside)
    assert [len(receipts(app, app.actor(Stock, id))) for id in "abcd"] == [1, 1, 1, 1 if when == "handler" else 2]
    assert [inspect(app, app.actor(Stock, id)).state for id in "abc"] == [{"pieces": 1}] * 3


def test_a_group_with_an_actor_of_the_group_before_it_begins_anew(
    app: Akter, crowd: Crowd, second: Any, start: Any, beside: Any, flights: Flights
) -> None:
    """Whoever waits for that actor elsewhere would never get its lock from a connection that takes it again at once."""
    with pause_next(app, "before_commit", command_id="b") as pause:
        answers = crowd.together(*adds(app, "abc"), partial(app.actor(Stock, "a").add, 100))
        pause.wait()
        waiter = start(second.actor(Stock, "a").add, 10)
        beside.until_waiting(1)
    results([*answers, waiter])
    assert (flights.carried, flights.sent.count(ADMISSION)) == (0, 2)
    assert [answer.result(WAIT) for answer in answers[:3]] == [1, 1, 1]
    assert inspect(app, app.actor(Stock, "a")).state == {"pieces": 111}


def test_what_waits_for_the_one_seat_and_does_not_share_is_not_passed_by_groups(
    app: Akter, crowd: Crowd, start: Any, beside: Any, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats = app._turns._seats
    monkeypatch.setattr(seats, "_free", 1)
    with pause_next(app, "before_commit", command_id="b") as pause:
        answers = crowd.together(*adds(app, "ab"))
        pause.wait()
        beside.until("its neighbour is done", lambda: "a" in ran)
        for call in (app.actor(Stock, "w").count_rows, *adds(app, "cdef")):
            waiting = len(seats._waiting)
            answers.append(start(call))
            beside.until("it waits", lambda: len(seats._waiting) == waiting + 1)  # noqa: B023
    assert results(answers) == [1, 1, 7, 1, 1, 1, 1]
    assert [sorted(ran[1:3]), ran[3], sorted(ran[4:6]), sorted(ran[6:])] == [["a", "b"], "w", ["c", "d"], ["e", "f"]]
    # Only the last two had nobody between them.
    assert flights.carried == 1
    assert seats._free == 1
    monkeypatch.undo()


def test_what_does_not_share_takes_a_free_seat_beside_groups_in_a_row(app: Akter, crowd: Crowd, beside: Any, flights: Flights) -> None:
    with pause_next(app, "before_commit", command_id="b") as pause:
        answers = crowd.together(*adds(app, "abcd"))
        pause.wait()
        assert app.actor(Stock, "w").count_rows() == 7
    assert results(answers) == [1, 1, 1, 1]
    assert flights.carried == 1


@pytest.mark.parametrize("most", [1, 2, 3])
def test_only_so_many_groups_use_a_connection_before_it_visits_the_pool(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("akter.shared._MOST", most)
    assert results(crowd.together(*adds(app, "abcdefghijkl"))) == [1] * 12
    assert groups(beside) == ["ab", "cd", "ef", "gh", "ij", "kl"]
    carried, last = f"{COMMIT} | {ADMISSION}", COMMIT
    assert flights.sent[2:] == [ADMISSION, *[carried] * (most - 1), last] * (6 // most)


def test_a_connection_visits_the_pool_between_groups_that_never_end(
    app: Akter, crowd: Crowd, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.shared._MOST", 2)
    assert results(crowd.together(*adds(app, "abcdefghijkl"))) == [1] * 12
    assert flights.sent.count(ADMISSION) >= 2


def test_a_seat_that_is_handed_on_counts_the_commands_that_are_in_it_now(
    app: Akter, crowd: Crowd, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.seats.MOST", 4)
    seats = app._turns._seats
    with pause_next(app, "before_commit", command_id="g") as pause:
        answers = crowd.together(*adds(app, "abcdefg"))
        pause.wait()
        assert (seats._sharing, seats._sharers) == (1, 3)
    assert results(answers) == [1] * 7
    assert flights.carried == 1


def test_a_leader_that_is_interrupted_before_the_group_before_its_own_is_over_costs_the_others_nothing(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights, held_commit: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.group._LOOK", 0.02)
    monkeypatch.setattr("akter.seats._LOOK", 0.02)
    seats = app._turns._seats
    monkeypatch.setattr(seats, "_free", 1)
    leader: list[int] = []

    def led() -> Any:
        leader.append(threading.get_ident())
        return adds(app, "c")[0]()

    answers = crowd.together(*adds(app, "ab"), led, *adds(app, "d"))
    held_commit.wait()
    assert (flights.carried, flights.landed) == (1, 0)
    # As a time limit does that is set from another thread.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(leader[0]), ctypes.py_object(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        answers[2].result(WAIT)
    assert [answers[number].done() for number in (0, 1, 3)] == [False, False, False]
    held_commit.release()
    assert [answers[number].result(WAIT) for number in (0, 1, 3)] == [1, 1, 1]
    assert sorted(ran) == ["a", "b", "d", "in the way"]
    assert groups(beside) == ["ab", "d"]
    assert (seats._free, seats._sharing, seats._sharers) == (1, 0, 0)
    assert app.actor(Stock, "c").add(1) == 1
    monkeypatch.undo()


@pytest.mark.conformance("PIPE-17")
def test_a_commit_that_is_interrupted_leaves_the_next_group_to_begin_anew_at_once(
    app: Akter, crowd: Crowd, beside: Any, flights: Flights, held_commit: Held
) -> None:
    answers = crowd.together(*adds(app, "abcd"))
    held_commit.wait()
    # Whoever was done last is the one that commits; which of the two that is, only their stacks know.
    frames = sys._current_frames()
    (commits,) = [threads[id] for id in "ab" if "depart" in _calls(frames[threads[id]])]
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(commits), ctypes.py_object(KeyboardInterrupt))
    assert results(answers[2:]) == [1, 1]
    assert (flights.carried, flights.landed) == (1, 0)
    held_commit.release()
    interrupted, other = answers[:2] if commits == threads["a"] else reversed(answers[:2])
    with pytest.raises(KeyboardInterrupt):
        interrupted.result(WAIT)
    # It had committed, which the other one's receipt says.
    assert other.result(WAIT) == 1
    assert sorted(ran) == ["a", "b", "c", "d", "in the way"]
    assert groups(beside) == ["ab", "cd"]


def _calls(frame: Any) -> list[str]:
    found = []
    while frame is not None:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


def test_time_limits_are_sent_again_when_the_commit_that_carried_them_took_much_of_the_time(
    app: Akter, crowd: Crowd, flights: Flights, held_commit: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = [9.0]
    monkeypatch.setattr("akter.turn.left", lambda deadline: rest[0])
    answers = crowd.together(*adds(app, "abcd"))
    held_commit.wait()
    rest[0] = 6.0
    held_commit.release()
    assert results(answers) == [1, 1, 1, 1]
    assert flights.sent[-2:] == [f"{COMMIT} | {ADMISSION}", f"SELECT {COMMIT}"]


def test_a_connection_whose_plans_are_to_be_made_anew_visits_the_pool_for_that() -> None:
    link = Link(pooled=False)
    assert [link.use() for _ in range(62)] == [False] * 62
    assert [link.use_again() for _ in range(4)] == [True, True, False, False]
    # The same use plans anew, and then it may go on.
    assert (link.use(), link.use_again()) == (True, True)


def test_behind_a_pooler_in_transaction_mode_every_group_has_flights_of_its_own(
    app: Akter, crowd: Crowd, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pooled(Link):
        """What is known of a connection through such a pooler."""

        pooled = property(lambda link: True, lambda link, found: None)

    monkeypatch.setattr("akter.store.wire.Link", Pooled)
    app.engine.dispose()
    flights = Flights(monkeypatch)
    assert results(crowd.together(*adds(app, "abcd"))) == [1, 1, 1, 1]
    assert groups(beside) == ["ab", "cd"]
    assert (flights.carried, flights.sent.count(ADMISSION)) == (0, 2)


def test_groups_in_a_row_leave_nothing_for_the_collector_of_garbage(app: Akter, crowd: Crowd, flights: Flights) -> None:
    assert garbage(lambda: results(crowd.together(*adds(app, "abcdef"))).clear()) == []
    assert flights.carried == 2


@pytest.mark.conformance("OBS-01")
def test_each_member_of_a_group_that_was_admitted_with_a_commit_has_the_spans_of_a_turn(app: Akter, crowd: Crowd, flights: Flights) -> None:
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    app.telemetry.use(tracer_provider=tracers)
    assert results(crowd.together(*adds(app, "abcd"))) == [1, 1, 1, 1]
    assert flights.carried == 1
    found = [(str((span.attributes or {})["actor.id"]), span.name) for span in exporter.get_finished_spans()]
    tracers.shutdown()
    names = ("akter.Stock/add", "akter.admission", "akter.commit")
    assert sorted(found) == [(id, name) for id in ("a", "b", "c", "d", "in the way") for name in names]
    traces = {span.context.trace_id for span in exporter.get_finished_spans() if span.context}
    assert len(traces) == 5


@pytest.mark.parametrize("few", [4, 3], ids=["fewer run than a few", "a few run"])
def test_a_second_transaction_begins_at_once_only_while_fewer_commands_run_than_a_few(
    app: Akter, crowd: Crowd, start: Any, beside: Any, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr("akter.seats.MOST", 32)
    with pause_next(app, "before_commit", command_id="c") as pause:
        answers = crowd.together(*adds(app, "abc"))
        pause.wait()
        monkeypatch.setattr("akter.seats.TOGETHER", 2)
        monkeypatch.setattr("akter.seats.FEW", few)
        monkeypatch.setattr("akter.seats.MANY", ENDLESS)
        other = start(app.actor(Stock, "d").add, 1)
        if few == 4:
            assert other.result(WAIT) == 1
        else:
            beside.until("it waits", lambda: len(app._turns._seats._waiting) == 1)
        assert [answer.done() for answer in answers] == [False, False, False]
        assert ("d" in ran) is (few == 4)
    assert results([*answers, other]) == [1, 1, 1, 1]


def test_a_second_transaction_begins_when_many_wait(
    app: Akter, crowd: Crowd, start: Any, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akter.seats.MOST", 32)
    seats = app._turns._seats
    with pause_next(app, "before_commit", command_id="d") as pause:
        first = crowd.together(*adds(app, "abcd"))
        pause.wait()
        beside.until("the others are done", lambda: {"a", "b", "c"} <= set(ran))
        monkeypatch.setattr("akter.seats.TOGETHER", 2)
        others = []
        for number, call in enumerate(adds(app, "efghijklmnop"), start=1):
            others.append(start(call))
            beside.until("it waits", lambda: len(seats._waiting) == number)  # noqa: B023
        assert sorted(ran) == ["a", "b", "c", "d", "in the way"]
        others += [start(call) for call in adds(app, "q")]
        assert results(others) == [1] * 13
        assert [answer.done() for answer in first] == [False, False, False, False]
    assert results(first) == [1, 1, 1, 1]
    assert groups(beside) == ["abcd", "efghijklmnopq"]


def test_a_commit_whose_ids_are_near_their_end_carries_nothing(
    app: Akter, crowd: Crowd, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read behind such a commit, and would be in one transaction with what follows."""
    monkeypatch.setattr("akter.turn._NEAR_EXPIRY_MS", 2 * 86_400_000)
    assert results(crowd.together(*(partial(app.actor(Stock, id).add, 1) for id in "abcd"))) == [1, 1, 1, 1]
    assert flights.carried == 0
    assert len([sent for sent in flights.sent if sent.endswith("COMMIT SELECT")]) == 2


def test_a_next_group_that_cannot_be_made_takes_nobodys_seat(app: Akter, crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    seats, failed = app._turns._seats, list[int]()
    gather = seats._gather

    def interrupted(party: Any, promised: bool) -> Any:
        if promised and not failed:
            failed.append(len(party))
            raise RuntimeError("interrupted")
        return gather(party, promised)

    monkeypatch.setattr(seats, "_gather", interrupted)
    assert results(crowd.together(*adds(app, "abcd"))) == [1, 1, 1, 1]
    assert failed == [2]


def test_a_group_that_nobody_lets_begin_gives_its_seat_back_and_runs_alone(app: Akter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was to do that was interrupted on the way."""
    turns, add = app._turns, cast(Any, app.actor(Stock, "a").add)
    arguments = add.command.bind((1,), {})[1]
    callers = [Caller(app._call(add, arguments, System(), None), 10.0, time.monotonic() + 30, shares=True) for _ in range(2)]
    turns._seats._free, turns._seats._sharing, turns._seats._sharers = turns._seats._free - 1, 1, 2
    group = turns._gather(callers, True)
    monkeypatch.setattr("akter.group._GRACE", -10.0)
    for caller in callers:
        with pytest.raises(RunsAlone):
            group.run(caller)


def test_an_interrupt_before_the_handler_is_the_callers(app: Akter, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("akter.member.Member.handle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        app.actor(Stock, "a").add(1)
