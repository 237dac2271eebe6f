"""Every kind of connection that an application may lend, behind the same few verbs, and the outbox seen from beside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row, namedtuple_row
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from akter import Actor, Akter, Rejection, command


class TooMuch(Rejection):
    """No more than a hundred."""

    most: int


class Inbox(Actor, name="Inbox"):
    """What came in, in the order in which it did."""

    came: tuple[str, ...] = ()

    @command
    def take(self, text: str, times: int = 1) -> int:
        if times > 100:
            raise TooMuch(most=100)
        self.came = (*self.came, *[text] * times)
        return len(self.came)

    @command(aliases=("discard",))
    def drop(self, text: str) -> None:
        self.came = tuple(kept for kept in self.came if kept != text)


class Way:
    """One kind of connection: `given` is lent to akter, `run` is the application's own SQL on it."""

    def __init__(self, given: Any, run: Callable[[str], list[Any]], commit: Any, rollback: Any, savepoint: Any, driver: Any) -> None:
        self.given, self.run, self.commit, self.rollback = given, run, commit, rollback
        self.savepoint: Callable[[], AbstractContextManager[Any]] = savepoint
        self.driver: Callable[[], Any] = driver

    def state(self) -> tuple[str, int]:
        """Whether a transaction is open, and which."""
        status = self.driver().info.transaction_status.name
        return status, self.run("SELECT pg_current_xact_id()::text::bigint")[0] if status == "INTRANS" else 0


def values(rows: Any) -> list[Any]:
    """The first column, whatever the rows are."""
    return [next(iter(row.values())) if isinstance(row, dict) else row[0] for row in rows]


def through_core(engine: Engine, **options: Any) -> Iterator[Way]:
    with engine.connect().execution_options(**options) as connection:

        def run(sql: str) -> list[Any]:
            result = connection.execute(text(sql))
            return values(result) if result.returns_rows else []

        yield Way(
            connection,
            run,
            connection.commit,
            connection.rollback,
            connection.begin_nested,
            lambda: connection.connection.driver_connection,
        )


def through_session(session: Any) -> Iterator[Way]:
    def run(sql: str) -> list[Any]:
        result = session.execute(text(sql))
        return values(result) if result.returns_rows else []

    with contextlib.closing(session):
        yield Way(
            session, run, session.commit, session.rollback, session.begin_nested, lambda: session.connection().connection.driver_connection
        )


def through_psycopg(url: str, **options: Any) -> Iterator[Way]:
    with contextlib.closing(psycopg.connect(url.replace("+psycopg", ""), **options)) as connection:
        if connection.autocommit:
            connection.execute("BEGIN")

        def run(sql: str) -> list[Any]:
            cursor = connection.execute(sql.encode())
            return values(cursor) if cursor.description else []

        # In autocommit, too, the application may open a transaction by hand.
        yield Way(
            connection, run, lambda: run("COMMIT"), lambda: run("ROLLBACK"), lambda: connection.transaction("inner"), lambda: connection
        )


WAYS: dict[str, Callable[[str, Engine], Iterator[Way]]] = {
    "core": lambda url, engine: through_core(engine),
    "core with a schema map": lambda url, engine: through_core(engine, schema_translate_map={None: "elsewhere", "akter": "nowhere"}),
    "session": lambda url, engine: through_session(Session(engine)),
    "scoped session": lambda url, engine: through_session(scoped_session(sessionmaker(engine))),
    "psycopg": lambda url, engine: through_psycopg(url),
    "psycopg autocommit": lambda url, engine: through_psycopg(url, autocommit=True),
    "psycopg dict rows": lambda url, engine: through_psycopg(url, row_factory=dict_row),
    "psycopg named tuples": lambda url, engine: through_psycopg(url, row_factory=namedtuple_row),
    "psycopg client cursor": lambda url, engine: through_psycopg(url, cursor_factory=psycopg.ClientCursor),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, akter_database: str, akter_engine: Engine) -> Iterator[Way]:
    """Each kind of connection, not yet used."""
    yield from WAYS[request.param](akter_database, akter_engine)


class Outbox:
    """The outbox, read over a connection of its own."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self._engine, self._schema = engine, schema

    def __call__(self, columns: str = "intent_id") -> list[Any]:
        with self._engine.connect() as connection:
            found = connection.execute(text(f'SELECT {columns} FROM "{self._schema}".actor_outbox ORDER BY due_at_ms, intent_id')).all()
        return [row[0] if len(row) == 1 else tuple(row) for row in found]

    def count(self, table: str = "actor_outbox") -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(text(f'SELECT count(*) FROM "{self._schema}".{table}')))


@pytest.fixture
def outbox(akter_database: str, akter_schema: str) -> Outbox:
    engine = sqlalchemy.create_engine(akter_database, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    return Outbox(engine, akter_schema)


@pytest.fixture
def app(akter_app: Callable[..., Akter]) -> Akter:
    return akter_app(Inbox)


class Shared:
    """What test modules share, since test folders are not packages."""

    Inbox, TooMuch, Way = Inbox, TooMuch, Way
    core, session, psycopg = staticmethod(through_core), staticmethod(through_session), staticmethod(through_psycopg)


@pytest.fixture
def shared() -> type[Shared]:
    return Shared
