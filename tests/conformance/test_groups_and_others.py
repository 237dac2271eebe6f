"""What holds of two connections at once holds of groups: locks, receipts and state, and no deadlock among processes."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from crowd import WAIT, Crowd, Refused, Stock, given, patient, ran, seen_quick

from akter import CommandConflict
from akter.testing import inspect, pause_next

STRESS = pathlib.Path(__file__).with_name("stress.py")


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@pytest.fixture
def app(akter_app: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app whose groups wait for a lock as long as a lone turn does."""
    patient(monkeypatch)
    monkeypatch.setattr("akter.shared._LOCK", WAIT)
    found = akter_app(Stock, lock=9.0)
    found.verify()
    seen_quick(found, Stock)
    return found


@pytest.fixture
def second(akter_app: Any, other_engine: Any) -> Any:
    return akter_app(Stock, engine=other_engine)


@pytest.fixture
def crowd(app: Any, start: Any, beside: Any) -> Crowd:
    return Crowd(app, start, beside.until, partial(app.actor(Stock, "in the way").add, 1))


@pytest.mark.conformance("TURN-37")
@pytest.mark.parametrize("exists", [False, True], ids=["new actor", "known actor"])
def test_a_group_that_waited_for_a_lock_sees_the_winners_state(
    app: Any, second: Any, crowd: Crowd, start: Any, beside: Any, exists: bool
) -> None:
    first = app.actor(Stock, "s-1").add(10) if exists else 0
    with pause_next(second, "before_commit") as pause:
        winner = start(second.actor(Stock, "s-1").add, 1)
        pause.wait()
        waiters = crowd.together(*(partial(app.actor(Stock, id).add, 2) for id in ("s-0", "s-1", "s-2", "s-1")))
        beside.until_waiting()
        pause.release()
        assert winner.result(WAIT) == first + 1
        assert [waiter.result(WAIT) for waiter in waiters] == [2, first + 3, 2, first + 5]
    found = inspect(app, app.actor(Stock, "s-1"))
    assert (found.state, found.version, len(found.receipts)) == ({"pieces": first + 5}, 2 + exists, 3 + exists)
    same = beside("SELECT count(DISTINCT xmin::text) FROM {akter}.actor_state WHERE actor_id IN ('s-0', 's-1', 's-2')")
    assert same == [(1,)]


@pytest.mark.conformance("TURN-20", "ADM-03")
@pytest.mark.parametrize("exists", [False, True], ids=["new actor", "known actor"])
def test_members_that_waited_for_a_lock_see_the_winners_receipt(
    app: Any, second: Any, crowd: Crowd, start: Any, beside: Any, exists: bool
) -> None:
    first = app.actor(Stock, "s-1").add(10) if exists else 0
    ran.clear()
    with pause_next(second, "before_commit", command_id="a") as pause:
        winner = start(given, second, "a", second.actor(Stock, "s-1").add, 1)
        pause.wait()
        duplicate, other = crowd.together(partial(given, app, "a", app.actor(Stock, "s-1").add, 1), partial(app.actor(Stock, "s-2").add, 7))
        beside.until_waiting()
        pause.release()
        assert (winner.result(WAIT), duplicate.result(WAIT), other.result(WAIT)) == (first + 1, first + 1, 7)
    assert sorted(ran) == ["in the way", "s-1", "s-2"]
    conflicting, other = crowd.together(partial(given, app, "a", app.actor(Stock, "s-1").add, 2), partial(app.actor(Stock, "s-2").add, 7))
    with pytest.raises(CommandConflict):
        conflicting.result(WAIT)
    assert other.result(WAIT) == 14


@pytest.mark.conformance("TURN-19", "TURN-20")
def test_a_member_that_waited_for_a_lock_gets_the_winners_rejection(app: Any, second: Any, crowd: Crowd, start: Any, beside: Any) -> None:
    app.actor(Stock, "s-1").add(10)
    ran.clear()
    with pause_next(second, "before_commit", command_id="r") as pause:
        winner = start(given, second, "r", second.actor(Stock, "s-1").refuse)
        pause.wait()
        duplicate, other = crowd.together(partial(given, app, "r", app.actor(Stock, "s-1").refuse), partial(app.actor(Stock, "s-2").add, 7))
        beside.until_waiting()
        pause.release()
        for turn in (winner, duplicate):
            with pytest.raises(Refused) as caught:
                turn.result(WAIT)
            assert caught.value == Refused(seen=10)
        assert other.result(WAIT) == 7
    assert sorted(ran) == ["in the way", "s-1", "s-2"]


@pytest.mark.timeout(120)
def test_groups_of_four_processes_in_opposite_orders_neither_lock_up_nor_lose_anything(akter_database: str, akter_schema: str) -> None:
    command = [sys.executable, str(STRESS), akter_database, "--schema", akter_schema, "--seconds", "4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "0 deadlocks" in done.stdout
