"""`akter outbox discard` and `redirect`, `akter pause` and `resume`: what an operator does is done whole, and on record."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import click.testing
import pytest
import sqlalchemy.exc
from processes import until
from shop import Crate, Parcel

from akter import AkterError, Runner
from akter.app import Akter
from akter.cli import main
from akter.errors import ConfigurationError
from akter.operating import Operator
from akter.testing import inspect, settle

Rows = Callable[..., list[Any]]
conformance = pytest.mark.conformance


@pytest.fixture
def cli(environment: dict[str, str]) -> Callable[..., click.testing.Result]:
    def invoke(*arguments: str) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, arguments, env=environment)

    return invoke


def moves(app: Akter, kind: Any, id: str) -> int:
    return int((inspect(app, app.actor(kind, id)).state or {"moves": 0})["moves"])


AUDIT = "SELECT operator, action, target, reason, outcome FROM {akter}.actor_operator_audit"


@conformance("OPS-06")
def test_a_discarded_message_is_gone_and_on_record(cli: Callable[..., Any], app: Akter, rows: Rows) -> None:
    id = app.send(app.actor(Parcel, "p").hold, 5.0)
    refused = cli("outbox", "discard", id)
    assert (refused.exit_code, "say --yes" in refused.output) == (1, True)
    done = cli("outbox", "discard", id, "--yes", "--by", "ada", "--why", "it was torn")
    assert (done.exit_code, done.output) == (0, f"akter: discarded {id}\n")
    ((operator, action, target, reason, outcome),) = rows(AUDIT)
    assert (operator, action, target, reason) == ("ada", "outbox.discard", id, "it was torn")
    assert (outcome["command"], json.loads(outcome["payload"])) == ("hold", {"seconds": 5.0})
    settle(app)
    assert moves(app, Parcel, "p") == 0
    again = cli("outbox", "discard", id, "--yes")
    assert (again.exit_code, f"there is no message {id} in the outbox" in again.output) == (1, True)


def test_a_redirected_message_reaches_another_and_is_on_record(cli: Callable[..., Any], app: Akter, rows: Rows) -> None:
    id = app.send(app.actor(Parcel, "p").fail)
    settle(app)
    done = cli("outbox", "redirect", id, "--type", "Crate", "--id", "c", "--command", "move", "--by", "ada")
    assert done.exit_code == 0
    assert "no live runner serves 'Crate'; served are: none" in done.stderr
    ((_, action, target, _, outcome),) = rows(AUDIT)
    assert (action, target) == ("outbox.redirect", id)
    assert outcome == {
        "from": {"target_type": "Parcel", "target_id": "p", "command": "fail"},
        "to": {"target_type": "Crate", "target_id": "c", "command": "move"},
    }
    settle(app)
    assert (moves(app, Crate, "c"), moves(app, Parcel, "p")) == (1, 0)


def test_a_redirect_says_what_changes(cli: Callable[..., Any], app: Akter, operator: Operator) -> None:
    id = app.send(app.actor(Parcel, "p").move)
    assert cli("outbox", "redirect", id).exit_code == 2
    with pytest.raises(ConfigurationError):
        operator.redirect(id, to={"payload": "{}"})


@conformance("OPS-07")
@pytest.mark.parametrize("action", ["discard", "redirect"])
def test_nothing_happens_when_it_cannot_be_recorded(app: Akter, operator: Operator, rows: Rows, action: str) -> None:
    id = app.send(app.actor(Parcel, "p").move)
    before = rows("SELECT * FROM {akter}.actor_outbox")
    rows("ALTER TABLE {akter}.actor_operator_audit ADD CONSTRAINT refused CHECK (false)")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        operator.discard(id) if action == "discard" else operator.redirect(id, to={"target_id": "q"})
    assert rows("SELECT * FROM {akter}.actor_outbox") == before


def test_even_an_engine_in_autocommit_does_both_or_nothing(app: Akter, rows: Rows, akter_schema: str) -> None:
    id = app.send(app.actor(Parcel, "p").move)
    rows("ALTER TABLE {akter}.actor_operator_audit ADD CONSTRAINT refused CHECK (false)")
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        Operator(app.engine.execution_options(isolation_level="AUTOCOMMIT"), schema=akter_schema).discard(id)
    assert rows("SELECT count(*) FROM {akter}.actor_outbox") == [(1,)]


@conformance("OPS-11")
def test_one_of_two_operators_wins(app: Akter, operator: Operator, rows: Rows) -> None:
    id = app.send(app.actor(Parcel, "p").move)
    answers: list[str] = []

    def discard() -> None:
        try:
            operator.discard(id)
            answers.append("done")
        except AkterError:
            answers.append("absent")

    threads = [threading.Thread(target=discard) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["absent", "absent", "absent", "done"]
    assert rows("SELECT count(*) FROM {akter}.actor_operator_audit") == [(1,)]


def test_what_a_runner_holds_is_left_to_it(app: Akter, operator: Operator) -> None:
    id = app.send(app.actor(Parcel, "p").hold, 1.0)
    with Runner(app, listen=False, lanes={"intents": 1}):
        until(lambda: [row.reason for row in operator.waiting()] == ["claimed"])
        with pytest.raises(AkterError, match="a runner holds the message"):
            operator.discard(id)
        until(lambda: not operator.waiting())
    assert moves(app, Parcel, "p") == 1


def test_a_paused_type_rests_and_goes_on_at_once_when_resumed(cli: Callable[..., Any], app: Akter, operator: Operator) -> None:
    with Runner(app, poll=600.0, lanes={"intents": 4}) as runner:
        until(operator.runners)
        until(lambda: runner._listener is not None and runner._listener.connected_once)
        assert cli("pause", "intents", "--type", "Parcel", "--why", "torn").output == "akter: intents Parcel is paused\n"
        assert cli("pause", "intents", "--type", "Parcel").output == "akter: intents Parcel was paused already\n"
        app.send(app.actor(Parcel, "p").move)
        app.send(app.actor(Crate, "c").move)
        until(lambda: moves(app, Crate, "c") == 1)
        runner.drain()
        assert moves(app, Parcel, "p") == 0
        assert "paused: intents Parcel  torn" in cli("status").output
        # The poll is ten minutes away: only the hint can have woken it.
        assert cli("resume", "intents", "--type", "Parcel").output == "akter: intents Parcel is resumed\n"
        until(lambda: moves(app, Parcel, "p") == 1)
        assert cli("resume", "intents", "--type", "Parcel").output == "akter: intents Parcel was not paused\n"


def test_a_pause_stops_claims_within_one_poll(app: Akter, operator: Operator) -> None:
    with Runner(app, poll=0.05, listen=False, lanes={"intents": 1}):
        app.send(app.actor(Parcel, "p").move)
        until(lambda: moves(app, Parcel, "p") == 1)
        operator.pause("intents")
        app.send(app.actor(Parcel, "p").move)
        time.sleep(0.5)
        assert [(row.attempts, row.reason) for row in operator.waiting()] == [(0, "paused")]
        operator.resume("intents")
        until(lambda: moves(app, Parcel, "p") == 2)


def test_pausing_a_type_nobody_serves_is_told(cli: Callable[..., Any], app: Akter) -> None:
    done = cli("pause", "intents", "--type", "Parcle")
    assert (done.exit_code, done.stderr) == (0, "akter: no live runner serves 'Parcle'; served are: none\n")
    assert cli("pause", "boats").exit_code == 2
