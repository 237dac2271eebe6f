"""Group D: parts of a runner that fail once, or always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yard

from akter import Akter, Runner
from akter.runner.loop import Loop

Rows = Callable[..., list[Any]]
GAVE_SIGNS = "SELECT count(*) FROM {akter}.actor_runners WHERE heartbeat_at_ms > started_at_ms"
PARTS = {
    "the relay": lambda runner: runner._loop,
    "the sign of life": lambda runner: runner._heartbeat.loop,
    "the listener": lambda runner: runner._listener.loop,
}


def break_down(loop: Loop, times: float) -> list[int]:
    """Let a loop's work fail so many times; returns a list that grows with each."""
    work, failed = loop._work, list[int]()

    def failing() -> float:
        if len(failed) < times:
            failed.append(1)
            raise RuntimeError("planted")
        return work()

    loop._work = failing
    return failed


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_each_part_that_fails_once_goes_on(app: Akter, rows: Rows, shared: Any, part: Callable[[Runner], Loop]) -> None:
    runner = Runner(app, poll=0.05, heartbeat=0.1, claim_lease=4.0)
    loop = part(runner)
    failed = break_down(loop, 1)
    with runner:
        shared.until("it failed, and went on", lambda: failed == [1] and loop.failures == 0 and loop.alive)
        shared.send(app, ["canary"])
        shared.until("work is done", lambda: shared.things(rows, "canary") == ["canary"])
        shared.until("it gives signs of life", lambda: rows(GAVE_SIGNS) == [1])
        assert not runner.failed
        assert runner.lost == ()


def test_a_part_that_always_fails_is_told(app: Akter, shared: Any) -> None:
    for name in ("the relay", "the sign of life"):
        runner = Runner(app, poll=0.05, listen=False, heartbeat=0.1, claim_lease=4.0)
        failed = break_down(PARTS[name](runner), float("inf"))
        with runner:
            shared.until("it failed again and again", lambda failed=failed: len(failed) > 2)
            assert runner.failed


def test_signs_of_life_that_cannot_be_given_cost_no_work(app: Akter, rows: Rows, shared: Any) -> None:
    """They are no leases: what is claimed is delivered, by this runner or by another."""
    app.verify()
    rows("ALTER TABLE {akter}.actor_runners RENAME TO gone")
    with yard.runner(app):
        shared.send(app, ["canary"])
        shared.until("work is done", lambda: shared.things(rows, "canary") == ["canary"])
