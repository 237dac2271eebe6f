"""The fixtures on a server of the user's own: clones for a role that may create databases, the given one emptied for another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

MODULE = """
from akter import Actor, command
from akter.testing import inspect

class Counter(Actor):
    count: int = 0
    @command
    def add(self) -> int:
        self.count += 1
        return self.count

def test_one(akter_app):
    app = akter_app(Counter)
    assert app.actor(Counter, "c").add() == 1
    print("in", app.engine.url.database)

def test_two_starts_empty(akter_app):
    app = akter_app(Counter)
    assert inspect(app, app.actor(Counter, "c")).receipts == ()
    assert app.actor(Counter, "c").add() == 1
    print("in", app.engine.url.database)
"""


def run(place: Path, url: str) -> list[str]:
    (place / "test_mine.py").write_text(MODULE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AKTER_", "PYTEST_"))}
    asked = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", str(place), "test_mine.py"]
    ended = subprocess.run(asked, cwd=place, env={**kept, "AKTER_TEST_DATABASE_URL": url}, capture_output=True, text=True, timeout=110)
    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr
    return [line.rpartition("in ")[2] for line in ended.stdout.splitlines() if "in " in line and "passed" not in line]


def test_a_role_that_may_create_databases_gets_a_clone_for_each_test_and_none_is_left(akter_database: str, tmp_path: Path) -> None:
    used = run(tmp_path, akter_database)
    assert len(set(used)) == 2
    with psycopg.connect(akter_database.replace("+psycopg", "")) as connection:
        assert connection.execute("SELECT datname FROM pg_database WHERE datname = ANY(%s)", (used,)).fetchall() == []


def test_for_another_role_the_given_database_is_migrated_and_emptied(
    akter_server: Callable[[str], str], akter_database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = make_url(akter_database).database
    role = f"plain_{database}"
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        name = os.environ.get("AKTER_TEST_SCHEMA", "akter")
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}", "{name}_views" CASCADE')
        connection.execute(f"GRANT CREATE ON DATABASE {database} TO {role}")
    url = make_url(akter_database).set(username=role).render_as_string(hide_password=False)
    try:
        assert run(tmp_path, url) == [database, database]
    finally:
        with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role} CASCADE")
            connection.execute(f"DROP ROLE {role}")
