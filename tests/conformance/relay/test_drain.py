"""Runners that stop while there is work: nothing is lost, nothing runs twice, and what was left is told."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from post import LEASE, Mailbox, Node, Sender, eventually, handled, in_thread, letters, send_many

from akter.errors import AkterError
from akter.runner import Runner
from akter.store import presence
from akter.tables import SCHEMA
from akter.testing import advance, pause_next, receipts, settle

Make = Callable[..., Node]


def runners(one: Node) -> list[presence.Present]:
    with one.app.engine.connect() as connection:
        return presence.present(connection.execution_options(schema_translate_map={SCHEMA: one.app.schema}))


@pytest.mark.conformance("DRAIN-01")
def test_a_runner_says_that_it_is_there_stops_clean_and_takes_nothing_more(node: Make, beside: Any) -> None:
    one = node(started=True, heartbeat=0.05)
    eventually("it says so", lambda: [found.incarnation_id for found in runners(one)] == [one.runner.incarnation_id])
    (found,) = runners(one)
    assert (found.types, found.lanes, found.stopping) == (("Mailbox", "Sender"), {"intents": 64, "feed": 2}, False)
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    eventually("it delivers", lambda: letters(one.app, "m") == ["a"])
    assert not one.runner.failed
    report = one.runner.stop()
    assert (report.clean, report.delivered, report.left) == (True, 1, ())
    assert one.runner.stop() is report
    assert runners(one) == []
    one.app.send(one.app.actor(Mailbox, "m").take, "b")
    assert one.runner.relay.run_pass().claimed == 0
    assert beside("SELECT attempts FROM {akter}.actor_outbox") == [(0,)]


@pytest.mark.conformance("DRAIN-02")
def test_the_deadline_reports_what_is_left_and_its_next_try_commits_once(node: Make, beside: Any) -> None:
    one, other = node(started=True), node()
    with pause_next(one.app, "before_commit") as pause:
        sent = one.app.send(one.app.actor(Mailbox, "m").take, "a")
        pause.wait()
        began = time.monotonic()
        report = one.runner.stop(grace=0.3)
        assert time.monotonic() - began < 5.0
        assert (report.clean, report.left) == (False, (sent,))
        # As if the process ended now: its connection is gone before the turn goes on.
        beside(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        advance(other.app, LEASE, other.runner)
        assert letters(other.app, "m") == ["a"]
    eventually("the first one is done, too", lambda: one.runner.relay.held() == [])
    assert letters(other.app, "m") == ["a"]
    assert len(receipts(other.app, other.app.actor(Mailbox, "m"))) == 1
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("DRAIN-03")
def test_a_turn_in_flight_finishes_and_another_runner_takes_over(node: Make, beside: Any) -> None:
    one, other = node(started=True), node()
    with pause_next(one.app, "before_commit") as pause:
        one.app.send(one.app.actor(Mailbox, "m").take, "a")
        pause.wait()
        stopping = in_thread(lambda: one.runner.stop(grace=20.0))
        eventually("it claims nothing more", lambda: one.runner.relay._stopping)
        one.app.send(one.app.actor(Mailbox, "n").take, "b")
        settle(other.app, other.runner)
        assert letters(other.app, "n") == ["b"]
        assert stopping.is_alive()
    stopping.join(20)
    assert one.runner.stop().clean
    assert (letters(other.app, "m"), beside.count("actor_outbox")) == (["a"], 0)
    assert handled.taken == {"a": 1, "b": 1}


@pytest.mark.conformance("DRAIN-04")
def test_what_would_follow_in_the_same_thread_is_given_back(node: Make, outbox: Callable[[], list[Any]], beside: Any) -> None:
    one, other = node(started=True), node()
    with pause_next(one.app, "before_commit") as pause:
        send_many(one.app, ["a", "b", "c"], ["m"] * 3)
        one.runner.wake()
        pause.wait()
        stopping = in_thread(lambda: one.runner.stop(grace=20.0))
        eventually("the two that follow are due again", lambda: sorted(row[1] <= 0 for row in outbox()) == [False, True, True])
    stopping.join(20)
    report = one.runner.stop()
    assert (report.clean, report.delivered, report.released) == (True, 1, 2)
    settle(other.app, other.runner)
    assert sorted(letters(other.app, "m")) == ["a", "b", "c"]
    assert set(handled.taken.values()) == {1}
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("DRAIN-05")
@pytest.mark.parametrize("ride", [True, False], ids=["ride", "two steps"])
def test_what_the_stop_cut_off_before_its_commit_is_anothers(node: Make, beside: Any, ride: bool) -> None:
    one, other = node(started=True, ride=ride), node(ride=ride)
    with pause_next(one.app, "before_commit") as pause:
        sent = one.app.send(one.app.actor(Mailbox, "m").take, "a")
        pause.wait()
        assert one.runner.stop(grace=0.1).left == (sent,)
        assert one.runner.abandon() == (sent,)
        beside(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        settle(other.app, other.runner)
        assert letters(other.app, "m") == ["a"]
    eventually("the first one is done, too", lambda: one.runner._lane.held == 0)
    assert (letters(other.app, "m"), beside.count("actor_outbox")) == (["a"], 0)


@pytest.mark.conformance("DRAIN-06")
def test_what_the_stop_cut_off_after_its_commit_is_answered_by_its_receipt(node: Make, beside: Any) -> None:
    one, other = node(started=True, ride=False), node(ride=False)
    with pause_next(one.app, "after_commit") as pause:
        sent = one.app.send(one.app.actor(Mailbox, "m").take, "a")
        pause.wait()
        assert one.runner.stop(grace=0.1).left == (sent,)
        advance(other.app, LEASE, other.runner)
        assert beside.count("actor_outbox") == 0
    eventually("the first one is done, too", lambda: one.runner._lane.held == 0)
    assert (letters(other.app, "m"), handled.taken["a"]) == (["a"], 1)
    assert one.runner._deliverer.counts.stale == 1


@pytest.mark.conformance("DRAIN-10")
@pytest.mark.parametrize("ride", [True, False], ids=["ride", "two steps"])
def test_runners_that_come_and_go_under_load_lose_and_repeat_nothing(node: Make, beside: Any, ride: bool) -> None:
    source = node()
    names = [f"letter-{number}" for number in range(400)]
    sending = in_thread(lambda: [send_many(source.app, names[at : at + 20]) for at in range(0, 400, 20)])
    steady = node(started=True, poll=0.02, ride=ride, lanes={"intents": 4})
    passing = 0
    while passing < 8 or sending.is_alive():
        one = node(started=True, poll=0.02, ride=ride, pool=6)
        eventually("it has work", lambda one=one: one.runner._deliverer.counts.delivered > 0 or not beside.count("actor_outbox"))
        assert one.runner.stop().clean
        passing += 1
    sending.join(30)
    steady.runner.drain()
    assert beside.count("actor_outbox") == 0
    assert dict(handled.taken) == dict.fromkeys(names, 1)
    assert beside("SELECT count(*) FROM {akter}.actor_receipts WHERE command = 'take'") == [(400,)]


def test_a_stop_waits_no_longer_than_its_grace_for_a_pass_that_hangs(node: Make, beside: Any, akter_schema: str) -> None:
    one = node(started=True, poll=0.01)
    beside("BEGIN")
    try:
        beside("LOCK TABLE {akter}.actor_outbox IN ACCESS EXCLUSIVE MODE")
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually("a claim hangs", lambda: beside(waiting)[0][0] >= 1)
        began = time.monotonic()
        report = one.runner.stop(grace=0.3)
        assert time.monotonic() - began < 6.0
    finally:
        beside("ROLLBACK")
    assert report.clean


def test_a_runner_does_nothing_in_a_forked_process(node: Make) -> None:
    one = node(started=True)
    read, write = os.pipe()
    if (pid := os.fork()) == 0:  # pragma: no cover - the child's work is seen by its answer
        answer = b"ok"
        try:
            assert one.runner.stop().delivered == 0
            for refused in (one.runner.start, one.runner.drain):
                try:
                    refused()
                except AkterError as problem:
                    assert "fork" in str(problem)
                else:
                    answer = b"not refused"
        except BaseException:
            answer = b"failed"
        os.write(write, answer)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"ok"
    os.close(read)
    os.close(write)
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    eventually("the parent's goes on", lambda: letters(one.app, "m") == ["a"])


def test_a_runner_survives_a_database_that_is_away(node: Make, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = node(started=True, poll=0.02, heartbeat=0.05)
    real, away = one.runner._engine.connect, threading.Event()

    def connect(*args: Any, **options: Any) -> Any:
        if away.is_set():
            raise OSError("no route to host")
        return real(*args, **options)

    monkeypatch.setattr(one.runner._engine, "connect", connect)
    eventually("it works", lambda: one.runner._loop.passed_at is not None)
    away.set()
    eventually("it knows", lambda: one.runner.failed)
    assert one.runner.lost == ()
    away.clear()
    one.runner.wake()
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    eventually("it works again", lambda: letters(one.app, "m") == ["a"])
    eventually("it is well again", lambda: not one.runner.failed)


def test_a_runner_is_a_context_manager(node: Make) -> None:
    one = node()
    with Runner(one.app, listen=False) as runner:
        assert runner.start() is runner
        one.app.send(one.app.actor(Mailbox, "m").take, "a")
        eventually("it delivers", lambda: letters(one.app, "m") == ["a"])
        assert runner.wait(0.01) is False
    assert runner.wait(20.0) is True
    assert runner.stop().delivered == 1


@pytest.mark.parametrize("verb", ["stop", "drain", "wait"])
def test_a_handler_cannot_wait_for_the_runner_that_runs_it(node: Make, outbox: Callable[[], list[Any]], verb: str) -> None:
    one = node(started=True)
    handled.on_take = lambda mailbox, letter: getattr(one.runner, verb)()
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    eventually("it is refused at once", lambda: bool(outbox()) and outbox()[0][2] is not None)
    ((attempts, _, error),) = outbox()
    assert attempts == 1
    assert error.endswith(
        f"AkterError: Runner.{verb}() inside a handler would wait for that handler: "
        f"set a threading.Event there, and call {verb}() in the thread that started the runner"
    )
    handled.on_take = lambda mailbox, letter: None
    one.app.send(one.app.actor(Mailbox, "m").take, "b")
    eventually("it works on", lambda: letters(one.app, "m") == ["b"])


def test_a_handler_may_stop_another_runner(node: Make) -> None:
    one, other = node(started=True), node(Sender, started=True)
    handled.on_take = lambda mailbox, letter: other.runner.stop() and None
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    eventually("it delivers", lambda: letters(one.app, "m") == ["a"])
    assert other.runner.wait(0.0)
