"""A turn that dies at any point happens once, wholly, or not at all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from akter import Actor, Rejection, Unavailable, command
from akter.fault import Crashed
from akter.testing import clear_faults, crash_next, inspect, pause_next, receipts


class Full(Rejection):
    """The box is full."""

    size: int


class Box(Actor):
    """Holds things."""

    things: list[str] = []  # noqa: RUF012 - every actor gets its own copy

    @command
    def put(self, thing: str) -> int:
        self.things.append(thing)
        if len(self.things) > 2:
            raise Full(size=2)
        return len(self.things)


@pytest.mark.parametrize(
    ("point", "handlers"),
    [
        pytest.param("before_delivery", 1),
        pytest.param("queued", 1),
        pytest.param("before_handler", 1, marks=pytest.mark.conformance("TURN-22")),
        pytest.param("before_commit", 2, marks=pytest.mark.conformance("TURN-23")),
        pytest.param("after_commit", 1, marks=pytest.mark.conformance("TURN-24")),
    ],
)
def test_a_crash_is_recovered_with_one_transition(akter_app, journal, point, handlers) -> None:
    app = akter_app(Box)
    box = app.actor(Box, "b-1")
    seen = journal(app, box)
    crash_next(app, point)
    assert box.put("a") == 1
    assert [at for at, _ in seen].count("before_commit") == 1
    # The journal does not see the point that a planted fault took.
    runs = [at for at, _ in seen].count("before_handler") + (point == "before_handler")
    assert runs == handlers + (point == "before_handler")
    clear_faults(app)
    found = inspect(app, box)
    assert (found.state, found.version, len(found.receipts)) == ({"things": ["a"]}, 1, 1)
    assert found.receipts[0].outcome == {"ok": 1}


@pytest.mark.conformance("TURN-22", "TURN-23")
@pytest.mark.parametrize("point", ["before_handler", "before_commit"])
def test_after_a_crash_before_the_commit_nothing_is_stored_and_the_actor_is_free(akter_app, journal, point) -> None:
    app = akter_app(Box)
    box = app.actor(Box, "b-1")
    seen = journal(app, box)
    crash_next(app, point)
    box.put("a")
    after_the_crash = [found for at, found in seen if at == "before_delivery"][1]
    assert (after_the_crash.generation, after_the_crash.state, after_the_crash.receipts) == (None, None, ())


@pytest.mark.conformance("TURN-24")
def test_after_a_crash_after_the_commit_the_answer_comes_from_the_receipt(akter_app, journal) -> None:
    app = akter_app(Box)
    box = app.actor(Box, "b-1")
    seen = journal(app, box)
    crash_next(app, "after_commit")
    assert box.put("a") == 1
    after_the_crash = [found for at, found in seen if at == "before_delivery"][1]
    assert (after_the_crash.state, len(after_the_crash.receipts)) == ({"things": ["a"]}, 1)
    assert [at for at, _ in seen] == [
        "before_delivery", "queued", "before_handler", "before_commit", "before_delivery", "queued",
    ]  # fmt: skip


@pytest.mark.conformance("TURN-32", "TURN-33")
@pytest.mark.parametrize(
    ("point", "receipts_between"),
    [
        pytest.param("before_commit", 2, marks=pytest.mark.conformance("TURN-32")),
        pytest.param("after_commit", 3, marks=pytest.mark.conformance("TURN-33")),
    ],
)
def test_a_rejection_that_crashes_keeps_no_dirty_state_and_one_receipt(akter_app, journal, point, receipts_between) -> None:
    app = akter_app(Box)
    box = app.actor(Box, "b-1")
    box.put("a")
    box.put("b")
    seen = journal(app, box)
    crash_next(app, point)
    with app.command_id("p-3"), pytest.raises(Full) as caught:
        box.put("c")
    assert caught.value == Full(size=2)
    between = [found for at, found in seen if at == "before_delivery"][1]
    assert (between.state, between.version, len(between.receipts)) == ({"things": ["a", "b"]}, 2, receipts_between)
    found = inspect(app, box)
    assert (found.state, found.version, len(found.receipts)) == ({"things": ["a", "b"]}, 2, 3)
    (kept,) = [receipt for receipt in found.receipts if receipt.command_id.endswith(":p-3")]
    assert kept.outcome["rejected"]["fields"] == {"size": 2}
    with app.command_id("p-3"), pytest.raises(Full):
        box.put("c")
    assert len(receipts(app, box)) == 3


@pytest.mark.conformance("TURN-23")
def test_a_crash_releases_the_lock_without_waiting_for_the_caller(akter_app, start) -> None:
    app = akter_app(Box)
    box = app.actor(Box, "b-1")
    crash_next(app, "before_commit", command_id=":dies")
    with pause_next(app, "before_delivery") as first, pause_next(app, "before_delivery", command_id=":dies") as second:

        def dying() -> int:
            with app.command_id("dies"):
                return box.put("a")

        turn = start(dying)
        first.wait()
        first.release()
        second.wait()
        assert box.put("b") == 1
        second.release()
        assert turn.result(20) == 2
    assert inspect(app, box).state == {"things": ["b", "a"]}


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """The times that retries asked to wait, which they then do not."""
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    return asked


@pytest.mark.conformance("TURN-43")
def test_retries_stay_prompt_after_many_crashed_turns_of_one_type(akter_app, waits) -> None:
    app = akter_app(Box)
    for number in range(30):
        crash_next(app, "before_handler")
        assert app.actor(Box, f"b-{number}").put("a") == 1
    assert len(waits) == 30
    assert max(waits) <= 0.15


@pytest.mark.conformance("TURN-44")
def test_waits_grow_only_for_the_command_that_keeps_dying(akter_app, waits) -> None:
    app = akter_app(Box)
    for _ in range(6):
        crash_next(app, "before_handler", command_id=":dies")
    with app.command_id("dies"):
        assert app.actor(Box, "b-1").put("a") == 1
    grown = list(waits)
    assert len(grown) == 6
    assert grown[-1] > 4 * grown[0]
    assert grown[-1] <= 2.1
    waits.clear()
    crash_next(app, "before_handler")
    assert app.actor(Box, "b-2").put("a") == 1
    crash_next(app, "before_handler")
    assert app.actor(Box, "b-1").put("b") == 2
    assert max(waits) <= 0.15


@pytest.mark.conformance("TURN-17")
def test_a_command_that_dies_until_its_delivery_ends_is_unavailable_and_may_be_asked_again(akter_app) -> None:
    app = akter_app(Box, execution=0.05, lock=0.05, delivery=0.4)
    box = app.actor(Box, "b-1")
    seen: list[Any] = []

    def die(point: Any, _: Any) -> None:
        if point == "before_handler":
            seen.append(point)
            raise Crashed("again")

    app.faults.watch(die)
    with app.command_id("p-1"), pytest.raises(Unavailable) as caught:
        box.put("a")
    assert caught.value.retryable
    assert len(seen) >= 2
    app.faults.watch(None)
    assert inspect(app, box).generation is None
    for _ in range(2):
        with app.command_id("p-1"):
            assert box.put("a") == 1
