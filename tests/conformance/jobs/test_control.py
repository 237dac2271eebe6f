"""Keys, cancellations and limits per actor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from works import BACKOFF, LEASE, Node, Refused, Shop, declined, do, eventually, in_thread, jobs, letters, log, provider

from akter import Actor, Defect, Job, PayloadInvalid, command
from akter.errors import DeclarationError, Unavailable
from akter.testing import advance, crash_next, pause_next

Make = Callable[..., Node]
MINUTE = timedelta(minutes=1)


@pytest.mark.conformance("CTL-01")
def test_a_pending_job_that_is_cancelled_never_runs(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    shop.later("tea", "k")
    shop.stop("k")
    shop.start_and_cancel("milk", "m")
    assert jobs(one.app) == []
    advance(one.app, MINUTE, one.runner)
    assert (provider.calls, log(one.app)) == ([], [])


@pytest.mark.conformance("CTL-02")
def test_a_pending_job_is_replaced_under_its_key(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    first, second = shop.later("tea", "k"), shop.later("milk", "k")
    assert [row["intent_id"] for row in jobs(one.app)] == [second] != [first]
    advance(one.app, MINUTE, one.runner)
    assert provider.calls == [("milk", 1)]


@pytest.mark.conformance("CTL-03")
def test_a_job_cancelled_after_a_typed_failure_has_failed(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    provider.fail("tea", declined())
    shop.start("tea", "k")
    one.runner.drain()
    shop.stop("k")
    one.runner.drain()
    assert log(one.app) == ["cancelled after 1: failed"]
    advance(one.app, BACKOFF * 10, one.runner)
    assert provider.calls == [("tea", 1)]


@pytest.mark.conformance("CTL-04")
@pytest.mark.parametrize("last", ["the last attempt", "an earlier attempt"])
def test_a_job_cancelled_after_a_lost_answer_is_unknown(node: Make, last: str) -> None:
    one = node(lanes={"jobs": 1})
    shop = one.app.actor(Shop, "s")
    provider.fail("tea", ConnectionError("lost"))
    shop.start("tea", "k", job="work")
    one.runner.drain()
    if last == "an earlier attempt":
        provider.fail("tea", declined())
        shop.stop("other")
        crash_next(one.app, "before_dead_letter_commit")
        advance(one.app, BACKOFF, one.runner)
    shop.stop("k")
    advance(one.app, BACKOFF * 10, one.runner)
    assert log(one.app) == [f"cancelled after {2 if last == 'an earlier attempt' else 1}: unknown (ambiguous)"]


@pytest.mark.conformance("CTL-05")
@pytest.mark.parametrize("heed", [True, False], ids=["it stops", "it does not"])
def test_a_running_attempt_is_told_at_once_and_its_end_is_unknown(node: Make, heed: bool) -> None:
    one = node(started=True)
    shop = one.app.actor(Shop, "s")
    let_go = provider.hold("tea", heed=heed)
    shop.start("tea", "k")
    eventually("it runs", lambda: provider.now == 1)
    shop.stop("k")
    eventually("it is told", provider.attempts["tea", 1].cancelled.is_set)
    eventually("its actor hears of it", lambda: log(one.app) == ["cancelled after 1: unknown (ambiguous)"])
    let_go.set()
    eventually("it has ended", lambda: provider.now == 0)
    assert provider.calls == [("tea", 1)]


@pytest.mark.conformance("CTL-06")
def test_without_a_route_an_unknown_end_is_kept_and_a_known_one_is_not(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    provider.fail("tea", declined())
    provider.fail("milk", ConnectionError("lost"))
    for what in ("tea", "milk"):
        shop.start(what, what, job="bare")
    one.runner.drain()
    shop.stop("tea")
    shop.stop("milk")
    one.runner.drain()
    assert letters(one.app) == [("ConnectionError: lost", 1, True)]
    assert jobs(one.app) == []


@pytest.mark.conformance("CTL-07")
def test_a_limit_of_one_runs_an_actors_jobs_one_by_one_in_their_order(node: Make) -> None:
    one = node(started=True)
    held = provider.hold("a")
    one.app.actor(Shop, "s").start_all(["a", "b", "c", "d"])
    eventually("the first one runs", lambda: provider.calls == [("a", 1)])
    one.app.actor(Shop, "other").start_all(["x", "y"])
    eventually("another actor's run", lambda: sorted(log(one.app, "other")) == ["one X", "one Y"])
    assert log(one.app) == []
    held.set()
    eventually("all have run", lambda: sorted(log(one.app)) == ["one B", "one C", "one D", "one HELD"])
    assert [what for what, _ in provider.calls if what in "abcd"] == ["a", "b", "c", "d"]


@pytest.mark.conformance("CTL-08")
def test_limits_and_keys_that_cannot_be_are_refused(node: Make) -> None:
    for wrong in (0, 65, True, 1.5):
        with pytest.raises(DeclarationError, match="concurrency is the attempts at once per actor, 1 to 64"):
            Job(do, concurrency=wrong)  # type: ignore[arg-type]
    one = node()
    for key in ("", "$job:k", "$x", "a\0b", "k" * 2000):
        with pytest.raises((Defect, PayloadInvalid)):
            one.app.actor(Shop, "s").later("tea", key)
    assert jobs(one.app) == []


@pytest.mark.conformance("CTL-09")
@pytest.mark.parametrize(("how", "raised"), [("refuse", Refused), ("break", Defect)])
def test_a_cancellation_of_a_turn_that_saves_nothing_is_none(node: Make, how: str, raised: type[Exception]) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    shop.later("tea", "k")
    with pytest.raises(raised):
        shop.stop("k", how)
    advance(one.app, MINUTE, one.runner)
    assert log(one.app) == ["done TEA"]


@pytest.mark.conformance("CTL-10")
def test_cancelling_a_job_that_is_done_does_nothing(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    shop.start("tea", "k")
    with pause_next(one.app, "before_delivery") as held:
        draining = in_thread(one.runner.drain)
        held.wait()
        # Its success is written, and its message is on the way.
        shop.stop("k")
        held.release()
        draining.join(20)
    shop.stop("k")
    one.runner.drain()
    assert log(one.app) == ["done TEA"]


@pytest.mark.conformance("CTL-11")
def test_replacing_a_running_job_tells_of_the_old_one_and_runs_the_new_one(node: Make) -> None:
    one = node(started=True)
    shop = one.app.actor(Shop, "s")
    provider.hold("tea", heed=True)
    first = shop.start("tea", "k")
    eventually("it runs", lambda: provider.now == 1)
    second = shop.start("milk", "k")
    assert first != second
    eventually("both are told", lambda: sorted(log(one.app)) == ["cancelled after 1: unknown (ambiguous)", "done MILK"])
    assert provider.attempts["milk", 1].job_id == second


@pytest.mark.conformance("CTL-12")
def test_reserved_keys_and_a_cancellation_from_a_turn_that_is_over_are_refused(node: Make) -> None:
    kept: list[Any] = []

    class Leaky(Actor):
        @command
        def leak(self) -> None:
            kept.append(self)

        @command
        def stop(self, key: str) -> None:
            self.cancel(key)

    one = node(Leaky, Shop)
    one.app.actor(Leaky, "l").leak()
    with pytest.raises(Exception, match="turn"):
        kept[0].cancel("k")
    with pytest.raises(Defect, match=r"\$"):
        one.app.actor(Leaky, "l").stop("$job:k")


@pytest.mark.conformance("CTL-13")
def test_a_limit_holds_across_runners(node: Make) -> None:
    nodes = [node(started=True, poll=0.02) for _ in range(3)]
    names = [f"n{number}" for number in range(30)]
    for name in names:
        provider.on[name] = lambda attempt: str(attempt.cancelled.wait(0.01))
    nodes[0].app.actor(Shop, "s").start_all(names, "pair")
    eventually("all have run", lambda: len(log(nodes[0].app)) == 30, 60)
    assert provider.most == 2
    assert sorted(provider.calls) == sorted((name, 1) for name in names)


@pytest.mark.conformance("CTL-14", "CTL-15")
def test_a_wake_waits_for_a_claim_of_its_group_and_leaves_what_it_took_alone(node: Make, other_engine: Any, akter_schema: str) -> None:
    one = node()
    one.app.actor(Shop, "s").start_all(["a", "b", "c"])
    held = provider.hold("a")
    draining = in_thread(one.runner.drain)
    eventually("the first one runs", lambda: provider.now == 1)
    with other_engine.connect() as beside, beside.begin():
        # As a claim of this group does that has not committed: its lock is held, and the oldest waiting row is being taken.
        (run,) = one.runner.jobs.attempts.running()
        beside.exec_driver_sql(f"SELECT pg_advisory_xact_lock({run.group.lock(akter_schema)})")
        beside.exec_driver_sql(
            f"""UPDATE "{akter_schema}".actor_outbox SET running = true, waiting = false, attempts = 1, due_at_ms = due_at_ms + 1000000
            WHERE intent_id = (SELECT intent_id FROM "{akter_schema}".actor_outbox WHERE waiting ORDER BY ready_at_ms LIMIT 1)"""
        )
        held.set()
        eventually("the report waits for the lock", lambda: provider.now == 0 and one.runner.jobs.reporter._flushing.locked())
        assert [what for what, _ in provider.calls] == ["a"]
    eventually("nothing more is claimed", lambda: not one.runner.jobs.reporter._flushing.locked())
    draining.join(20)
    # The row that the other one took keeps its lease, and counts: nobody else may run.
    states = [
        (row["running"], row["waiting"], row["due_at_ms"] > row["scheduled_at_ms"] + 900_000)
        for row in jobs(one.app)
        if row["kind"] == "job"
    ]
    assert sorted(states) == [(False, True, False), (True, False, True)]
    assert [what for what, _ in provider.calls] == ["a"]


@pytest.mark.conformance("CTL-16")
def test_the_attempt_of_a_killed_runner_counts_until_its_lease_ends_and_goes_first(node: Make, beside: Any) -> None:
    dead, living = node(), node()
    living.app.actor(Shop, "s").start_all(["a", "b"])
    crash_next(dead.app, "before_execute")
    dead.runner.drain()
    # As if the lease were a minute longer, which this test surely does not take.
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms + 60000 WHERE attempts > 0")
    advance(living.app, LEASE, living.runner)
    assert provider.calls == []
    advance(living.app, MINUTE, living.runner)
    assert provider.calls == [("a", 2), ("b", 1)]
    assert sorted(log(living.app)) == ["one A", "one B"]


@pytest.mark.conformance("CTL-17", "REL-C-18")
def test_an_attempt_that_cannot_renew_its_lease_is_told_before_another_runner_takes_its_place(node: Make) -> None:
    cut_off = node(started=True)
    let_go = provider.hold("a")
    cut_off.runner.jobs.attempts.leases.stop()
    cut_off.app.actor(Shop, "s").start_all(["a", "b"], "fleeting")
    eventually("it runs", lambda: provider.calls == [("a", 1)])
    # Only now, since it might take the first attempt itself, whose lease it would renew.
    other = node(started=True, poll=0.05)
    told = provider.attempts["a", 1].cancelled
    eventually("the next one runs", lambda: len(provider.calls) > 1)
    eventually("it was told", told.is_set)
    let_go.set()
    eventually("both are told", lambda: sorted(log(other.app)) == ["fleeting B", "fleeting HELD"])


def later() -> list[threading.Timer]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


@pytest.mark.conformance("CTL-18")
def test_a_late_success_leaves_the_place_of_a_newer_attempt_taken(node: Make) -> None:
    slow, quick = node(), node(started=True, poll=0.02)
    quick.runner.relay.stop_claiming(5)
    quick = node()
    slow.app.actor(Shop, "s").start_all(["a", "b"])
    first, second = threading.Event(), threading.Event()

    def call(attempt: Any) -> str:
        (first if attempt.number == 1 else second).wait(30)
        return f"from {attempt.number}"

    provider.on["a"] = call
    draining = in_thread(slow.runner.drain)
    eventually("the first attempt runs", lambda: provider.calls == [("a", 1)])
    slow.runner.jobs.attempts.leases.stop()
    advance(quick.app, LEASE)
    newer = in_thread(quick.runner.drain)
    eventually("the second attempt runs", lambda: provider.calls == [("a", 1), ("a", 2)])
    first.set()
    draining.join(20)
    # Its success is known, and waits: the second attempt's place is not free.
    assert [row["running"] for row in jobs(slow.app)] == [True, False] or [row["running"] for row in jobs(slow.app)] == [False, True]
    assert [what for what, _ in provider.calls] == ["a", "a"]
    # Whoever looks after it does not hold the end of the process.
    eventually("it is looked after", lambda: later() != [])
    assert [thread.name for thread in later() if not thread.daemon] == []
    second.set()
    newer.join(20)
    advance(quick.app, LEASE, quick.runner)
    eventually("both are told", lambda: len(log(quick.app)) == 2)
    assert "one B" in log(quick.app)
    assert letters(quick.app) == []


@pytest.mark.conformance("CTL-19")
def test_a_cancellation_reaches_an_attempt_on_another_runner(node: Make) -> None:
    running, other = node(started=True, cancel_check=0.05, poll=0.05), node()
    provider.hold("tea", heed=True)
    shop = other.app.actor(Shop, "s")
    shop.start("tea", "k")
    eventually("it runs", lambda: provider.now == 1)
    shop.stop("k")
    eventually("its actor hears of it", lambda: log(other.app) == ["cancelled after 1: unknown (ambiguous)"])
    assert provider.calls == [("tea", 1)]
    assert running.runner.jobs.held() == []


@pytest.mark.conformance("CTL-20")
def test_a_success_before_the_cancellation_is_seen_is_told_as_cancelled_and_succeeded(node: Make) -> None:
    running, other = node(started=True, poll=0.05), node()
    let_go = provider.hold("tea")
    shop = other.app.actor(Shop, "s")
    shop.start("tea", "k")
    eventually("it runs", lambda: provider.now == 1)
    # A renewal would learn of the cancellation.
    running.runner.jobs.attempts.leases.stop()
    shop.stop("k")
    let_go.set()
    eventually("its actor hears of it", lambda: log(other.app) == ["cancelled after 1: succeeded"])
    assert not provider.attempts["tea", 1].cancelled.is_set()
    assert (letters(other.app), running.runner.jobs.held()) == ([], [])


@pytest.mark.conformance("CTL-21")
def test_a_success_after_a_settled_cancellation_is_kept_as_ambiguous_and_told_once(node: Make) -> None:
    slow, quick = node(), node()
    shop = quick.app.actor(Shop, "s")
    shop.start("tea", "k")
    with pause_next(slow.app, "after_execute") as held:
        draining = in_thread(slow.runner.drain)
        held.wait()
        slow.runner.jobs.attempts.leases.stop()
        shop.stop("k")
        advance(quick.app, LEASE, quick.runner)
        assert log(quick.app) == ["cancelled after 1: unknown (ambiguous)"]
        assert letters(quick.app) == []
        held.release()
        draining.join(20)
    assert letters(quick.app) == [("an attempt that was taken for dead succeeded", 1, True)]
    quick.runner.drain()
    assert log(quick.app) == ["cancelled after 1: unknown (ambiguous)"]


@pytest.mark.parametrize("told", [False, True], ids=["on its way", "told"])
def test_a_cancelled_success_whose_answer_was_lost_is_no_second_success(node: Make, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    one = node()
    shop, reporter = one.app.actor(Shop, "s"), one.runner.jobs.reporter
    fly, lost = reporter._fly, threading.Event()

    def losing(*asked: Any) -> Any:
        answer = fly(*asked)
        if not lost.is_set():
            lost.set()
            if told:
                other.runner.drain()
            raise Unavailable("the answer was lost")
        return answer

    other = node(lanes={"jobs": 0})
    monkeypatch.setattr(reporter, "_fly", losing)
    let_go = provider.hold("tea")
    shop.start("tea", "k")
    draining = in_thread(one.runner.drain)
    eventually("it runs", lambda: provider.now == 1)
    shop.stop("k")
    let_go.set()
    draining.join(60)
    one.runner.drain()
    assert lost.is_set()
    assert log(one.app) == ["cancelled after 1: succeeded"]
    assert letters(one.app) == []


def test_a_job_that_is_cancelled_between_its_last_failure_and_its_dead_letter_is_told_as_cancelled(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    provider.fail("tea", declined(final=True))
    shop.start("tea", "k")
    with pause_next(one.app, "before_dead_letter_commit") as held:
        draining = in_thread(one.runner.drain)
        held.wait()
        shop.stop("k")
        held.release()
        draining.join(60)
    one.runner.drain()
    assert log(one.app) == ["cancelled after 1: failed"]
    assert (letters(one.app), provider.calls) == ([], [("tea", 1)])


@pytest.mark.conformance("CTL-22")
@pytest.mark.parametrize("first", ["the claim", "the cancellation"])
def test_a_cancellation_and_a_claim_at_once_give_one_fate(
    node: Make, other_engine: Any, akter_schema: str, beside: Any, first: str
) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    shop.start("tea", "k")
    if first == "the claim":
        with other_engine.connect() as claiming:
            transaction = claiming.begin()
            claiming.exec_driver_sql(
                f"""UPDATE "{akter_schema}".actor_outbox SET attempts = 1, running = true, ambiguous = true,
                due_at_ms = due_at_ms + 3000 WHERE kind = 'job'"""
            )
            stopping = in_thread(lambda: shop.stop("k"))
            beside.until_waiting()
            transaction.commit()
            stopping.join(20)
        (row,) = jobs(one.app)
        assert (row["running"], row["cancelled_at_ms"] is not None, row["timer_key"]) == (True, True, None)
        advance(one.app, LEASE * 2, one.runner)
        assert log(one.app) == ["cancelled after 1: unknown (ambiguous)"]
    else:
        with other_engine.connect() as stopping:
            # As a turn does whose commit is under way: it has the row, and the claim must not wait for it, nor take it.
            transaction = stopping.begin()
            stopping.exec_driver_sql(f"""SELECT 1 FROM "{akter_schema}".actor_outbox WHERE kind = 'job' FOR UPDATE""")
            assert one.runner.relay.run_pass().claimed == 0
            stopping.exec_driver_sql(f"""DELETE FROM "{akter_schema}".actor_outbox WHERE kind = 'job'""")
            transaction.commit()
        shop.stop("k")
        one.runner.drain()
        assert log(one.app) == []
    assert provider.calls == []


@pytest.mark.conformance("CTL-23")
def test_the_cancelled_job_of_a_killed_runner_is_settled_without_another_call(node: Make) -> None:
    dead, living = node(), node()
    shop = living.app.actor(Shop, "s")
    shop.start("tea", "k")
    crash_next(dead.app, "after_execute")
    dead.runner.drain()
    shop.stop("k")
    advance(living.app, LEASE, living.runner)
    assert log(living.app) == ["cancelled after 1: unknown (ambiguous)"]
    assert provider.calls == [("tea", 1)]


@pytest.mark.conformance("CTL-24")
def test_jobs_with_a_limit_stand_in_the_order_in_which_they_were_asked_for(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    names = [f"n{number:02}" for number in range(12)]
    asked = [*shop.start_all(names[:5]), *shop.start_all(names[5:9]), *shop.start_all(names[9:])]
    rows = sorted((row["ready_at_ms"], row["intent_id"]) for row in jobs(one.app))
    assert [id for _, id in rows] == asked
    assert len({ready for ready, _ in rows}) == 12
    one.runner.drain()
    assert [what for what, _ in provider.calls] == names


def test_jobs_that_were_asked_for_before_they_had_a_limit_keep_to_it(node: Make, other_engine: Any, akter_schema: str) -> None:
    one, two = node(), node()
    shop = one.app.actor(Shop, "s")
    names = [f"n{number:02}" for number in range(8)]
    shop.start_all(names)
    with other_engine.begin() as connection:
        # As code without the limit would have left them.
        connection.exec_driver_sql(f"""UPDATE "{akter_schema}".actor_outbox SET capped = false WHERE kind = 'job'""")
    draining = in_thread(two.runner.drain)
    one.runner.drain()
    draining.join(60)
    one.runner.drain()
    assert [what for what, _ in provider.calls] == names
    assert provider.most == 1


def test_what_waits_behind_a_limit_is_not_read_by_claims(node: Make) -> None:
    one = node(started=True)
    held = provider.hold("n0")
    one.app.actor(Shop, "s").start_all([f"n{number}" for number in range(50)])
    eventually("the first one runs", lambda: provider.now == 1)
    eventually("the others wait", lambda: sum(row["waiting"] for row in jobs(one.app)) == 49)
    held.set()
    eventually("all have run", lambda: len(log(one.app)) == 50, 60)


@pytest.mark.conformance("CTL-15")
def test_whoever_ends_an_attempt_waits_for_a_claim_of_its_group_before_it_wakes_the_next(
    node: Make, other_engine: Any, akter_schema: str, beside: Any
) -> None:
    one = node()
    one.app.actor(Shop, "s").start_all(["a", "b"])
    let_go = provider.hold("a")
    draining = in_thread(one.runner.drain)
    eventually("the first one runs", lambda: provider.calls == [("a", 1)])
    (run,) = one.runner.jobs.attempts.running()
    waiting = "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database()"
    with other_engine.begin() as claiming:
        claiming.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": run.group.lock(akter_schema)})
        let_go.set()
        eventually("its end waits", lambda: beside(f"{waiting} AND locktype = 'advisory' AND NOT granted") != [])
        assert sorted((row["running"], row["attempts"]) for row in jobs(one.app)) == [(False, 0), (True, 1)]
    draining.join(60)
    assert provider.calls == [("a", 1), ("b", 1)]
