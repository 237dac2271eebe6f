"""A database looked at from beside, an app on it, and processes to mistreat."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text

from akter import Akter

sys.path.insert(0, str(Path(__file__).parent))

from yard import Yard, made

PATIENCE = 60.0
"""Seconds after which something that should have happened has not, on a machine that does a lot else."""


def until(what: str, so: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Look again and again until something is so, and return it."""
    end = time.monotonic() + seconds
    while not (found := so()):
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.01)
    return found


@pytest.fixture
def rows(akter_database: str, akter_schema: str) -> Iterator[Callable[..., list[Any]]]:
    """Run SQL over a connection of its own in autocommit; `{akter}` is the schema. One column comes as values."""
    engine = sqlalchemy.create_engine(akter_database, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:

        def run(statement: str, **values: Any) -> list[Any]:
            result = connection.execute(text(statement.replace("{akter}", f'"{akter_schema}"')), values)
            return [row[0] if len(row) == 1 else tuple(row) for row in result] if result.returns_rows else []

        yield run


@pytest.fixture
def app(akter_database: str, akter_schema: str) -> Iterator[Akter]:
    """The application, in this process."""
    with made(akter_database, akter_schema) as app:
        yield app


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


class Effects:
    """What handlers did, whatever became of their transactions."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self) -> list[str]:
        return Path(self.path).read_text(encoding="utf-8").split() if Path(self.path).exists() else []


class Shared:
    """What the test modules share, since test folders are not packages."""

    until = staticmethod(until)

    @staticmethod
    def things(rows: Callable[..., list[Any]], id: str) -> list[str]:
        """What a yard has taken in."""
        found = rows("SELECT value::jsonb -> 'things' FROM {akter}.actor_state WHERE actor_type = 'Yard' AND actor_id = :id", id=id)
        return list(found[0]) if found else []

    @staticmethod
    def send(app: Akter, things: list[str], effects: str = "", yard: str | None = None) -> list[str]:
        """Send things in one transaction, each to a yard of its own unless given."""
        with app.engine.begin() as connection:
            wanted = [(app.actor(Yard, yard or thing).take, {"thing": thing, "effects": effects}) for thing in things]
            return app.within(connection).send_many(wanted)


@pytest.fixture
def shared() -> type[Shared]:
    return Shared
