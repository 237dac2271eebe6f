"""Runners killed with SIGKILL around the tick of a schedule: it fires once, and the schedule goes on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from akter import Actor, Akter, command, cron
from akter.runner import Runner
from akter.testing import advance, child, settle

LEASE = timedelta(seconds=37)
DAY_MS = 86_400_000


class Lamp(Actor):
    """Is lit every day at three. Every run leaves a line in `journal`, a file that knows nothing of transactions."""

    journal: str = ""
    lit: int = 0

    @command
    def hang(self, journal: str) -> None:
        self.journal = journal

    @cron("0 3 * * *")
    def light(self) -> None:
        with open(self.journal, "a", encoding="utf-8") as file:
            file.write("lit\n")
        self.lit += 1


class Lighthouse(Actor, singleton=True):
    """There is one."""

    turned: int = 0

    @cron(every=timedelta(hours=1))
    def turn(self) -> None:
        self.turned += 1


def relay(url: str, schema: str, ride: bool) -> None:
    """Deliver what is due; what a killed process of these tests does."""
    with Akter(url, actors=[Lamp, Lighthouse], schema=schema) as app:
        runner = Runner(app, ride=ride, listen=False)
        runner.drain()
        runner.stop()


@pytest.fixture
def app(akter_app: Any) -> Akter:
    made: Akter = akter_app(Lamp, Lighthouse)
    return made


@pytest.fixture
def due(rows: Callable[..., list[Any]], app: Akter) -> Callable[[str], tuple[str, int]]:
    """Moves the clock to just after the row of an actor is due, and returns the row's id and time."""
    clock = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + clock_offset_ms FROM actor_deployment"

    def move(actor: str) -> tuple[str, int]:
        ((id, scheduled),) = rows("SELECT intent_id, scheduled_at_ms FROM actor_outbox WHERE actor_id = %s", actor)
        advance(app, timedelta(milliseconds=scheduled - rows(clock)[0] + 1000))
        return id, scheduled

    return move


def after_the_lease(app: Akter) -> None:
    runner = Runner(app, listen=False)
    settle(app, runner)
    advance(app, LEASE, runner)
    runner.stop()


@pytest.mark.conformance("CRON-20", "CRON-21")
@pytest.mark.parametrize(
    ("point", "ride", "runs"),
    [
        pytest.param("after_claim", True, 1),
        pytest.param("before_commit", True, 2, id="before_commit, not stored the first time"),
        pytest.param("after_commit", True, 1),
        pytest.param("before_outbox_delete", False, 1),
    ],
)
def test_a_runner_killed_around_a_tick_leaves_it_to_another_and_it_counts_once(
    app: Akter,
    due: Callable[[str], tuple[str, int]],
    rows: Callable[..., list[Any]],
    until: Callable[..., None],
    akter_database: str,
    akter_schema: str,
    tmp_path: Path,
    point: Any,
    ride: bool,
    runs: int,
) -> None:
    journal = tmp_path / "journal"
    app.actor(Lamp, "l").hang(str(journal))
    tick, scheduled = due("l")
    with child(relay, akter_database, akter_schema, ride, stop_at=point, command_id=tick) as process:
        assert process.wait_reached() == tick
        process.kill()
    until("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()", some=False)
    after_the_lease(app)
    assert rows("SELECT value::text::jsonb ->> 'lit' FROM actor_state WHERE actor_id = 'l'") == ["1"]
    assert rows("SELECT command_id FROM actor_receipts WHERE command = 'light'") == [tick]
    assert journal.read_text().count("lit") == runs
    found = rows("SELECT intent_id = %s, scheduled_at_ms - %s, due_at_ms - %s, attempts FROM actor_outbox", tick, scheduled, scheduled)
    assert [row for row in found if row[0]] == []
    assert (False, DAY_MS, DAY_MS, 0) in found


@pytest.mark.conformance("CRON-22")
def test_the_schedule_of_a_singleton_goes_on_after_its_runner_was_killed(
    app: Akter,
    due: Callable[[str], tuple[str, int]],
    rows: Callable[..., list[Any]],
    akter_database: str,
    akter_schema: str,
) -> None:
    with child(relay, akter_database, akter_schema, True) as first:
        first.wait()
    tick, _ = due("singleton")
    with child(relay, akter_database, akter_schema, True, stop_at="before_handler", command_id=tick) as process:
        assert process.wait_reached() == tick
        process.kill()
    after_the_lease(app)
    turned = "SELECT value::text::jsonb ->> 'turned' FROM actor_state WHERE actor_type = 'Lighthouse'"
    assert rows(turned) == ["1"]
    for hour in (2, 3):
        due("singleton")
        runner = Runner(app, listen=False)
        settle(app, runner)
        runner.stop()
        assert rows(turned) == [str(hour)]
    assert rows("SELECT count(*) FROM actor_outbox") == [1]
