"""Runners that stop while jobs run: nothing more is claimed, and an attempt that was cut off is not taken for one that did nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from works import LEASE, Node, Shop, do, eventually, in_thread, jobs, log, provider

from akter import Actor, DeadLetter, Job, Retry, command
from akter.testing import advance

Make = Callable[..., Node]


class Kiosk(Actor):
    """Calls once and never again."""

    log: list[str] = []  # noqa: RUF012 - a state field's default is copied
    call = Job(do, retry=Retry(attempts=1), timeout=20.0, lease=3.0)

    @command
    def start(self, what: str) -> str:
        return self.enqueue(self.call, what)

    @call.on_dead_letter
    def dead(self, letter: DeadLetter) -> None:
        self.log = [*self.log, f"dead after {letter.attempts}, {'unknown' if letter.ambiguous else 'not applied'}"]


@pytest.mark.conformance("DRAIN-07")
def test_a_runner_that_stops_claims_no_job_and_finishes_what_runs(node: Make) -> None:
    one, other = node(started=True), node()
    let_go = provider.hold("tea")
    one.app.actor(Shop, "s").start("tea")
    eventually("it runs", lambda: provider.now == 1)
    stopping = in_thread(lambda: one.runner.stop(grace=20.0))
    eventually("it claims nothing more", lambda: one.runner.relay._stopping)
    assert one.runner.relay.run_pass().claimed == 0, "and a pass that was under way is over"
    one.app.actor(Shop, "t").start("milk")
    assert one.runner.relay.run_pass().claimed == 0
    assert [row["attempts"] for row in jobs(one.app, "t")] == [0]
    assert stopping.is_alive()
    let_go.set()
    stopping.join(20)
    report = one.runner.stop()
    assert (report.clean, report.left) == (True, ())
    assert provider.calls == [("tea", 1)]
    other.runner.drain()
    assert (log(other.app, "s"), log(other.app, "t")) == (["done HELD"], ["done MILK"])
    assert provider.calls == [("tea", 1), ("milk", 1)]


@pytest.mark.conformance("DRAIN-08")
def test_an_attempt_that_a_stop_cuts_off_is_an_ambiguous_dead_letter(node: Make, beside: Callable[..., list[tuple[object, ...]]]) -> None:
    one, other = node(Kiosk, started=True), node(Kiosk)
    let_go = provider.hold("tea")
    kiosk = one.app.actor(Kiosk, "k")
    id = kiosk.start("tea")
    eventually("it runs", lambda: provider.now == 1)
    report = one.runner.stop(grace=0.1)
    assert (report.clean, report.left) == (False, (id,))
    assert provider.attempts["tea", 1].cancelled.is_set(), "it was told"
    assert beside("SELECT cause FROM {akter}.actor_dead_letters") == [], "until its lease ends, it may still report"
    advance(other.app, LEASE, other.runner)
    heard = "SELECT value->>'log' FROM {akter}.actor_state WHERE actor_id = 'k'"
    assert beside(heard) == [('["dead after 1, unknown"]',)]
    expected = [("attempt 1 ended without reporting how", 1, True)]
    letter = "SELECT cause, attempts, ambiguous FROM {akter}.actor_dead_letters"
    assert beside(letter) == expected
    let_go.set()
    eventually("the attempt is over", lambda: provider.now == 0)
    other.runner.drain()
    assert (beside(letter), beside(heard)) == (expected, [('["dead after 1, unknown"]',)])
    assert provider.calls == [("tea", 1)]
