"""Fixtures for tests on a real PostgreSQL: a server per session, a migrated database per test, an app on it.

Set `AKTER_TEST_DATABASE_URL` to a database of your own; otherwise the embedded server is started. A role that may create databases gets
a clone for each test; for another one, the given database is migrated and emptied before each test.
`AKTER_TEST_SCHEMA` names the PostgreSQL schema of akter's tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from akter.actor import Actor
    from akter.app import Akter


@pytest.fixture(scope="session")
def akter_schema() -> str:
    """The PostgreSQL schema of akter's tables; override it for another name."""
    return os.environ.get("AKTER_TEST_SCHEMA", "akter")


@pytest.fixture(scope="session")
def akter_server() -> Iterator[Callable[[str], str]]:
    """The test server, as a function from a database's name to its URL."""
    from sqlalchemy.engine import make_url

    given = os.environ.get("AKTER_TEST_DATABASE_URL")
    if given:
        base = make_url(given).set(drivername="postgresql+psycopg")
        yield lambda name: base.set(database=name).render_as_string(hide_password=False)
        return
    from akter.embedded import Server

    with Server.temporary({"max_connections": "200"}) as server:
        yield lambda name: server.url(name)


@pytest.fixture(scope="session")
def akter_clone(akter_server: Callable[[str], str], akter_schema: str) -> Iterator[Callable[[], str]]:
    """A function that makes a fresh migrated database and returns its URL."""
    from sqlalchemy.engine import make_url

    from akter.testing.databases import databases

    url = os.environ.get("AKTER_TEST_DATABASE_URL")
    given = (make_url(url).database if url else None) or "postgres"
    with databases(akter_server, given, akter_schema) as clone:
        yield clone


@pytest.fixture
def akter_database(akter_clone: Callable[[], str]) -> str:
    """The URL of a migrated database of this test alone."""
    return akter_clone()


@pytest.fixture
def akter_engine(akter_database: str) -> Iterator[Engine]:
    """An engine on this test's database; override it to test with an engine of your own."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(akter_database, pool_size=16, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def akter_app(akter_engine: Engine, akter_schema: str) -> Iterator[Callable[..., Akter]]:
    """A function that makes an app with the given actor classes on this test's database."""
    from akter.app import Akter

    made: list[Akter] = []

    def app(*actors: type[Actor], **options: Any) -> Akter:
        made.append(Akter(options.pop("engine", akter_engine), actors=actors, schema=akter_schema, **options))
        return made[-1]

    yield app
    for one in made:
        one.close()
