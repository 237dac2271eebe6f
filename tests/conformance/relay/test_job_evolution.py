"""Jobs that older code enqueued, run and told by newer code."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from post import Node

from akter import Actor, Attempt, DeadLetter, Job, Retry, command
from akter.operating import Operator
from akter.testing import advance, clear_faults, crash_next, inspect, settle

Make = Callable[..., Node]
called: list[str] = []
LEASE = timedelta(seconds=70)


@pytest.fixture(autouse=True)
def _forget() -> None:
    called.clear()


def call(attempt: Attempt, number: str) -> str:
    """Call a number as it was written."""
    called.append(number)
    if number.endswith("0"):
        raise ConnectionError("nobody answers")
    return number


def dial(attempt: Attempt, prefix: str, number: str) -> str:
    """Call a number in two parts."""
    return call(attempt, f"{prefix}-{number}")


def parted(old: dict[str, Any]) -> dict[str, Any]:
    """A number in two parts."""
    return {"prefix": "+49", "number": old["number"]}


class Caller(Actor):
    """The first release."""

    reached: list[str] = []  # noqa: RUF012 - every actor gets its own copy
    letters: int = 0
    phone = Job(call, retry=Retry(attempts=2, base=1.0))

    @command
    def ring(self, number: str) -> str:
        return self.enqueue(self.phone, number)

    @phone.on_success
    def answered(self, number: str) -> None:
        self.reached.append(number)

    @phone.on_dead_letter
    def unanswered(self, letter: DeadLetter) -> None:
        self.letters += 1


class Second(Actor, name="Caller"):
    """The second release: the job takes a number in two parts."""

    reached: list[str] = []  # noqa: RUF012 - every actor gets its own copy
    letters: int = 0
    ambiguous: bool = False
    phone = Job(dial, retry=Retry(attempts=2, base=1.0), migrations=[parted])

    @command
    def ring(self, prefix: str, number: str) -> str:
        return self.enqueue(self.phone, prefix, number)

    @phone.on_success
    def answered(self, number: str) -> None:
        self.reached.append(number)

    @phone.on_dead_letter
    def unanswered(self, letter: DeadLetter) -> None:
        self.letters += 1
        self.ambiguous = letter.ambiguous


class Broken(Actor, name="Caller"):
    """A release whose step fails."""

    letters: int = 0
    ambiguous: bool = False
    cause: str = ""
    phone = Job(call, retry=Retry(attempts=2, base=1.0), migrations=[lambda old: {"number": old["missing"]}])

    @phone.on_dead_letter
    def unanswered(self, letter: DeadLetter) -> None:
        self.letters, self.ambiguous, self.cause = self.letters + 1, letter.ambiguous, letter.cause


@pytest.fixture
def first(node: Make) -> Node:
    return node(Caller)


@pytest.fixture
def second(node: Make) -> Node:
    return node(Second)


@pytest.mark.conformance("EVO-04")
def test_a_pending_job_runs_with_its_arguments_up_to_date(first: Node, second: Node) -> None:
    first.app.actor(Caller, "c").ring("112")
    second.app.actor(Second, "c").ring("+1", "911")
    settle(second.app, second.runner)
    assert sorted(called) == ["+1-911", "+49-112"]
    assert sorted(inspect(second.app, second.app.actor(Second, "c")).state["reached"]) == ["+1-911", "+49-112"]  # type: ignore[index]


@pytest.mark.conformance("EVO-04")
def test_every_attempt_brings_the_arguments_up_to_date(first: Node, second: Node) -> None:
    first.app.actor(Caller, "c").ring("110")
    settle(first.app, first.runner)
    advance(second.app, timedelta(minutes=5), second.runner)
    assert called == ["110", "+49-110"]


@pytest.mark.conformance("EVO-05")
def test_a_dead_letter_of_an_old_job_is_told_and_kept_as_it_was_written(first: Node, second: Node, beside: Any) -> None:
    first.app.actor(Caller, "c").ring("110")
    settle(second.app, second.runner)
    advance(second.app, timedelta(minutes=5), second.runner)
    assert called == ["+49-110", "+49-110"]
    assert inspect(second.app, second.app.actor(Second, "c")).state == {"reached": [], "letters": 1, "ambiguous": True}
    assert beside("SELECT job, payload, payload_version, attempts FROM {akter}.actor_dead_letters") == [("phone", '{"number":"110"}', 0, 2)]


@pytest.mark.conformance("EVO-06")
def test_what_tells_the_end_of_a_job_has_a_version_of_its_own(second: Node, beside: Any) -> None:
    operator = Operator(second.app.engine, schema=second.app.schema)
    operator.pause("intents")
    second.app.actor(Second, "c").ring("+1", "911")
    assert beside("SELECT kind, payload_version FROM {akter}.actor_outbox") == [("job", 1)]
    settle(second.app, second.runner)
    assert beside("SELECT kind, command, payload_version FROM {akter}.actor_outbox") == [("intent", "answered", 0)]
    operator.resume("intents")
    settle(second.app, second.runner)
    assert inspect(second.app, second.app.actor(Second, "c")).state["reached"] == ["+1-911"]  # type: ignore[index]


@pytest.mark.conformance("EVO-07")
def test_a_job_whose_step_fails_is_not_called_and_ends_as_a_letter_that_says_so(first: Node, node: Make, beside: Any) -> None:
    first.app.actor(Caller, "c").ring("112")
    broken = node(Broken)
    settle(broken.app, broken.runner)
    advance(broken.app, timedelta(minutes=5), broken.runner)
    assert called == []
    found = inspect(broken.app, broken.app.actor(Broken, "c")).state
    assert found is not None
    assert (found["letters"], found["ambiguous"]) == (1, False)
    assert found["cause"].startswith("it was not started: ")
    assert "the migration from version 0 failed with KeyError" in found["cause"]
    assert beside("SELECT payload, payload_version, ambiguous FROM {akter}.actor_dead_letters") == [('{"number":"112"}', 0, False)]


@pytest.mark.conformance("EVO-08")
def test_a_step_that_fails_later_does_not_clear_what_is_unknown_of_an_earlier_attempt(first: Node, node: Make, beside: Any) -> None:
    first.app.actor(Caller, "c").ring("112")
    crash_next(first.app, "after_execute")
    settle(first.app, first.runner)
    clear_faults(first.app)
    assert called == ["112"]
    broken = node(Broken)
    advance(broken.app, LEASE, broken.runner)
    assert called == ["112"]
    found = inspect(broken.app, broken.app.actor(Broken, "c")).state
    assert found is not None
    assert (found["letters"], found["ambiguous"]) == (1, True)
    assert beside("SELECT ambiguous, attempts FROM {akter}.actor_dead_letters") == [(True, 2)]
