"""Schedules as an operator sees them: what waits for its time, what no code has, what fails, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click.testing
import pytest
from processes import until
from sqlalchemy import Engine

from akter import Actor, Akter, Runner, command, cron
from akter.cli import main
from akter.errors import AkterError
from akter.operating import Operator
from akter.testing import advance, settle

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
broken: list[str] = []


class Plant(Actor):
    """Is watered at six."""

    @command
    def sow(self) -> None: ...

    @cron("0 6 * * *", tz="Europe/Berlin")
    def water(self) -> None:
        if broken:
            raise ValueError(broken[0])


class Weed(Actor, name="Plant"):
    """A later version, which nobody waters."""

    @command
    def sow(self) -> None: ...


@pytest.fixture
def app(akter_app: Any) -> Akter:
    broken.clear()
    made: Akter = akter_app(Plant)
    made.actor(Plant, "rose").sow()
    return made


@pytest.fixture
def operator(akter_engine: Engine, akter_schema: str) -> Operator:
    return Operator(akter_engine, schema=akter_schema, by="ada")


@pytest.fixture
def cli(environment: dict[str, str]) -> Callable[..., click.testing.Result]:
    def invoke(*arguments: str) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, arguments, env=environment)

    return invoke


def to_its_time(app: Akter, operator: Operator, late: timedelta = timedelta(seconds=1)) -> str:
    (row,) = operator.waiting()
    advance(app, timedelta(milliseconds=row.due_in_ms) + late)
    return row.intent_id


def test_a_schedule_that_waits_is_told_from_a_timer_and_shows_its_times_and_zone(
    app: Akter, operator: Operator, cli: Callable[..., click.testing.Result]
) -> None:
    (row,) = operator.waiting(reason="schedule")
    assert (row.reason, row.key, row.target_type, row.target_id, row.command) == (
        "schedule",
        "$cron:Europe/Berlin 0 6 * * *",
        "Plant",
        "rose",
        "water",
    )
    assert operator.waiting(reason="future") == []
    listed, status = cli("outbox", "list", "--reason", "schedule"), cli("status")
    assert "$cron:Europe/Berlin 0 6 * * *" in listed.output
    assert "intent  Plant        schedule  1" in status.output


def test_a_schedule_that_left_the_code_is_named_until_it_is_deleted(app: Akter, operator: Operator, akter_app: Any) -> None:
    later = akter_app(Weed)
    to_its_time(app, operator)
    runner = Runner(later, listen=False, heartbeat=0.1)
    settle(later, runner)
    (row,) = operator.waiting(reason="unknown schedule")
    assert (row.reason, row.last_error) == ("unknown schedule", "this schedule is not in the code of the runner that looked last")
    (finding,) = [found for found in operator.findings() if found.name == "unknown schedule"]
    assert finding.finding == "1 intent row for Plant of a schedule that the runner which looked last does not have"
    assert finding.remedy == "run the code that has it; if it left the code, nothing: its rows are deleted a day after their time"
    advance(later, DAY, runner)
    runner.stop()
    assert operator.waiting() == []


def test_a_tick_that_fails_again_and_again_is_stuck_and_needs_no_discarding(app: Akter, operator: Operator) -> None:
    broken.append("no water")
    to_its_time(app, operator)
    runner = Runner(app, listen=False)
    settle(app, runner)
    for _ in range(8):
        advance(app, timedelta(minutes=5), runner)
    (row,) = operator.waiting(reason="backoff")
    assert (row.attempts, "no water" in (row.last_error or "")) == (9, True)
    (finding,) = [found for found in operator.findings() if found.name == "stuck"]
    assert finding.remedy == "mend the handler, or: this time is skipped a day after it"
    advance(app, DAY, runner)
    runner.stop()
    (row,) = operator.waiting()
    assert (row.reason, row.attempts) == ("schedule", 0)


def test_a_schedule_cannot_be_redirected_and_a_discarded_one_comes_back(app: Akter, operator: Operator, akter_app: Any) -> None:
    (row,) = operator.waiting()
    with pytest.raises(AkterError, match="belongs to a schedule, and its class says which command that runs: change @cron in the code"):
        operator.redirect(row.intent_id, to={"command": "sow"})
    operator.discard(row.intent_id, why="a test")
    assert operator.waiting() == []
    again = akter_app(Plant)
    again.actor(Plant, "rose").sow()
    (fresh,) = operator.waiting()
    assert (fresh.key, fresh.reason) == (row.key, "schedule")


def test_what_is_paused_fires_once_when_it_is_resumed(app: Akter, operator: Operator) -> None:
    tick = to_its_time(app, operator, late=3 * HOUR)
    operator.pause("intents", "Plant")
    with Runner(app, listen=False, poll=0.05, heartbeat=0.1) as runner:
        until(operator.runners)
        assert [(row.intent_id, row.reason) for row in operator.waiting()] == [(tick, "paused")]
        operator.resume("intents", "Plant")
        until(lambda: [row.reason for row in operator.waiting()] == ["schedule"])
        assert runner.stop().delivered == 1
