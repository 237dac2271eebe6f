"""What is stored, seen over a connection that nobody else uses."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

# Where child processes find their functions, the tests do too.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def rows(akter_database: str, akter_schema: str) -> Iterator[Callable[..., list[Any]]]:
    """Runs SQL and returns its rows, or the values where there is one column."""
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{akter_schema}", public'.encode())

        def run(statement: str, *values: Any) -> list[Any]:
            cursor = connection.execute(statement.encode(), values)
            found = cursor.fetchall() if cursor.description else []
            return [row[0] if len(row) == 1 else row for row in found]

        yield run


@pytest.fixture
def until(rows: Callable[..., list[Any]]) -> Callable[..., None]:
    """Waits for rows to come, or for the last of them to go."""

    def wait(statement: str, *values: Any, some: bool = True) -> None:
        end = time.monotonic() + 60
        while bool(rows(statement, *values)) is not some:
            assert time.monotonic() < end, statement
            time.sleep(0.01)

    return wait
