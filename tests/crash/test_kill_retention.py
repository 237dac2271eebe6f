"""A sweep killed with SIGKILL in the middle of a batch: what it pruned is whole batches, and another sweep does the rest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from akter import Actor, Akter, Event, command, store
from akter.runner import retention
from akter.testing import child, sweep

ROWS = 45
BATCH = 10


class Rang(Event):
    """A bell rang."""

    number: int


class Bell(Actor, keep_receipts=timedelta(0), keep_events=timedelta(0)):
    """Rings, and keeps nothing longer than it must."""

    rung: int = 0

    @command
    def ring(self) -> int:
        self.rung += 1
        self.emit(Rang(number=self.rung))
        return self.rung


def prune(url: str, schema: str) -> None:
    """Sweep in small batches; what a killed process of these tests does."""
    retention.BATCH = BATCH
    store.retention._PATIENCE_MS = 60_000
    with Akter(url, actors=[Bell], schema=schema) as app:
        sweep(app)


HOLD = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN OLD; END $$;
CREATE TRIGGER hold BEFORE DELETE ON actor_{table} FOR EACH ROW WHEN (OLD.{age} = {held}) EXECUTE FUNCTION hold()
"""
WAITS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"


@pytest.mark.conformance("KILL-32")
@pytest.mark.parametrize(("table", "age"), [("receipts", "expires_at_ms"), ("events", "emitted_at_ms")])
def test_a_sweep_killed_in_a_batch_leaves_whole_batches_and_the_next_one_prunes_the_rest(
    akter_app: Any,
    akter_database: str,
    akter_schema: str,
    rows: Callable[..., list[Any]],
    until: Callable[..., None],
    table: str,
    age: str,
) -> None:
    app = akter_app(Bell)
    for number in range(ROWS):
        with app.command_id(f"ring {number}"):
            app.actor(Bell, "b").ring()
    # Old, and each of an age of its own; the twenty-fifth, in the third batch, holds up whoever deletes it.
    rows("UPDATE actor_receipts SET expires_at_ms = (outcome::json->>'ok')::integer")
    rows("UPDATE actor_events SET emitted_at_ms = sequence")
    rows(HOLD.format(table=table, age=age, held=25))
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        with child(prune, akter_database, akter_schema) as process:
            until(WAITS)
            (backend,) = rows(WAITS)
            process.kill()
    until("SELECT 1 FROM pg_stat_activity WHERE pid = %s", backend, some=False)
    assert rows(f"SELECT {age} FROM actor_{table} ORDER BY 1") == list(range(2 * BATCH + 1, ROWS + 1))
    rows(f"DROP TRIGGER hold ON actor_{table}")
    sweep(app)
    assert rows(f"SELECT count(*) FROM actor_{table}") == [0]
    assert app.actor(Bell, "b").ring() == ROWS + 1
    assert rows("SELECT event_sequence FROM actor_generations") == [ROWS + 1]
