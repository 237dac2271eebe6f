"""A Django project on a database of its own, driven as its users drive it: by manage.py, and by programs that call django.setup()."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.engine import make_url

HERE = Path(__file__).parent

SETUP = """
import os, sys, warnings
warnings.simplefilter("error")
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
import django
django.setup()
from django.db import connection, connections, transaction
from project.shop.actors import Customer, app
from project.shop.models import Order
SCHEMA = app.schema
def beside(sql, url=os.environ["TEST_DATABASE_URL"]):
    import psycopg
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
        cursor = other.execute(sql.replace("{akter}", '"' + SCHEMA + '"'))
        return cursor.fetchall() if cursor.description else []
def outbox():
    return [row[0] for row in beside("SELECT intent_id FROM {akter}.actor_outbox")]
def orders():
    return beside("SELECT count(*) FROM shop_order")[0][0]
ada = app.actor(Customer, "ada")
class Back(Exception): pass
"""


class Done:
    """What a process printed and ended with."""

    def __init__(self, ended: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = ended.returncode, ended.stdout, ended.stderr


class Project:
    """The project on one database, with another beside it."""

    def __init__(self, url: str, other: str) -> None:
        self.url, self.other = url, other
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "TEST_DATABASE_URL": url,
            "TEST_OTHER_URL": other,
            "DJANGO_SETTINGS_MODULE": "project.settings",
        }
        self.environment.pop("AKTER_DATABASE_URL", None)

    def _run(self, *command: str, **environment: str) -> Done:
        return Done(
            subprocess.run(
                [sys.executable, *command],
                env={**self.environment, **environment},
                capture_output=True,
                text=True,
                timeout=100,
                cwd=HERE,
                check=False,
            )
        )

    def manage(self, *arguments: str, **environment: str) -> Done:
        """Run manage.py."""
        return self._run("project/manage.py", *arguments, **environment)

    def python(self, program: str, **environment: str) -> Done:
        """Run a program in the project; it must end well."""
        done = self._run("-c", SETUP + program, **environment)
        assert done.code == 0, done.err + done.out
        return done

    def akter(self, *arguments: str) -> Done:
        """Run the command `akter` on the project's database."""
        return self._run("-m", "akter", *arguments, AKTER_DATABASE_URL=self.url)


@pytest.fixture
def make_database(akter_server: Callable[[str], str]) -> Iterator[Callable[[], str]]:
    admin = sqlalchemy.create_engine(akter_server("postgres"), isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    made: list[str] = []

    def make() -> str:
        name = f"d{uuid4().hex[:12]}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        made.append(akter_server(name))
        return made[-1]

    yield make
    with admin.connect() as connection:
        for url in made:
            connection.execute(text(f"DROP DATABASE {make_url(url).database} WITH (FORCE)"))


@pytest.fixture
def empty(make_database: Callable[[], str]) -> Project:
    """The project on an empty database."""
    return Project(make_database(), make_database())


@pytest.fixture
def project(empty: Project) -> Project:
    """The project, migrated by Django."""
    done = empty.manage("migrate")
    assert done.code == 0, done.err
    return empty


@pytest.fixture
def rows() -> Callable[..., list[tuple[Any, ...]]]:
    """Look at a database from beside."""

    def look(url: str, sql: str) -> list[tuple[Any, ...]]:
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(sql))]

    return look
