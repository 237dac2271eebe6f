"""Migrations exclude each other, give way to readers, survive their own death, and say who is in the way."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from akter import schema, schema_lock, schema_state
from akter.errors import SchemaError

HEAD = schema_state.REVISIONS[-1]
NEXT = f"akter_{len(schema_state.REVISIONS) + 1:04}"
SLOW_STATEMENT = 'op.execute(f"CREATE TABLE {schema}.half (x int)"); op.execute("SELECT pg_sleep(60)")'
SLOW_CLIENT = 'op.execute(f"CREATE TABLE {schema}.half (x int)"); import time; time.sleep(60)'


def until(database: Any, statement: str) -> Any:
    """The rows of a question, as soon as there are any."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if rows := database.rows(statement):
            return rows
        time.sleep(0.02)
    raise AssertionError(f"never true: {statement}")


HOLDERS = (
    "SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE locktype = 'advisory' AND granted AND datname = current_database() AND application_name = 'akter migrate'"
)
"""Migrations that hold the lock and have their own settings."""


@pytest.mark.parametrize("attempt", range(3))
def test_eight_processes_that_start_at_once_install_it_once(database: Any, attempt: int) -> None:
    started = [database.command("migrate") for _ in range(8)]
    ended = [process.ended() for process in started]
    assert [process.returncode for process in ended] == [0] * 8, [process.err for process in ended]
    assert sorted(process.out for process in ended) == sorted(
        [f"akter: created schema akter at {HEAD}\n"] + [f"akter: schema akter is at {HEAD}: nothing to do\n"] * 7
    )
    assert database.rows("SELECT version_num FROM akter.alembic_version") == [(HEAD,)]


@pytest.mark.conformance("KILL-01")
@pytest.mark.parametrize("moment", [SLOW_STATEMENT, SLOW_CLIENT], ids=["in a statement", "between statements"])
def test_a_killed_migration_leaves_nothing_and_the_next_one_runs(database: Any, longer: Any, moment: str) -> None:
    longer.write(up=moment)
    migrator = longer.command(database, "migrate")
    if moment is SLOW_STATEMENT:
        until(database, "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'")
    else:
        until(database, "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE TABLE%half%' AND state = 'idle in transaction'")
    migrator.kill()
    migrator.ended()
    assert migrator.returncode == -signal.SIGKILL
    again = database.akter("migrate", "--wait", "20")
    assert (again.returncode, again.out) == (0, f"akter: created schema akter at {HEAD}\n"), again.err
    assert database.one("SELECT to_regclass('akter.half')") is None
    assert schema.check(database.engine) is None


def test_a_frozen_migration_is_named_to_those_who_wait(database: Any, longer: Any) -> None:
    longer.write(up=SLOW_CLIENT)
    migrator = longer.command(database, "migrate")
    pid = until(database, HOLDERS)[0][0]
    os.kill(migrator.pid, signal.SIGSTOP)
    try:
        other = database.akter("migrate", "--wait", "0.3")
        assert other.returncode == 1
        assert f"another migration of schema akter is still running (pid {pid}, akter migrate, " in other.err
        assert re.search(r"for \d+ s\)", other.err)
        assert "pg_terminate_backend" in other.err
        assert "Traceback" not in other.err
        assert schema.upgrade(database.engine, schema="other") == (None, HEAD), "another schema is not in the way"
        with pytest.raises(SchemaError, match=f"pid {pid}"), database.engine.begin() as connection:
            schema.upgrade(connection, wait=0.2)
        assert database.one("SELECT pg_terminate_backend(:pid)", pid=pid)
        assert database.akter("migrate").returncode == 0
    finally:
        migrator.kill()
        migrator.ended()


def test_a_frozen_migration_is_ended_by_the_server_and_says_so_when_it_wakes(database: Any, longer: Any) -> None:
    longer.write(up=SLOW_CLIENT.replace("60", "5"))
    migrator = longer.command(database, "migrate", first="lock.IDLE_TIMEOUT = '3s'")
    until(database, HOLDERS)
    os.kill(migrator.pid, signal.SIGSTOP)
    try:
        other = database.akter("migrate", "--wait", "30")
        assert (other.returncode, other.out) == (0, f"akter: created schema akter at {HEAD}\n"), other.err
    finally:
        os.kill(migrator.pid, signal.SIGCONT)
        migrator.ended()
    assert migrator.returncode == 1
    assert migrator.err.startswith("Error: the database refused: ")
    assert "Traceback" not in migrator.err
    assert schema.check(database.engine) is None


class TestAReader:
    """A transaction that has read a table a migration must alter."""

    @pytest.fixture
    def reader(self, database: Any) -> Any:
        schema.upgrade(database.engine)
        engine = create_engine(database.url, connect_args={"application_name": "long report"})
        with engine.connect() as connection:
            connection.execute(text("SELECT count(*) FROM akter.actor_state"))
            yield connection
        engine.dispose()

    def test_is_waited_for_in_turns_that_let_others_pass(
        self, database: Any, reader: Any, longer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        longer.use(monkeypatch)
        monkeypatch.setattr(schema_lock, "LOCK_TIMEOUT", "100ms")
        monkeypatch.setattr(schema_lock, "PAUSE", 0.02)
        monkeypatch.setattr(schema_lock, "ATTEMPTS", 1000)
        moves: list[Any] = []
        migrator = threading.Thread(target=lambda: moves.append(schema.upgrade(database.engine)))
        with caplog.at_level(logging.WARNING, "akter.schema"):
            migrator.start()
            until(database, "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'ALTER TABLE%'")
            for _ in range(20):
                database.rows("SELECT set_config('statement_timeout', '5s', true), (SELECT count(*) FROM akter.actor_state)")
            assert moves == []
            reader.rollback()
            migrator.join(20)
        assert moves == [(HEAD, NEXT)]
        (said, *_) = [record for record in caplog.records if record.message == "schema.locked"]
        assert said.__dict__["akter_sessions"].startswith("pid ")
        assert "long report" in said.__dict__["akter_sessions"]

    def test_that_never_ends_is_named(self, engine: Engine, reader: Any, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        longer.use(monkeypatch)
        monkeypatch.setattr(schema_lock, "LOCK_TIMEOUT", "50ms")
        monkeypatch.setattr(schema_lock, "PAUSE", 0.01)
        monkeypatch.setattr(schema_lock, "ATTEMPTS", 3)
        pid = reader.scalar(text("SELECT pg_backend_pid()"))
        with pytest.raises(SchemaError, match=f"pid {pid}, long report, idle in transaction"):
            schema.upgrade(engine)
        with engine.begin() as connection, pytest.raises(SchemaError, match=f"pid {pid}, long report"):
            schema.upgrade(connection)
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT version_num FROM akter.alembic_version")) == HEAD
