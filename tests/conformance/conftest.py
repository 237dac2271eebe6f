"""What the conformance tests share: threads that are joined, a second process's app, and a look at the server from beside."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Connection, Engine, text

from akter.fault import POINTS
from akter.testing import inspect

sys.path.insert(0, str(Path(__file__).parent))

PATIENCE = 60.0
"""Seconds after which something that should have happened has not."""


class Beside:
    """The server as somebody else sees it, over a connection of its own that autocommits."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection, self._schema = connection, schema

    def __call__(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run SQL; `{akter}` is the schema of akter's tables."""
        result = self._connection.execute(text(statement.replace("{akter}", f'"{self._schema}"')), values)
        return [tuple(row) for row in result] if result.returns_rows else []

    def count(self, table: str) -> int:
        """How many rows a table of akter has."""
        return int(self(f"SELECT count(*) FROM {{akter}}.{table}")[0][0])

    def until(self, what: str, found: Callable[[], bool]) -> None:
        """Look again and again until something is so; fails when it does not become so."""
        end = time.monotonic() + PATIENCE
        while not found():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {PATIENCE} seconds")
            time.sleep(0.005)

    def until_waiting(self, backends: int = 1) -> None:
        """Wait until this many connections of the test's database wait for a lock."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        self.until(f"{backends} connections wait for a lock", lambda: self(asked)[0][0] >= backends)


@pytest.fixture
def beside(akter_database: str, akter_schema: str) -> Iterator[Beside]:
    engine = sqlalchemy.create_engine(akter_database, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield Beside(connection, akter_schema)


@pytest.fixture
def other_engine(akter_database: str) -> Iterator[Engine]:
    """An engine as another process would have one: no connection in common."""
    engine = sqlalchemy.create_engine(akter_database, pool_size=16, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def start() -> Iterator[Callable[..., Future[Any]]]:
    """Start a function in a thread of its own; `.result(PATIENCE)` is its answer."""
    with ThreadPoolExecutor(24) as threads:
        yield threads.submit


@pytest.fixture
def journal() -> Callable[..., list[tuple[str, Any]]]:
    """Write down, at every point the turns of an app pass, what is committed of an actor then."""

    def begin(app: Any, handle: Any = None) -> list[tuple[str, Any]]:
        seen: list[tuple[str, Any]] = []

        def watch(point: Any, _: Any) -> None:
            assert point in POINTS
            seen.append((point, None if handle is None else inspect(app, handle)))

        app.faults.watch(watch)
        return seen

    return begin
