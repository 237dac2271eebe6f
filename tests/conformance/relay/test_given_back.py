"""What a runner does not begin counts as no try, and what it has not finished is not begun again beside itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from akter import Actor, Defect, Runner, command
from akter.capability import MAX_REQUESTS
from akter.errors import ConfigurationError
from akter.runner.passing import Share
from akter.testing import inspect, settle

entered, leave = threading.Event(), threading.Event()
runs: list[str] = []


class Gate(Actor):
    passed: int = 0

    @command
    def stand(self) -> None:
        runs.append(self.id)
        entered.set()
        leave.wait(60)
        self.passed += 1

    @command
    def ask(self, times: int) -> None:
        for _ in range(times):
            self.send(self.stand)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    entered.clear()
    leave.clear()
    runs.clear()
    yield
    leave.set()


def test_a_message_that_is_given_back_before_it_began_has_its_attempt_back(akter_app) -> None:
    app = akter_app(Gate)
    runner = Runner(app, listen=False)
    gate = app.actor(Gate, "g-1")
    gate.ask(3)
    with runner.relay._lock:
        # Claimed, and nobody may begin: as when a runner stops in the middle of a claim.
        share = Share(runner.relay.families[0], 3)
        runner.relay._claim([share], -128, 127)
    assert [row["attempts"] for row in inspect(app, gate).outbox] == [1, 1, 1]
    runner._deliverer.settler.release(share.rows)
    assert [row["attempts"] for row in inspect(app, gate).outbox] == [0, 0, 0]
    runner.stop()
    leave.set()
    settle(app)
    assert inspect(app, gate).state == {"passed": 3}


def test_a_message_whose_handler_has_not_returned_is_not_begun_beside_itself_when_its_lease_ends(akter_app, akter_engine) -> None:
    app = akter_app(Gate, execution=60)
    gate = app.actor(Gate, "g-1")
    gate.ask(1)
    runner = Runner(app, listen=False)
    assert runner.relay.run_pass().claimed == 1
    assert entered.wait(30)
    with akter_engine.begin() as connection:
        connection.exec_driver_sql(f'UPDATE "{app.schema}".actor_outbox SET due_at_ms = 0')
    assert runner.relay.run_pass().claimed == 1
    assert runner._lane.held == 1, "no second seat and no second thread"
    leave.set()
    assert runner._lane.wait_idle(30)
    runner.stop()
    assert runs == ["g-1"]
    assert inspect(app, gate).state == {"passed": 1}


def test_naming_one_lane_does_not_silence_another(akter_app) -> None:
    app = akter_app(Gate)
    leave.set()
    app.actor(Gate, "g-1").ask(1)
    runner = Runner(app, lanes={"jobs": 3}, listen=False)
    assert runner.settings.lanes == {"intents": 64, "jobs": 3}
    runner.drain()
    runner.stop()
    assert inspect(app, app.actor(Gate, "g-1")).state == {"passed": 1}


def test_an_unknown_option_of_a_runner_is_named_as_the_runners(akter_app) -> None:
    with pytest.raises(ConfigurationError, match=r"^Runner: there is no option 'foo'; the options are label, .*\bpoll\b"):
        Runner(akter_app(Gate), foo=1)


def test_a_turn_that_asks_for_too_much_is_refused_and_saves_nothing(akter_app) -> None:
    app = akter_app(Gate)
    gate = app.actor(Gate, "g-1")
    with pytest.raises(Defect, match="10000 things"):
        gate.ask(MAX_REQUESTS + 1)
    found = inspect(app, gate)
    assert (found.receipts, found.outbox) == ((), ())
