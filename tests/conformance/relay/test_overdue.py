"""Handlers that do not return: their threads are lost, so they are told, counted, and kept from taking the next runner's threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from post import Mailbox, Node, eventually, handled, in_thread, letters, send_many

from akter import Actor, command
from akter.operating import Operator

Make = Callable[..., Node]
Outbox = Callable[[], list[Any]]

LIMIT = {"execution": 0.3}
STUCK = "its handler has not returned within its time limit, and holds a thread of the runner "


class Patient(Actor):
    """Waits within its limit."""

    entered: ClassVar[threading.Event]
    leave: ClassVar[threading.Event]
    waited: bool = False

    @command(timeout=600.0)
    def wait(self) -> None:
        self.entered.set()
        self.leave.wait(60)
        self.waited = True


@pytest.fixture
def leave() -> Iterator[threading.Event]:
    """Until it is set, a handler that takes a letter whose name begins with `stuck` does not return."""
    free = threading.Event()
    Patient.entered, Patient.leave = threading.Event(), threading.Event()
    handled.on_take = lambda mailbox, letter: letter.startswith("stuck") and free.wait(60) and None
    yield free
    free.set()
    Patient.leave.set()


def named(caplog: pytest.LogCaptureFixture, name: str) -> list[Any]:
    return [record for record in caplog.records if record.getMessage() == name]


def test_a_handler_past_its_limit_is_told_once_and_its_message_says_so(
    node: Make, beside: Any, leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(started=True, heartbeat=0.05, app=LIMIT)
    operator = Operator(one.app.engine, schema=one.app.schema)
    sent = one.app.send(one.app.actor(Mailbox, "m").take, "stuck")
    eventually("its message says so", lambda: [row.last_error for row in operator.waiting()] == [STUCK + one.runner.label])
    (row,) = operator.waiting()
    assert (row.intent_id, row.reason, row.attempts, row.due_in_ms > 0) == (sent, "backoff", 1, True)
    assert (one.runner.overdue, one.runner.failed, one.runner.hung) == (1, False, ())
    seen = one.runner._heartbeat.loop.passed_at
    eventually("it has looked again", lambda: one.runner._heartbeat.loop.passed_at != seen)
    (told,) = named(caplog, "relay.past_its_limit")
    assert (told.levelno, told.akter_command_id, told.akter_thread) == (logging.WARNING, sent, "akter-intents-1")
    assert operator.health().said == "live runners: 1, looking for work: 1, threads in handlers past their time limit: 1"
    (found,) = operator.findings()
    assert (found.name, found.finding) == (
        "overdue",
        f"the runner {one.runner.label}, intents: 1 thread is in a handler past its time limit",
    )
    leave.set()
    eventually("it is tried again later", lambda: [one.last_error.startswith("Unavailable: ") for one in operator.waiting()] == [True])
    eventually("nothing is past its limit any more", lambda: operator.health().said == "live runners: 1, looking for work: 1")
    assert one.runner.overdue == 0


def test_a_handler_within_its_limit_is_not_past_it(node: Make, leave: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    one = node(started=True, heartbeat=0.05)
    one.app.send(one.app.actor(Mailbox, "m").take, "stuck")
    eventually("it began", lambda: handled.taken["stuck"] == 1)
    seen = one.runner._heartbeat.loop.passed_at
    eventually("it has looked", lambda: one.runner._heartbeat.loop.passed_at != seen)
    assert one.runner.overdue == 0
    leave.set()
    eventually("it is delivered", lambda: letters(one.app, "m") == ["stuck"])
    assert named(caplog, "relay.past_its_limit") == []


def test_of_a_group_the_one_that_hangs_is_named(node: Make, leave: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    one = node(heartbeat=0.05, app={"execution": 1.0})
    operator = Operator(one.app.engine, schema=one.app.schema)
    send_many(one.app, ["a", "b"])
    one.runner.drain()
    send_many(one.app, ["c", "stuck", "d"])
    one.runner.start()
    eventually("its message says so", lambda: STUCK + one.runner.label in [row.last_error for row in operator.waiting()])
    assert [(row.target_id, row.last_error) for row in operator.waiting() if row.last_error] == [("box-stuck", STUCK + one.runner.label)]
    assert [told.akter_actor for told in named(caplog, "relay.past_its_limit")] == ["Mailbox/box-stuck"]


def test_a_runner_without_a_thread_left_has_failed_and_says_when_work_waits(
    node: Make, leave: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(started=True, heartbeat=0.05, lanes={"intents": 2}, app=LIMIT)
    operator = Operator(one.app.engine, schema=one.app.schema)
    for number in (1, 2):
        one.app.send(one.app.actor(Mailbox, f"m-{number}").take, f"stuck-{number}")
    eventually("both are past their limit", lambda: one.runner.overdue == 2)
    assert one.runner.failed
    eventually("everybody knows", lambda: not operator.health().good)
    assert (
        operator.health().said
        == "hung: no live runner has a thread left for all of its work: 1, threads in handlers past their time limit: 2"
    )
    assert [(one.name, one.finding.split(": ")[1]) for one in operator.findings()] == [
        ("hung runner", "every thread is in a handler past its time limit")
    ]
    assert one.runner.hung == (), "no work waits"
    operator.pause("intents", "Mailbox")
    one.app.send(one.app.actor(Mailbox, "m-3").take, "a")
    seen = one.runner._heartbeat.loop.passed_at
    eventually("it has looked", lambda: one.runner._heartbeat.loop.passed_at not in (None, seen))
    assert one.runner.hung == (), "what is paused does not wait for a thread"
    operator.resume("intents", "Mailbox")
    eventually("work waits", lambda: one.runner.hung == ("intents",))
    assert [(told.levelno, told.akter_family, told.akter_threads) for told in named(caplog, "relay.hung")] == [
        (logging.ERROR, "intents", 2)
    ]
    leave.set()
    eventually("it is well again", lambda: not one.runner.failed and one.runner.hung == ())
    eventually("it works again", lambda: letters(one.app, "m-3") == ["a"])


def test_a_stop_does_not_wait_for_a_handler_past_its_limit_and_waits_for_the_others(node: Make, leave: threading.Event) -> None:
    one = node(Mailbox, Patient, started=True, heartbeat=0.05, app=LIMIT)
    sent = one.app.send(one.app.actor(Mailbox, "m").take, "stuck")
    eventually("it is past its limit", lambda: one.runner.overdue == 1)
    one.app.send(one.app.actor(Patient, "p").wait)
    assert Patient.entered.wait(20)
    stopping = in_thread(lambda: one.runner.stop(grace=3000.0))
    eventually("it claims nothing more", lambda: one.runner.relay._stopping)
    stopping.join(0.5)
    assert stopping.is_alive()
    Patient.leave.set()
    stopping.join(30)
    report = one.runner.stop()
    assert (report.clean, report.left, report.delivered) == (False, (sent,), 1)


def test_a_message_whose_handler_hung_is_not_due_at_once_for_the_next_process(node: Make, outbox: Outbox, leave: threading.Event) -> None:
    one = node(started=True, heartbeat=0.05, max_backoff=64.0, app=LIMIT)
    one.app.send(one.app.actor(Mailbox, "m").take, "stuck")
    eventually("it is past its limit", lambda: one.runner.overdue == 1)
    assert len(one.runner.abandon()) == 1
    ((attempts, due_in, error),) = outbox()
    assert (attempts, error) == (1, "Unavailable: its handler did not return within its time limit")
    assert 0 < due_in <= 1000
