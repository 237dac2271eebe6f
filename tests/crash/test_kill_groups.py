"""Processes killed with SIGKILL around the commit that several callers of theirs share: all of it happened, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from akter import Actor, Akter, command
from akter.testing import child, pause_next

MEMBERS = ("a", "b", "c", "d")


class Stock(Actor):
    """Counts pieces. Every run of its command leaves a line in `journal`, a file that knows nothing of transactions."""

    pieces: int = 0

    @command
    def add(self, pieces: int, journal: str) -> int:
        with open(journal, "a", encoding="utf-8") as file:
            file.write(self.id + "\n")
        self.pieces += pieces
        return self.pieces


def add(app: Akter, id: str, journal: str) -> int:
    with app.command_id(id):
        return app.actor(Stock, id).add(5, journal)


def share(url: str, schema: str, journal: str) -> dict[str, int]:
    """Let callers wait for the one seat, so that they share a transaction; what a killed process of these tests does."""
    import akter.group
    import akter.pace
    import akter.seats
    import akter.shared

    akter.seats.TOGETHER = 1
    akter.seats.PATIENCE = akter.group.PATIENCE = akter.shared._LOCK = akter.pace.SLOW = 60.0
    with Akter(url, actors=[Stock], schema=schema, execution=90.0, delivery=120.0, lock=60.0) as app, ThreadPoolExecutor(8) as threads:
        app.verify()
        app._turns._pace.saw(app.actors["Stock"].members["add"], 0.0, used_sql=False)
        with pause_next(app, "before_commit", command_id="first") as pause:
            first = threads.submit(add, app, "first", journal)
            pause.wait()
            calls = {id: threads.submit(add, app, id, journal) for id in MEMBERS}
            waited = threading.Event()
            while len(app._turns._seats._waiting) < len(MEMBERS):
                waited.wait(0.005)
        first.result()
        return {id: call.result() for id, call in calls.items()}


HOLD = """
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON actor_receipts DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.actor_id <> 'first') EXECUTE FUNCTION hold()
"""
WAITS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"


@pytest.mark.conformance("KILL-16")
@pytest.mark.parametrize("committed", [False, True], ids=["before the commit", "after the commit"])
def test_a_process_killed_around_a_shared_commit_leaves_all_of_it_or_nothing(
    akter_app: Any,
    akter_database: str,
    akter_schema: str,
    rows: Callable[..., list[Any]],
    until: Callable[..., None],
    tmp_path: Path,
    committed: bool,
) -> None:
    journal = tmp_path / "journal"
    rows(HOLD)
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(7)")
        with child(share, akter_database, akter_schema, str(journal)) as process:
            # The COMMIT has arrived, and waits for what its trigger asks for.
            until(WAITS)
            (backend,) = rows(WAITS)
            process.kill()
        if not committed:
            rows("SELECT pg_terminate_backend(%s)", backend)
            until("SELECT 1 FROM pg_stat_activity WHERE pid = %s", backend, some=False)
    until("SELECT 1 FROM pg_stat_activity WHERE pid = %s", backend, some=False)
    there = rows("SELECT actor_id FROM actor_receipts WHERE actor_id <> 'first' ORDER BY actor_id")
    assert there == (list(MEMBERS) if committed else [])
    app = akter_app(Stock)
    assert [add(app, id, str(journal)) for id in MEMBERS] == [5, 5, 5, 5]
    assert [add(app, id, str(journal)) for id in MEMBERS] == [5, 5, 5, 5]
    assert rows("SELECT count(*), count(DISTINCT xmin::text) FROM actor_receipts WHERE actor_id <> 'first'") == [(4, 1 if committed else 4)]
    runs = journal.read_text().split()
    assert {id: runs.count(id) for id in MEMBERS} == dict.fromkeys(MEMBERS, 1 if committed else 2)
