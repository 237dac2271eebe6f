"""Progress of running attempts: the newest small frame, shown while it runs, never kept and never in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from works import BACKOFF, Node, Shop, declined, eventually, jobs, letters, log, provider

from akter import Attempt
from akter.operating import Operator
from akter.testing import advance

Make = Callable[..., Node]


def frames(one: Node) -> list[Any]:
    return [frame["progress"] for frame in one.runner.jobs.attempts.frames()]


@pytest.mark.conformance("PROG-01", "PROG-09")
def test_the_newest_frame_is_shown_while_the_attempt_runs_and_then_no_more(node: Make) -> None:
    one = node(started=True, heartbeat=0.05)
    operator = Operator(one.app.engine, schema=one.app.schema)
    let_go = provider.hold("tea")
    one.app.actor(Shop, "s").start("tea")
    eventually("it runs", lambda: provider.now == 1)
    for done in range(3):
        provider.attempts["tea", 1].progress({"done": done})
    assert frames(one) == [{"done": 2}]
    eventually("everybody sees it", lambda: [run["progress"] for run in operator.runners()[0].running] == [{"done": 2}])
    (seen,) = operator.runners()[0].running
    assert (seen["actor"], seen["job"], seen["attempt"]) == ("Shop/s", "work", 1)
    let_go.set()
    eventually("it is told", lambda: log(one.app) == ["done HELD"])
    assert frames(one) == []
    eventually("nobody sees it any more", lambda: operator.runners()[0].running == ())


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not look at me")


@pytest.mark.conformance("PROG-02", "PROG-06")
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(object(), id="no JSON"),
        pytest.param("x" * 5000, id="too large"),
        pytest.param(Hostile(), id="hostile"),
        pytest.param({1: {2: b"\xff"}}, id="bytes"),
    ],
)
def test_a_frame_that_cannot_be_shown_is_dropped_and_the_job_goes_on(node: Make, frame: Any) -> None:
    one = node()

    def tell(attempt: Attempt) -> str:
        attempt.progress("half")
        attempt.progress(frame)
        return "done"

    provider.on["tea"] = tell
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    assert log(one.app) == ["done done"]
    assert letters(one.app) == []


@pytest.mark.conformance("PROG-03")
def test_a_frame_after_the_end_of_its_attempt_is_ignored(node: Make) -> None:
    one = node()
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    provider.attempts["tea", 1].progress("late")
    assert frames(one) == []


@pytest.mark.conformance("PROG-04", "PROG-05")
def test_each_attempt_begins_without_a_frame_and_a_dead_letter_has_none(node: Make) -> None:
    one = node()
    before: list[Any] = []

    def tell(attempt: Attempt) -> str:
        before.append(frames(one))
        attempt.progress(attempt.number)
        raise declined()

    provider.on["tea"] = tell
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    advance(one.app, BACKOFF, one.runner)
    assert before == [[], []]
    assert frames(one) == []
    assert letters(one.app) == [("declined", 2, False)]


@pytest.mark.conformance("PROG-12")
def test_a_cancelled_attempt_that_is_given_up_shows_no_more_progress(node: Make) -> None:
    one = node(started=True)
    let_go = provider.hold("tea")
    shop = one.app.actor(Shop, "s")
    shop.start("tea", "k")
    eventually("it runs", lambda: provider.now == 1)
    provider.attempts["tea", 1].progress("half")
    shop.stop("k")
    eventually("its actor hears of it", lambda: log(one.app) == ["cancelled after 1: unknown (ambiguous)"])
    provider.attempts["tea", 1].progress("more")
    assert frames(one) == []
    assert [row for row in jobs(one.app) if row["kind"] == "job"] == []
    let_go.set()
