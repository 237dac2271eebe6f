"""Jobs: run after their turn committed, told once, and told honestly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from works import BACKOFF, LEASE, Node, Refused, Shop, declined, do, eventually, in_thread, jobs, letters, log, provider

from akter import Actor, Attempt, Defect, Job, NotApplied, command
from akter.errors import DeclarationError
from akter.testing import advance, crash_next, inspect, pause_next, receipts

Make = Callable[..., Node]


@pytest.mark.conformance("JOB-01")
def test_a_result_is_told_once_under_the_jobs_id(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    id = shop.start("tea")
    one.runner.drain()
    assert log(one.app) == ["done TEA"]
    (receipt,) = receipts(one.app, shop, "done")
    assert receipt.command_id == id
    assert receipt.caller_key == '["System","job",["default","Shop","s"],null]'
    assert jobs(one.app) == []
    assert provider.attempts["tea", 1].job_id == id
    assert (provider.attempts["tea", 1].actor_id, provider.attempts["tea", 1].tenant) == ("s", "default")


@pytest.mark.conformance("JOB-02")
@pytest.mark.parametrize(("how", "raised"), [("refuse", Refused), ("break", Defect)])
def test_a_turn_that_saves_nothing_asks_for_nothing(node: Make, how: str, raised: type[Exception]) -> None:
    one = node()
    with pytest.raises(raised):
        one.app.actor(Shop, "s").start_and("tea", how)
    assert jobs(one.app) == []
    crash_next(one.app, "before_commit", command_id="lost")
    with one.app.command_id("lost"):
        one.app.actor(Shop, "s").start("milk")
    # The retry of the same command asked for it once.
    assert len(jobs(one.app)) == 1
    one.runner.drain()
    assert provider.calls == [("milk", 1)]


@pytest.mark.conformance("JOB-03", "REL-C-15")
def test_two_attempts_that_succeed_are_told_once(node: Make) -> None:
    slow, quick = node(), node()
    slow.app.actor(Shop, "s").start("tea")
    with pause_next(slow.app, "after_execute") as held:
        draining = in_thread(slow.runner.drain)
        held.wait()
        slow.runner.jobs.attempts.leases.stop()
        advance(quick.app, LEASE, quick.runner)
        assert provider.calls == [("tea", 1), ("tea", 2)]
        assert log(quick.app) == ["done TEA"]
        held.release()
        draining.join(20)
    assert log(quick.app) == ["done TEA"]
    assert letters(quick.app) == []
    assert jobs(quick.app) == []


@pytest.mark.conformance("REL-C-15")
def test_the_success_of_an_attempt_whose_lease_is_over_counts_when_it_comes_before_the_next_one(node: Make) -> None:
    slow, quick = node(), node()
    slow.app.actor(Shop, "s").start("tea")
    with pause_next(slow.app, "after_execute") as held:
        draining = in_thread(slow.runner.drain)
        held.wait()
        slow.runner.jobs.attempts.leases.stop()
        advance(quick.app, LEASE)
        held.release()
        draining.join(20)
    quick.runner.drain()
    assert provider.calls == [("tea", 1)]
    assert log(quick.app) == ["done TEA"]


@pytest.mark.conformance("JOB-04")
@pytest.mark.parametrize("point", ["before_delivery", "before_handler", "before_commit", "after_commit"])
def test_a_result_is_told_once_though_its_delivery_dies(node: Make, point: Any) -> None:
    one = node()
    id = one.app.actor(Shop, "s").start("tea")
    crash_next(one.app, point, command_id=id)
    one.runner.drain()
    advance(one.app, LEASE * 20, one.runner)
    assert log(one.app) == ["done TEA"]
    assert provider.calls == [("tea", 1)]


@pytest.mark.conformance("JOB-05", "REL-C-21")
@pytest.mark.parametrize(("point", "calls"), [("before_execute", [("tea", 2)]), ("after_execute", [("tea", 1), ("tea", 2)])])
def test_an_attempt_that_dies_is_followed_by_another_and_told_once(node: Make, point: Any, calls: Any) -> None:
    one = node()
    one.app.actor(Shop, "s").start("tea")
    crash_next(one.app, point)
    one.runner.drain()
    (row,) = jobs(one.app)
    assert (row["attempts"], row["running"], row["ambiguous"]) == (1, True, True)
    assert row["last_error"] == "attempt 1 ended without reporting how"
    advance(one.app, LEASE, one.runner)
    assert provider.calls == calls
    assert log(one.app) == ["done TEA"]


@pytest.mark.conformance("JOB-06")
def test_a_dead_letter_is_told_once_in_a_turn_of_its_own(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    provider.fail("tea", ValueError("no answer"))
    id = shop.start("tea")
    one.runner.drain()
    assert (log(one.app), letters(one.app)) == ([], [])
    crash_next(one.app, "after_commit", command_id=id)
    advance(one.app, BACKOFF, one.runner)
    advance(one.app, LEASE * 20, one.runner)
    assert log(one.app) == ["dead after 2, unknown: ValueError: no answer"]
    assert [receipt.command_id for receipt in receipts(one.app, shop, "dead")] == [id]
    assert letters(one.app) == [("ValueError: no answer", 2, True)]


@pytest.mark.conformance("JOB-07")
def test_a_typed_failure_and_a_lost_answer_are_told_apart(node: Make) -> None:
    one = node()
    provider.fail("typed", declined())
    provider.fail("refused", Refused())
    provider.fail("unknown", ConnectionError("lost"))
    provider.fail("last one typed", ConnectionError("lost"), until=1)
    once = provider.on["last one typed"]

    def then_declined(attempt: Attempt) -> Any:
        once(attempt)
        raise declined()

    provider.on["last one typed"] = then_declined
    for number, what in enumerate(["typed", "refused", "unknown", "last one typed"]):
        one.app.actor(Shop, str(number)).start(what)
    one.runner.drain()
    advance(one.app, BACKOFF, one.runner)
    said = [log(one.app, str(number)) for number in range(4)]
    assert said == [
        ["dead after 2, not applied: declined"],
        ["dead after 2, not applied: Refused: The turn was refused."],
        ["dead after 2, unknown: ConnectionError: lost"],
        ["dead after 2, not applied: declined"],
    ]


def test_a_final_failure_is_not_tried_again(node: Make) -> None:
    one = node()
    provider.fail("tea", declined(final=True))
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    assert log(one.app) == ["dead after 1, not applied: declined"]
    advance(one.app, BACKOFF * 10, one.runner)
    assert provider.calls == [("tea", 1)]


@pytest.mark.conformance("JOB-08")
def test_a_result_that_does_not_fit_its_route_is_a_dead_letter_at_once(node: Make) -> None:
    one = node()
    provider.on["tea"] = lambda _: 5
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    ((cause, attempts, ambiguous),) = letters(one.app)
    assert cause.startswith("its result does not fit done: ")
    assert (attempts, ambiguous) == (1, True)
    advance(one.app, BACKOFF * 10, one.runner)
    assert provider.calls == [("tea", 1)]


@pytest.mark.conformance("JOB-09", "REL-S-07")
@pytest.mark.parametrize("what", ["a rejected result", "the last failure"])
def test_a_dead_letter_that_cannot_be_written_is_tried_again_without_the_provider(node: Make, beside: Any, what: str) -> None:
    one = node()
    if what == "a rejected result":
        provider.on["tea"] = lambda _: 5
    else:
        provider.fail("tea", declined(final=True))
    one.app.actor(Shop, "s").start("tea")
    beside("ALTER TABLE {akter}.actor_dead_letters ADD CONSTRAINT full_up CHECK (attempts < 0)")
    one.runner.drain()
    (row,) = jobs(one.app)
    assert (row["kind"], row["attempts"], row["running"], row["final_failure"]) == ("job", 1, False, True)
    kept = row["last_error"]
    beside("ALTER TABLE {akter}.actor_dead_letters DROP CONSTRAINT full_up")
    advance(one.app, LEASE * 20, one.runner)
    assert provider.calls == [("tea", 1)]
    assert letters(one.app) == [(kept, 1, what == "a rejected result")]
    assert len(log(one.app)) == 1


@pytest.mark.conformance("JOB-10")
def test_an_actor_that_outlived_its_turn_asks_for_nothing(node: Make) -> None:
    kept: list[Shop] = []

    class Leaky(Actor):
        work = Job(do)

        @command
        def leak(self) -> None:
            kept.append(self)  # type: ignore[arg-type]

    one = node(Leaky)
    one.app.actor(Leaky, "l").leak()
    with pytest.raises(Exception, match="turn"):
        kept[0].enqueue(kept[0].work, "tea")
    one.runner.drain()
    assert provider.calls == []


@pytest.mark.conformance("JOB-11")
def test_a_function_never_runs_before_its_turn_has_committed(node: Make) -> None:
    one = node(started=True, poll=0.01)
    with pause_next(one.app, "before_commit", command_id="t") as held:

        def ask() -> None:
            with one.app.command_id("t"):
                one.app.actor(Shop, "s").start("tea")

        asking = in_thread(ask)
        held.wait()
        passed = one.runner._loop.passed_at
        eventually("it looks again", lambda: one.runner._loop.passed_at != passed)
        assert provider.calls == []
        held.release()
        asking.join(20)
    eventually("it runs", lambda: provider.calls == [("tea", 1)])


@pytest.mark.conformance("JOB-12")
def test_a_route_takes_what_it_is_told_and_a_function_is_given_no_database(node: Make) -> None:
    with pytest.raises(DeclarationError, match=r"as the success route of Wrong.work its argument is annotated `str`"):

        class Wrong(Actor):
            work = Job(do)

            @work.on_success
            def done(self, result: int) -> None: ...  # type: ignore[arg-type]

    with pytest.raises(DeclarationError, match=r"as the dead_letter route of Wrong2.work its argument is annotated `DeadLetter`"):

        class Wrong2(Actor):
            work = Job(do)

            @work.on_dead_letter
            def dead(self, letter: str) -> None: ...  # type: ignore[arg-type]

    given = {name for name in dir(Attempt) if not name.startswith("_")}
    assert given == {
        *("actor_id", "cancelled", "deadline", "job_id", "number", "progress", "raise_if_cancelled", "remaining", "report", "tenant"),
    }


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(ValueError("a\0b"), id="a NUL"),
        pytest.param(ValueError("\ud800"), id="a lone surrogate"),
        pytest.param(ValueError("x" * 10_000_000), id="ten megabytes"),
        pytest.param(SystemExit(3), id="an exit"),
        pytest.param(KeyboardInterrupt(), id="an interrupt"),
    ],
)
def test_whatever_a_function_raises_its_failure_is_recorded(node: Make, problem: BaseException) -> None:
    one = node()
    provider.fail("tea", problem)
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    advance(one.app, BACKOFF, one.runner)
    ((cause, attempts, ambiguous),) = letters(one.app)
    assert cause.startswith(type(problem).__name__)
    assert len(cause) <= 2000
    assert (attempts, ambiguous) == (2, True)


def test_an_exception_that_has_no_words_is_a_failure_all_the_same(node: Make) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    one = node()
    provider.fail("tea", Mute())
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    advance(one.app, BACKOFF, one.runner)
    assert letters(one.app) == [("Mute", 2, True)]


def test_arguments_that_cannot_be_read_fail_without_a_call_and_keep_what_was_unknown(node: Make, beside: Any) -> None:
    one = node()
    one.app.actor(Shop, "s").start("tea")
    beside("UPDATE {akter}.actor_outbox SET payload = '{\"other\": 1}'")
    one.runner.drain()
    advance(one.app, BACKOFF, one.runner)
    assert provider.calls == []
    ((cause, attempts, ambiguous),) = letters(one.app)
    assert cause.startswith("it was not started: PayloadInvalid: ")
    assert (attempts, ambiguous) == (2, False)


def test_a_job_without_routes_leaves_nothing_when_it_is_done(node: Make) -> None:
    one = node()
    one.app.actor(Shop, "s").start("tea", job="bare")
    one.runner.drain()
    assert (jobs(one.app), log(one.app), letters(one.app)) == ([], [], [])
    provider.fail("milk", declined())
    one.app.actor(Shop, "s").start("milk", job="bare")
    one.runner.drain()
    advance(one.app, BACKOFF, one.runner)
    assert letters(one.app) == [("declined", 2, False)]
    assert jobs(one.app) == []
    assert inspect(one.app, one.app.actor(Shop, "s")).state is None


def test_a_job_may_call_actors_as_any_client_does(node: Make) -> None:
    one = node()
    seen = threading.Event()

    def call_back(_: Attempt) -> str:
        one.app.actor(Shop, "other").start("milk", job="bare")
        seen.set()
        return "called"

    provider.on["tea"] = call_back
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    assert seen.is_set()
    assert log(one.app) == ["done called"]


def test_an_exception_of_the_applications_own_that_is_half_made_ends_its_attempt(node: Make) -> None:
    class Declined(NotApplied):
        def __init__(self, code: int) -> None:
            self.code = code

    class Evil(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    one = node()
    provider.fail("half", Declined(7))
    provider.fail("evil", Evil())
    for what in ("half", "evil"):
        one.app.actor(Shop, what).start(what)
    one.runner.drain()
    advance(one.app, BACKOFF, one.runner)
    assert [(attempts, ambiguous) for _, attempts, ambiguous in letters(one.app, "half")] == [(2, False)]
    assert letters(one.app, "evil") == [("Evil", 2, True)]
    assert one.runner.jobs.lane.held == 0


def test_a_result_that_is_too_large_is_a_dead_letter_that_says_so(node: Make) -> None:
    one = node()
    provider.on["tea"] = lambda _: "x" * 2_000_000
    one.app.actor(Shop, "s").start("tea")
    one.runner.drain()
    ((cause, attempts, ambiguous),) = letters(one.app)
    assert cause == "its result does not fit done: PayloadInvalid: it is 2000013 bytes long; the limit is 1048576"
    assert (attempts, ambiguous) == (1, True)


def test_a_quick_job_is_told_while_the_one_behind_it_in_its_thread_is_slow_for_once(node: Make) -> None:
    one = node()
    shop = one.app.actor(Shop, "s")
    # Jobs of this name have been quick, so the next ones share a thread.
    one.runner.jobs._quick["Shop", "work"] = 1_000_000
    let_go = provider.hold("slow")
    for what in ("quick", "slow"):
        shop.start(what)
        advance(one.app, BACKOFF)
    draining = in_thread(one.runner.drain)
    eventually("the second one runs", lambda: ("slow", 1) in provider.calls)
    eventually("the first one is settled", lambda: [row["kind"] for row in jobs(one.app) if row["command"] == "work"] == ["job"])
    assert provider.calls == [("quick", 1), ("slow", 1)]
    let_go.set()
    draining.join(60)
    assert sorted(log(one.app)) == ["done HELD", "done QUICK"]
