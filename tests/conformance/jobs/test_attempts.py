"""Attempts on several runners: leases, limits of time, and what a stale attempt may still say."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from works import BACKOFF, LEASE, Node, Shop, declined, do, eventually, in_thread, jobs, letters, log, provider

from akter import Actor, Attempt, Job, Retry, command
from akter.testing import advance, crash_next, inspect, pause_next

Make = Callable[..., Node]


class Ghost(Actor, name="Ghost"):
    """A type that only some runners serve."""

    work = Job(do)

    @command
    def start(self, what: str) -> None:
        self.enqueue(self.work, what)


@pytest.mark.conformance("REL-C-08")
def test_messages_are_delivered_while_every_seat_for_jobs_is_taken(node: Make) -> None:
    one = node(started=True, lanes={"jobs": 2})
    held = [provider.hold(name) for name in ("a", "b")]
    for name in ("a", "b", "c"):
        one.app.actor(Shop, name).start(name, job="bare")
    eventually("both seats are taken", lambda: provider.now == 2)
    one.app.send(one.app.actor(Shop, "s").start, "d")
    eventually("the message has come", lambda: len(jobs(one.app)) == 1)
    assert provider.now == 2
    for event in held:
        event.set()
    eventually("the others run", lambda: log(one.app) == ["done D"])


@pytest.mark.conformance("REL-C-09")
def test_a_long_attempt_keeps_its_lease(node: Make, beside: Any) -> None:
    one, other = node(started=True, cancel_check=0.05), node()
    let_go = provider.hold("tea")
    one.app.actor(Shop, "s").start("tea")
    eventually("it runs", lambda: provider.now == 1)
    lease = "SELECT due_at_ms FROM {akter}.actor_outbox"
    for _ in range(3):
        ((until,),) = beside(lease)
        advance(one.app, LEASE / 2)
        eventually("it is renewed", lambda until=until: beside(lease)[0][0] >= until + 15_000)  # type: ignore[misc]
        other.runner.drain()
    let_go.set()
    eventually("it is told", lambda: log(one.app) == ["done HELD"])
    assert provider.calls == [("tea", 1)]
    assert other.runner.jobs.held() == []


@pytest.mark.conformance("REL-C-10")
def test_an_attempt_that_lost_its_lease_is_told_and_one_result_is(node: Make, beside: Any) -> None:
    one, other = node(started=True, cancel_check=0.05), node()
    let_go = provider.hold("tea")
    one.app.actor(Shop, "s").start("tea")
    eventually("it runs", lambda: provider.now == 1)
    provider.on["tea"] = lambda _: "SECOND"
    # As after a long pause of the first process: its lease is over, and another one claims.

    def taken() -> bool:
        beside("UPDATE {akter}.actor_outbox SET due_at_ms = 0 WHERE attempts = 1")
        other.runner.drain()
        return ("tea", 2) in provider.calls

    eventually("the other one has it", taken)
    eventually("the first one is told", provider.attempts["tea", 1].cancelled.is_set)
    let_go.set()
    eventually("nothing runs", lambda: provider.now == 0 and one.runner.jobs.held() == [])
    assert log(one.app) == ["done SECOND"]
    assert letters(one.app) == []


def overtaken(one: Node, claimer: Node, beside: Any) -> tuple[threading.Event, threading.Event]:
    """Let an attempt of one be told that the next one runs; returns what lets each of the two go."""
    first = provider.hold("tea")
    one.app.actor(Shop, "s").start("tea")
    eventually("it runs", lambda: provider.now == 1)
    (run,) = one.runner.jobs.attempts.running()
    second = provider.hold("tea", result="SECOND")

    def taken() -> bool:
        beside("UPDATE {akter}.actor_outbox SET due_at_ms = 0 WHERE attempts = 1")
        claimer.runner.relay.run_pass()
        return ("tea", 2) in provider.calls

    eventually("the next one runs", taken)
    eventually("the first one is told", provider.attempts["tea", 1].cancelled.is_set)
    assert run.over == "lost"
    assert not provider.attempts["tea", 2].cancelled.is_set()
    return first, second


def test_an_attempt_hears_that_the_next_one_runs_where_its_own_runner_has_it(node: Make, beside: Any) -> None:
    one = node(started=True, cancel_check=0.05)
    first, second = overtaken(one, one, beside)
    # Both in one statement, of which the first must not take the second's renewal for its own.
    held = list(one.runner.jobs.attempts.running())
    assert [run.row.attempts for run in held] == [1, 2]
    assert [(number, cancelled) for (*_, number), cancelled in one.runner.jobs._renew(held).items()] == [(2, False)]
    second.set()
    eventually("one result is told", lambda: log(one.app) == ["done SECOND"])
    first.set()


@pytest.mark.conformance("REL-C-10")
def test_an_attempt_hears_that_its_lease_is_another_ones_while_that_one_runs(node: Make, beside: Any) -> None:
    one, other = node(started=True, cancel_check=0.05), node()
    first, second = overtaken(one, other, beside)
    assert provider.now == 2
    first.set()
    second.set()
    other.runner.drain()
    eventually("one result is told", lambda: len(log(one.app)) == 1)
    assert letters(one.app) == []


@pytest.mark.conformance("REL-C-11")
def test_the_end_of_the_last_lease_is_an_ambiguous_dead_letter(node: Make) -> None:
    one = node()
    one.app.actor(Shop, "s").start("tea")
    for _ in range(2):
        crash_next(one.app, "before_execute")
        one.runner.drain()
        advance(one.app, LEASE)
    one.runner.drain()
    assert letters(one.app) == [("attempt 2 ended without reporting how", 2, True)]
    assert log(one.app) == ["dead after 2, unknown: attempt 2 ended without reporting how"]
    assert provider.calls == []


@pytest.mark.conformance("REL-C-12", "REL-S-09")
def test_jobs_are_claimed_where_their_function_is_past_those_of_others(node: Make, beside: Any) -> None:
    with_ghosts, without = node(Shop, Ghost), node(Shop)
    for number in range(40):
        with_ghosts.app.actor(Ghost, str(number)).start(f"ghost-{number}")
    without.app.actor(Shop, "s").start("tea")
    # All in one bucket, the ghosts first.
    beside(
        """UPDATE {akter}.actor_outbox SET bucket = b.bucket, routing_key = b.routing_key
        FROM (SELECT bucket, routing_key FROM {akter}.actor_outbox WHERE actor_type = 'Shop') b"""
    )
    without.runner.drain()
    assert provider.calls == [("tea", 1)]
    assert len(beside("SELECT 1 FROM {akter}.actor_outbox WHERE actor_type = 'Ghost' AND attempts = 0")) == 40


@pytest.mark.conformance("REL-C-13")
def test_each_job_has_its_own_limit_of_time_and_its_own_waits(node: Make, beside: Any) -> None:
    class Timed(Actor):
        brief = Job(do, timeout=0.1, retry=Retry(attempts=4, base=0.25, cap=0.75))

        @command
        def start(self, what: str) -> None:
            self.enqueue(self.brief, what)

    one = node(Timed)
    beside("CREATE TABLE waits (attempts int, wait bigint)")
    beside(
        """CREATE FUNCTION keep_wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF OLD.running AND NOT NEW.running THEN INSERT INTO waits VALUES (NEW.attempts,
            NEW.due_at_ms - floor(extract(epoch FROM statement_timestamp()) * 1000)
            - (SELECT clock_offset_ms FROM {akter}.actor_deployment)); END IF;
        RETURN NEW; END $$"""
    )
    beside("CREATE TRIGGER waits BEFORE UPDATE ON {akter}.actor_outbox FOR EACH ROW EXECUTE FUNCTION keep_wait()")
    provider.hold("tea", heed=True)
    one.app.actor(Timed, "t").start("tea")
    one.runner.drain()
    for _ in range(3):
        advance(one.app, BACKOFF, one.runner)
    assert provider.calls == [("tea", 1), ("tea", 2), ("tea", 3), ("tea", 4)]
    waits = beside("SELECT attempts, wait FROM waits ORDER BY attempts")
    assert [attempts for attempts, _ in waits] == [1, 2, 3, 4]
    for (_, wait), expected in zip(waits, [250, 500, 750, 750], strict=True):
        assert expected - 5 <= wait <= expected + 2_000
    ((_, _, ambiguous),) = beside("SELECT cause, attempts, ambiguous FROM {akter}.actor_dead_letters")
    assert ambiguous


@pytest.mark.conformance("REL-C-16")
def test_a_late_failure_changes_nothing_for_a_newer_attempt(node: Make) -> None:
    slow, quick = node(), node()
    slow.app.actor(Shop, "s").start("tea")
    first = threading.Event()
    second = threading.Event()

    def call(attempt: Attempt) -> str:
        (first if attempt.number == 1 else second).wait(30)
        if attempt.number == 1:
            raise declined(final=True)
        return "SECOND"

    provider.on["tea"] = call
    draining = in_thread(slow.runner.drain)
    eventually("the first attempt runs", lambda: provider.calls == [("tea", 1)])
    slow.runner.jobs.attempts.leases.stop()
    advance(quick.app, LEASE)
    newer = in_thread(quick.runner.drain)
    eventually("the second attempt runs", lambda: len(provider.calls) == 2)
    first.set()
    draining.join(20)
    (row,) = jobs(quick.app)
    assert (row["attempts"], row["running"], row["final_failure"]) == (2, True, False)
    second.set()
    newer.join(20)
    assert log(quick.app) == ["done SECOND"]


@pytest.mark.conformance("REL-C-17")
def test_a_dead_letter_becomes_ambiguous_when_an_earlier_attempt_succeeds_late(node: Make) -> None:
    slow, quick = node(), node()
    slow.app.actor(Shop, "s").start("tea")
    with pause_next(slow.app, "after_execute") as held:
        draining = in_thread(slow.runner.drain)
        held.wait()
        slow.runner.jobs.attempts.leases.stop()
        provider.fail("tea", declined())
        advance(quick.app, LEASE, quick.runner)
        assert letters(quick.app) == [("declined", 2, False)]
        held.release()
        draining.join(20)
    assert letters(quick.app) == [("declined", 2, True)]
    assert log(quick.app) == ["dead after 2, not applied: declined"]


@pytest.mark.conformance("REL-C-18")
def test_an_attempt_ends_here_no_later_than_its_lease_when_renewals_fail(node: Make) -> None:
    one = node(started=True)
    provider.hold("tea", heed=True)
    for _ in range(20):
        crash_next(one.app, "before_renew")
    one.app.actor(Shop, "s").start("tea", job="fleeting")
    eventually("it runs", lambda: provider.now == 1)
    (run,) = one.runner.jobs.attempts.running()
    eventually("it was told", provider.attempts["tea", 1].cancelled.is_set)
    eventually("it stopped", lambda: provider.now == 0)
    assert run.over == "lease"
    assert run.until - run.begun_at <= 3.0


@pytest.mark.conformance("REL-C-19")
def test_an_attempt_is_not_begun_once_its_lease_is_over(node: Make) -> None:
    one = node()
    one.app.actor(Shop, "s").start("tea")
    with pause_next(one.app, "before_execute") as held:
        draining = in_thread(one.runner.drain)
        held.wait()
        (run,) = one.runner.jobs.attempts._runs
        run.until = 0.0
        held.release()
        draining.join(20)
    assert provider.calls == []
    (row,) = jobs(one.app)
    assert (row["attempts"], row["running"]) == (1, True)
    advance(one.app, LEASE, one.runner)
    assert provider.calls == [("tea", 2)]


@pytest.mark.conformance("REL-C-19")
def test_a_lease_counts_from_when_its_claim_was_sent(node: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = node()
    runs, started, asked, sent = one.runner.jobs, one.runner.jobs.start, one.runner.jobs.claim, list[float]()

    def claim(probe: Any) -> Any:
        sent.append(time.monotonic())
        return asked(probe)

    def start(rows: Any, at: float, *, full: bool) -> None:
        assert at <= sent[-1]
        # As if the answer had been on its way for the whole lease.
        started(rows, at - LEASE.total_seconds(), full=full)

    # A renewal would find that the row is still this runner's.
    runs.attempts.leases.stop()
    one.app.actor(Shop, "s").start("tea")
    with monkeypatch.context() as slow:
        slow.setattr(runs, "claim", claim)
        slow.setattr(runs, "start", start)
        one.runner.drain()
    assert sent != []
    assert provider.calls == []
    advance(one.app, LEASE, one.runner)
    assert provider.calls == [("tea", 2)]


@pytest.mark.conformance("REL-C-20")
def test_a_renewal_that_comes_late_leaves_the_wait_after_a_failure_alone(node: Make) -> None:
    one = node()
    provider.fail("tea", declined())
    one.app.actor(Shop, "s").start("tea")
    with pause_next(one.app, "before_renew") as held:
        let_go = provider.hold("tea", result=declined())
        draining = in_thread(one.runner.drain)
        eventually("it runs", lambda: provider.now == 1)
        (run,) = one.runner.jobs.attempts.running()
        run.renew_at = 0.0
        one.runner.jobs.attempts.leases.wake()
        held.wait()
        let_go.set()
        draining.join(20)
        (before,) = jobs(one.app)
        assert not before["running"]
        held.release()
    eventually("the renewal has been", lambda: one.runner.jobs.attempts.leases.passed_at is not None and run.renew_at != 0.0)
    (after,) = jobs(one.app)
    assert after["due_at_ms"] == before["due_at_ms"]


@pytest.mark.parametrize("ends", ["late", "never"])
def test_a_function_past_its_limit_keeps_its_seat_and_does_not_stop_the_others(node: Make, ends: str) -> None:
    one = node(started=True, lanes={"jobs": 2})
    let_go = provider.hold("stuck", result="AT LAST")
    one.app.actor(Shop, "s").start("stuck", job="brief")
    eventually("it is given up", lambda: letters(one.app) == [("it took longer than its time limit", 1, True)])
    for number in range(20):
        one.app.actor(Shop, f"n{number}").start(f"n{number}")
    eventually("the others run", lambda: all(log(one.app, f"n{number}") == [f"done N{number}"] for number in range(20)))
    assert one.runner.overdue == 1
    assert one.runner.jobs.lane.held == 1
    if ends == "late":
        let_go.set()
        eventually("its seat is free", lambda: one.runner.jobs.lane.held == 0)
        assert one.runner.overdue == 0
    else:
        report = one.runner.stop(grace=0.2)
        assert not report.clean
        assert len(report.left) == 1
        let_go.set()


def test_what_a_runner_has_not_begun_is_given_back_as_if_it_had_not_been_claimed(node: Make) -> None:
    one, other = node(lanes={"jobs": 1}), node()
    one.app.actor(Shop, "s").start("tea")
    with pause_next(one.app, "before_execute") as held:
        draining = in_thread(lambda: one.runner.relay.run_pass())
        held.wait()
        (row,) = jobs(one.app)
        assert row["attempts"] == 1
        one.runner.relay.abandon()
        (row,) = jobs(one.app)
        assert (row["attempts"], row["running"], row["ambiguous"], row["last_error"]) == (0, False, False, None)
        held.release()
        draining.join(20)
    other.runner.drain()
    assert provider.calls == [("tea", 1)]
    assert log(other.app) == ["done TEA"]


@pytest.mark.conformance("REL-C-16")
def test_a_late_failure_changes_nothing_for_a_job_that_another_runner_settles(node: Make) -> None:
    slow, quick = node(), node()
    shop = quick.app.actor(Shop, "s")
    let_go = provider.hold("tea", result=declined())
    shop.start("tea", "k")
    draining = in_thread(slow.runner.drain)
    eventually("it runs", lambda: provider.now == 1)
    slow.runner.jobs.attempts.leases.stop()
    shop.stop("k")
    advance(quick.app, LEASE)
    with pause_next(quick.app, "before_dead_letter_commit") as held:
        settling = in_thread(quick.runner.drain)
        held.wait()
        let_go.set()
        draining.join(20)
        (row,) = jobs(quick.app)
        assert (row["ambiguous"], row["last_error"]) == (True, "attempt 1 ended without reporting how")
        held.release()
        settling.join(20)
    assert log(quick.app) == ["cancelled after 1: unknown (ambiguous)"]


def test_a_success_after_the_time_limit_counts_while_the_job_waits_for_its_next_attempt(node: Make) -> None:
    class Patient(Actor):
        heard: list[str] = []  # noqa: RUF012 - a state field's default is copied
        work = Job(do, retry=Retry(attempts=2, base=1000.0, cap=1000.0), timeout=20.0, lease=3.0)

        @command
        def start(self, what: str) -> None:
            self.enqueue(self.work, what)

        @work.on_success
        def done(self, result: str) -> None:
            self.heard = [*self.heard, result]

    one = node(Patient, started=True)
    patient = one.app.actor(Patient, "p")
    let_go = provider.hold("tea")
    patient.start("tea")
    eventually("it runs", lambda: provider.now == 1)
    (run,) = one.runner.jobs.attempts.running()
    run.deadline = 0.0
    one.runner.jobs.attempts.clock.wake()
    said = "it took longer than its time limit"
    eventually("it is given up", lambda: [row["last_error"] for row in inspect(one.app, patient).outbox] == [said])
    let_go.set()
    eventually("it is told", lambda: (inspect(one.app, patient).state or {}).get("heard") == ["HELD"])
    assert provider.calls == [("tea", 1)]
    eventually("nothing is left", lambda: inspect(one.app, patient).outbox == ())
