"""Jobs that may have ended their process are kept apart, so that they do not take each other's attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from works import LEASE, Node, Shop, do, eventually, in_thread, jobs, log, provider

from akter import Actor, Akter, Job, Retry, command
from akter.runner import suspects
from akter.testing import advance, crash_next, inspect, pause_next

Make = Callable[..., Node]
NAMES = ("a", "b", "c")


class Bench(Actor):
    """Jobs with an attempt in reserve, in the runner's process and in their own."""

    here = Job(do, retry=Retry(attempts=3, base=1.0, cap=1.0), timeout=20.0, lease=3.0)
    apart = Job(do, retry=Retry(attempts=3, base=1.0, cap=1.0), timeout=20.0, lease=3.0, isolation="process")

    @command
    def start(self, what: str, job: str = "here") -> None:
        self.enqueue(getattr(self, job), what)


def die(one: Node, rows: int, times: int = 1) -> None:
    """Let the process die under so many attempts at once, again and again."""
    for _ in range(times):
        for _ in range(rows):
            crash_next(one.app, "before_execute")
        one.runner.drain()
        advance(one.app, LEASE)


def tried(app: Akter, actor: type[Actor] = Shop) -> list[int]:
    """How often the jobs that are left were tried."""
    return sorted(row["attempts"] for name in NAMES for row in jobs_of(app, actor, name))


def jobs_of(app: Akter, actor: type[Actor], name: str) -> list[dict[str, Any]]:
    return [row for row in inspect(app, app.actor(actor, name)).outbox if row["kind"] == "job"]


def test_what_left_no_word_has_its_last_attempt_without_others_of_its_kind(node: Make) -> None:
    one, other = node(), node()
    for name in NAMES:
        one.app.actor(Shop, name).start(name)
    die(one, 3)
    assert tried(one.app) == [1, 1, 1]
    with pause_next(other.app, "after_execute") as held:
        draining = in_thread(other.runner.drain)
        held.wait()
        assert other.runner.relay.run_pass().claimed == 0
        assert tried(one.app) == [1, 1, 2]
        held.release()
        draining.join(60)
    assert [log(one.app, name) for name in NAMES] == [["done A"], ["done B"], ["done C"]]
    assert provider.most == 1


def test_jobs_that_nobody_suspects_run_beside_one_that_is(node: Make) -> None:
    one, other = node(), node()
    one.app.actor(Shop, "a").start("a")
    die(one, 1)
    one.app.actor(Shop, "b").start("b")
    let_go = provider.hold("a")
    draining = in_thread(other.runner.drain)
    eventually("both were begun", lambda: {("a", 2), ("b", 1)} <= set(provider.calls))
    let_go.set()
    draining.join(60)
    assert (log(one.app, "a"), log(one.app, "b")) == (["done HELD"], ["done B"])


@pytest.mark.parametrize("begins", [False, True], ids=["at first alone", "after a while beside"])
def test_one_with_an_attempt_in_reserve_is_waited_for_only_a_while(node: Make, monkeypatch: pytest.MonkeyPatch, begins: bool) -> None:
    monkeypatch.setattr(suspects, "APART", 0.0 if begins else 3600.0)
    one, other = node(Bench), node(Bench)
    for name in ("a", "b"):
        one.app.actor(Bench, name).start(name)
    die(one, 2)
    held = [provider.hold(name) for name in ("a", "b")]
    other.runner.relay.run_pass()
    eventually("the first one runs", lambda: provider.now == 1)
    assert other.runner.relay.run_pass().claimed == (1 if begins else 0)
    assert tried(one.app, Bench) == ([2, 2] if begins else [1, 2])
    for event in held:
        event.set()
    other.runner.drain()
    assert sorted(provider.calls) == [("a", 2), ("b", 2)]


def test_a_last_attempt_is_not_begun_beside_one_with_attempts_in_reserve(node: Make, monkeypatch: pytest.MonkeyPatch, beside: Any) -> None:
    monkeypatch.setattr(suspects, "APART", 0.0)
    one, other = node(Bench), node(Bench)
    one.app.actor(Bench, "a").start("a")
    die(one, 1)
    one.app.actor(Bench, "b").start("b")
    die(one, 2)
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = 0 WHERE actor_id = 'b'")
    reserve, last = provider.hold("b"), provider.hold("a")
    other.runner.relay.run_pass()
    eventually("the one in reserve runs", lambda: provider.calls == [("b", 2)])
    other.runner.relay.run_pass()
    assert tried(one.app, Bench) == [2, 2]
    reserve.set()
    draining = in_thread(other.runner.drain)
    eventually("the last attempt runs", lambda: ("a", 3) in provider.calls)
    assert provider.most == 1
    last.set()
    draining.join(60)


def test_a_process_of_its_own_takes_no_neighbours_with_it_and_is_not_kept_apart(node: Make) -> None:
    one, other = node(Bench), node(Bench)
    for name in NAMES:
        one.app.actor(Bench, name).start(name, job="apart")
    die(one, 3)
    with pause_next(other.app, "before_execute") as held:
        draining = in_thread(other.runner.drain)
        held.wait()
        assert tried(one.app, Bench) == [2, 2, 2]
        held.release()
        draining.join(120)
    assert tried(one.app, Bench) == []


def test_one_that_was_given_back_is_suspected_as_before(node: Make) -> None:
    one, other, third = node(), node(), node()
    one.app.actor(Shop, "a").start("a")
    die(one, 1)
    with pause_next(other.app, "before_execute") as held:
        draining = in_thread(lambda: other.runner.relay.run_pass())
        held.wait()
        assert tried(one.app) == [2]
        other.runner.relay.abandon()
        held.release()
        draining.join(60)
    (row,) = jobs(one.app, "a")
    said = "attempt 1 ended without reporting how"
    assert (row["attempts"], row["running"], row["ambiguous"], row["last_error"]) == (1, True, True, said)
    third.runner.drain()
    assert provider.calls == [("a", 2)]


def test_one_of_a_group_keeps_its_place_while_it_waits_for_its_turn(node: Make) -> None:
    one, other = node(), node()
    for name in ("a", "b"):
        one.app.actor(Shop, name).start_all([name, f"{name} again"])
    die(one, 2)
    held = {name: provider.hold(name) for name in ("a", "b")}
    draining = in_thread(other.runner.drain)
    eventually("one of them runs", lambda: provider.now == 1)
    ((first, _),) = provider.calls
    other.runner.relay.run_pass()
    assert provider.calls == [(first, 2)]
    second = "b" if first == "a" else "a"
    suspect, younger = sorted(jobs(one.app, second), key=lambda row: row["attempts"], reverse=True)
    assert (suspect["attempts"], younger["attempts"]) == (1, 0)
    # What stands behind it is out of the claims' way, as behind any attempt that takes the place.
    assert younger["due_at_ms"] - suspect["due_at_ms"] >= LEASE.total_seconds() * 1000
    for event in held.values():
        event.set()
    draining.join(60)
    assert [what for what, _ in provider.calls if what.startswith(second)] == [second, f"{second} again"]
    assert [what for what, _ in provider.calls if what.startswith(first)] == [first, f"{first} again"]
    assert set(provider.calls) == {("a", 2), ("a again", 1), ("b", 2), ("b again", 1)}
