"""Relays killed with SIGKILL while they bring events to those that follow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from akter import Actor, Akter, Event, command, subscription
from akter.runner import Runner
from akter.testing import advance, child

LEASE = timedelta(seconds=38)


class Rang(Event):
    """A bell rang."""

    number: int
    journal: str


class Bell(Actor):
    """Rings."""

    @command
    def ring(self, *, numbers: list[int], journal: str) -> None:
        for number in numbers:
            self.emit(Rang(number=number, journal=journal))


class Ear(Actor):
    """Hears. Every run of its method leaves a line in `journal`, a file that knows nothing of transactions."""

    heard: list[int] = []  # noqa: RUF012 - a state field's default is copied

    @subscription(Rang, source=Bell, to=lambda rang: "ear")
    def rang(self, rang: Rang) -> None:
        with open(rang.journal, "a", encoding="utf-8") as file:
            file.write(f"{rang.number}\n")
        self.heard = [*self.heard, rang.number]


def relay(url: str, schema: str) -> None:
    """Bring what is due to where it belongs; what a killed process of these tests does."""
    with Akter(url, actors=[Bell, Ear], schema=schema) as app:
        runner = Runner(app, listen=False)
        runner.drain()
        runner.stop()


@pytest.mark.conformance("KILL-29", "KILL-30")
@pytest.mark.parametrize(
    ("point", "runs", "left"),
    [
        ("after_claim", [1, 1, 1], []),
        ("before_outbox_delete", [1, 1, 1], []),
        ("before_commit", [2, 1, 1], []),
        ("after_commit", [1, 1, 1], [1]),
    ],
)
def test_a_relay_killed_on_the_way_tells_each_event_once_and_in_order(
    akter_app: Any,
    akter_database: str,
    akter_schema: str,
    rows: Callable[..., list[Any]],
    until: Callable[..., None],
    tmp_path: Path,
    point: Any,
    runs: list[int],
    left: list[int],
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    app = akter_app(Bell, Ear)
    app.actor(Bell, "b").ring(numbers=[1, 2, 3], journal=str(journal))
    with child(relay, akter_database, akter_schema, stop_at=point) as process:
        process.wait_reached()
        process.kill()
    until("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()", some=False)
    assert heard(rows) == left
    runner = Runner(app, listen=False)
    runner.drain()
    assert heard(rows) in (left, [1, 2, 3]), "what a dead process holds waits for the end of its lease, and what nobody holds does not"
    advance(app, LEASE, runner)
    runner.stop()
    assert heard(rows) == [1, 2, 3]
    lines = journal.read_text().split()
    assert [lines.count(number) for number in ("1", "2", "3")] == runs
    assert rows("SELECT delivered, due_at_ms IS NULL FROM actor_subscriptions") == [(3, True)]
    assert rows("SELECT count(*) FROM actor_outbox") == [0]


def heard(rows: Callable[..., list[Any]]) -> list[int]:
    import json

    found = rows("SELECT value::text FROM actor_state WHERE actor_type = 'Ear'")
    return list(json.loads(found[0])["heard"]) if found else []
