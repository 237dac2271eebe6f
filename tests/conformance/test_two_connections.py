"""Locks, receipts and state with two and more real connections at once."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text

from akter import Actor, CommandConflict, Rejection, command
from akter.testing import inspect, pause_next, receipts

CHILD = pathlib.Path(__file__).parent / "child.py"
ran: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


class Refused(Rejection):
    """No."""

    seen: int


class Stock(Actor):
    """Counts pieces."""

    pieces: int = 0

    @command
    def add(self, pieces: int) -> int:
        ran.append("add")
        self.pieces += pieces
        return self.pieces

    @command
    def refuse(self) -> None:
        ran.append("refuse")
        raise Refused(seen=self.pieces)

    @command
    def break_off(self) -> None:
        ran.append("break_off")
        self.pieces += 100
        raise RuntimeError("broken")


def given(app: Any, id: str, call: Any, *args: Any) -> Any:
    with app.command_id(id):
        return call(*args)


@pytest.fixture
def two(akter_app: Any, other_engine: Any) -> tuple[Any, Any]:
    """Two apps that have no connection in common."""
    return akter_app(Stock), akter_app(Stock, engine=other_engine)


@pytest.mark.conformance("TURN-37")
@pytest.mark.parametrize("exists", [False, True], ids=["new actor", "known actor"])
def test_a_turn_that_waited_for_the_lock_sees_the_winners_state(two, start, beside, exists) -> None:
    app, second = two
    start_at = app.actor(Stock, "s-1").add(10) if exists else 0
    with pause_next(app, "before_commit") as pause:
        winner = start(app.actor(Stock, "s-1").add, 1)
        pause.wait()
        waiter = start(second.actor(Stock, "s-1").add, 2)
        beside.until_waiting()
        pause.release()
        assert winner.result(20) == start_at + 1
        assert waiter.result(20) == start_at + 3
    found = inspect(app, app.actor(Stock, "s-1"))
    assert (found.state, found.version, len(found.receipts)) == ({"pieces": start_at + 3}, 2 + exists, 2 + exists)


@pytest.mark.conformance("TURN-20", "ADM-03")
@pytest.mark.parametrize("exists", [False, True], ids=["new actor", "known actor"])
def test_a_duplicate_that_waited_for_the_lock_sees_the_winners_receipt(two, start, beside, exists) -> None:
    app, second = two
    start_at = app.actor(Stock, "s-1").add(10) if exists else 0
    ran.clear()
    with pause_next(app, "before_commit") as pause:
        winner = start(given, app, "a", app.actor(Stock, "s-1").add, 1)
        pause.wait()
        waiters = [start(given, second, "a", second.actor(Stock, "s-1").add, 1) for _ in range(3)]
        conflicting = start(given, second, "a", second.actor(Stock, "s-1").add, 2)
        beside.until_waiting(4)
        pause.release()
        assert [turn.result(20) for turn in (winner, *waiters)] == [start_at + 1] * 4
        with pytest.raises(CommandConflict):
            conflicting.result(20)
    assert ran == ["add"]


@pytest.mark.conformance("TURN-19", "TURN-20")
def test_a_duplicate_that_waited_gets_the_winners_rejection(two, start, beside) -> None:
    app, second = two
    app.actor(Stock, "s-1").add(10)
    with pause_next(app, "before_commit") as pause:
        winner = start(given, app, "r", app.actor(Stock, "s-1").refuse)
        pause.wait()
        waiter = start(given, second, "r", second.actor(Stock, "s-1").refuse)
        beside.until_waiting()
        pause.release()
        for turn in (winner, waiter):
            with pytest.raises(Refused) as caught:
                turn.result(20)
            assert caught.value == Refused(seen=10)
    assert ran == ["add", "refuse"]


@pytest.mark.conformance("TURN-20")
def test_a_duplicate_that_waited_for_a_turn_that_failed_runs(two, start, beside) -> None:
    app, second = two
    with pause_next(app, "before_handler") as pause:
        failing = start(given, app, "a", app.actor(Stock, "s-1").break_off)
        pause.wait()
        waiter = start(given, second, "a", second.actor(Stock, "s-1").add, 5)
        beside.until_waiting()
        pause.release()
        with pytest.raises(Exception, match="broken"):
            failing.result(20)
        assert waiter.result(20) == 5
    assert ran == ["break_off", "add"]


@pytest.mark.conformance("TURN-37")
def test_turns_of_different_actors_do_not_wait_for_each_other(two, start) -> None:
    app, second = two
    with pause_next(app, "before_commit") as pause:
        held = start(app.actor(Stock, "s-1").add, 1)
        pause.wait()
        assert second.actor(Stock, "s-2").add(2) == 2
        assert app.actor(Stock, "s-3").add(3) == 3
        assert not held.done()
        pause.release()
        assert held.result(20) == 1


@pytest.mark.conformance("TURN-20")
@pytest.mark.parametrize("rounds", [5])
def test_one_command_id_from_eight_threads_of_two_apps_runs_once(two, start, rounds) -> None:
    app, second = two
    for number in range(rounds):
        ran.clear()
        gate = threading.Barrier(8)

        def race(one: Any, gate: threading.Barrier = gate, number: int = number) -> int:
            gate.wait(20)
            return given(one, f"a-{number}", one.actor(Stock, f"s-{number}").add, 5)

        racing = [start(race, (app, second)[position % 2]) for position in range(8)]
        assert [turn.result(20) for turn in racing] == [5] * 8
        assert ran == ["add"]
        assert len(receipts(app, app.actor(Stock, f"s-{number}"))) == 1


@pytest.mark.conformance("TURN-20")
def test_of_two_payloads_that_race_under_one_id_one_runs_and_the_other_conflicts(two, start) -> None:
    app, second = two
    for number in range(5):
        ran.clear()
        gate = threading.Barrier(8)

        def race(one: Any, pieces: int, gate: threading.Barrier = gate, number: int = number) -> object:
            gate.wait(20)
            try:
                return given(one, "a", one.actor(Stock, f"s-{number}").add, pieces)
            except CommandConflict:
                return CommandConflict

        racing = [(pieces, start(race, (app, second)[pieces % 2], pieces)) for pieces in (1, 2) * 4]
        answers = [(pieces, turn.result(20)) for pieces, turn in racing]
        assert ran == ["add"]
        (won,) = {answer for _, answer in answers if answer is not CommandConflict}
        assert all(answer == (won if pieces == won else CommandConflict) for pieces, answer in answers)
        assert inspect(app, app.actor(Stock, f"s-{number}")).state == {"pieces": won}


@pytest.mark.conformance("TURN-20")
def test_no_increment_is_lost_or_doubled_among_many_threads(two, start) -> None:
    app, second = two
    racing = [start((app, second)[number % 2].actor(Stock, f"s-{number % 3}").add, 1) for number in range(96)]
    answers: list[int] = sorted(turn.result(30) for turn in racing)
    assert answers == sorted([*range(1, 33)] * 3)
    for number in range(3):
        found = inspect(app, app.actor(Stock, f"s-{number}"))
        assert (found.state, len(found.receipts)) == ({"pieces": 32}, 32)
        # Commands that shared a transaction wrote their state once.
        assert 1 <= (found.version or 0) <= 32


@contextmanager
def children(url: str, schema: str, number: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that stand ready to run commands."""
    started = [
        subprocess.Popen([sys.executable, str(CHILD), url, schema], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    try:
        for child in started:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        yield started
    finally:
        for child in started:
            child.kill()
            child.communicate(timeout=20)


def race(started: list[subprocess.Popen[str]], id: str, payloads: list[int]) -> list[str]:
    """Let the processes run one command each under one id, at once; returns their answers."""
    for child, pieces in zip(started, payloads, strict=True):
        assert child.stdin is not None
        child.stdin.write(f"{id} {pieces}\n")
        child.stdin.flush()
    return [child.stdout.readline().strip() for child in started if child.stdout is not None]


@pytest.mark.conformance("TURN-20")
def test_one_command_id_from_four_processes_runs_once_and_a_second_payload_conflicts(akter_database, akter_schema, beside) -> None:
    beside("CREATE SEQUENCE runs")
    with children(akter_database, akter_schema, 4) as started:
        for number in range(1, 6):
            assert race(started, f"same-{number}", [5] * 4) == ["5"] * 4
            assert beside("SELECT last_value FROM runs") == [(number,)]
        for number in range(6, 11):
            answers = race(started, f"other-{number}", [1, 2, 1, 2])
            assert answers in (["1", "conflict", "1", "conflict"], ["conflict", "2", "conflict", "2"])
            assert beside("SELECT last_value FROM runs") == [(number,)]
    assert beside("SELECT count(*), count(DISTINCT command_id) FROM {akter}.actor_receipts") == [(10, 10)]


@pytest.mark.conformance("TURN-41")
def test_an_open_request_that_wrote_rows_beside_an_actor_does_not_stop_it(two, beside, akter_engine, akter_schema) -> None:
    app, second = two
    app.actor(Stock, "s-1").add(1)
    identity = "bucket, routing_key, tenant_id, actor_type, actor_id"
    rows = {
        "actor_receipts": {
            "command_id": "'x'", "command": "'x'", "payload_hash": "'x'", "caller_key": "'x'", "outcome": "'{}'", "expires_at_ms": "0",
            "committed_at_ms": "0",
        },
        "actor_outbox": {
            "intent_id": "'x'", "target_type": "'x'", "target_id": "'x'", "command": "'x'", "payload": "'x'", "caller": "'x'",
            "due_at_ms": "0", "scheduled_at_ms": "0",
        },
        "actor_events": {"sequence": "99", "event": "'x'", "command_id": "'x'", "value": "to_json(1)", "emitted_at_ms": "0"},
        "actor_dead_letters": {
            "job_id": "'x'", "job": "'x'", "payload": "'x'", "cause": "'x'", "attempts": "1", "ambiguous": "false", "dead_at_ms": "0",
        },
    }  # fmt: skip
    with akter_engine.connect() as request, request.begin():
        for table, row in rows.items():
            into = f'INSERT INTO "{akter_schema}".{table} ({identity}, {", ".join(row)})'
            request.execute(text(f'{into} SELECT {identity}, {", ".join(row.values())} FROM "{akter_schema}".actor_generations'))
        hasty = type(app)(second.engine, actors=[Stock], schema=akter_schema, execution=5.0, lock=0.5, delivery=5.0)
        assert hasty.actor(Stock, "s-1").add(2) == 3
        assert app.actor(Stock, "s-1").add(3) == 6
    assert len(receipts(app, app.actor(Stock, "s-1"))) == 4


@pytest.mark.conformance("TURN-41")
def test_a_turn_does_not_wait_for_a_foreign_keys_share_of_its_generation_row(two, akter_engine, akter_schema) -> None:
    app, _ = two
    app.actor(Stock, "s-1").add(1)
    with akter_engine.connect() as request, request.begin():
        request.execute(text(f'SELECT 1 FROM "{akter_schema}".actor_generations FOR KEY SHARE'))
        hasty = type(app)(app.engine, actors=[Stock], schema=akter_schema, execution=5.0, lock=0.5, delivery=5.0)
        assert hasty.actor(Stock, "s-1").add(2) == 3


@pytest.mark.conformance("TURN-26")
def test_a_turn_whose_state_was_changed_from_outside_is_refused_and_runs_again_on_what_is_there(two, start, beside) -> None:
    app, _ = two
    stock = app.actor(Stock, "s-1")
    stock.add(1)
    with pause_next(app, "before_commit") as pause:
        turn = start(stock.add, 1)
        pause.wait()
        # Somebody with other code, or a psql prompt, who knows nothing of the lock.
        beside("UPDATE {akter}.actor_state SET value = '{\"pieces\": 50}', version = version + 1")
        pause.release()
        assert turn.result(20) == 51
    assert ran == ["add", "add", "add"]
    found = inspect(app, stock)
    assert (found.state, found.version, len(found.receipts)) == ({"pieces": 51}, 3, 2)


@pytest.mark.conformance("TURN-26")
def test_a_turn_of_a_new_actor_whose_state_somebody_inserted_runs_again_on_what_is_there(two, start, beside) -> None:
    app, _ = two
    stock: Any = app.actor(Stock, "s-1")
    place = stock._address
    with pause_next(app, "before_commit") as pause:
        turn = start(stock.add, 1)
        pause.wait()
        beside(
            "INSERT INTO {akter}.actor_state (bucket, routing_key, tenant_id, actor_type, actor_id, value, version) "
            "VALUES (:bucket, :routing_key, :tenant_id, :actor_type, :actor_id, '{\"pieces\": 50}', 1)",
            **place._asdict(),
        )
        pause.release()
        assert turn.result(20) == 51
    assert inspect(app, stock).state == {"pieces": 51}


@pytest.mark.conformance("TURN-37")
@pytest.mark.parametrize("level", ["SERIALIZABLE", "REPEATABLE READ"])
def test_turns_read_what_is_committed_whatever_isolation_the_database_defaults_to(
    akter_database, akter_schema, start, beside, level
) -> None:
    from akter import Akter

    name = sqlalchemy.make_url(akter_database).database
    beside(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level.lower()}'")
    engine = sqlalchemy.create_engine(akter_database, pool_size=4)
    app = Akter(engine, actors=[Stock], schema=akter_schema)
    tries: list[str] = []
    app.faults.watch(lambda point, _: tries.append(point))
    with pause_next(app, "before_commit") as pause:
        winner = start(given, app, "a", app.actor(Stock, "s-1").add, 1)
        pause.wait()
        duplicate = start(given, app, "a", app.actor(Stock, "s-1").add, 1)
        waiter = start(app.actor(Stock, "s-1").add, 2)
        beside.until_waiting(2)
        pause.release()
        assert (winner.result(20), duplicate.result(20), waiter.result(20)) == (1, 1, 3)
    assert ran == ["add", "add"]
    # At those levels a waiter could only fail and be tried again.
    assert tries.count("queued") == 3
    engine.dispose()
