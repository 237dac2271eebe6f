"""A connection that the application lent: what is executed on it, whose database it leads to, and how its commit is noticed.

akter never commits, rolls back or retries on it, and never wraps an engine around it. Statements go the way the application's own go,
so that its framework knows of them and of what they fail with.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.string import StrDumper
from sqlalchemy import Connection, event
from sqlalchemy.dialects.postgresql import psycopg as dialects
from sqlalchemy.exc import StatementError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from akter.errors import ConfigurationError, DeploymentMismatch
from akter.hint import Wakes
from akter.store import outside
from akter.store.outside import Document, Statement
from akter.tables import SCHEMA

_DIALECT = dialects.dialect()  # type: ignore[no-untyped-call]


class Lent(Protocol):
    """One connection of the application's own."""

    @property
    def driver(self) -> Any:
        """The driver's connection that it uses now; it may be replaced after a disconnect."""

    def execute(self, statement: Statement, text: str, schema: str) -> list[tuple[Any, ...]]:
        """Run one of the statements of `akter.store.outside`."""
        ...

    def run(self, sql: str) -> None:
        """Run SQL without parameters."""

    def after_commit(self, wakes: Wakes) -> None:
        """Wake when the transaction that is open now has committed, and not when it is rolled back."""


def lent(given: Any) -> Lent:
    """What the application gave as its connection; raises `ConfigurationError` for what is none."""
    if isinstance(given, scoped_session):
        given = given()
    found = given
    if isinstance(given, Session):
        try:
            found = given.connection()
        except UnboundExecutionError as problem:
            raise ConfigurationError(
                "this session has no engine, or several: give the connection of the one in akter's database, session.connection(...)"
            ) from problem
    if isinstance(found, Connection) and found.dialect.name == "postgresql":
        return ThroughSqlAlchemy(given)
    if isinstance(given, psycopg.Connection):
        return ThroughPsycopg(given)
    if hasattr(given, "in_atomic_block") and getattr(given, "vendor", "") == "postgresql":
        return ThroughDjango(given)
    what = f"a connection to {found.dialect.name}" if isinstance(found, Connection) else type(given).__name__
    raise ConfigurationError(
        f"within(...) takes a SQLAlchemy Connection or Session, a psycopg Connection or Django's connection to PostgreSQL, not {what}"
    )


class ThroughSqlAlchemy:
    """A SQLAlchemy connection, or that of a session, on whatever driver."""

    def __init__(self, given: Connection | Session) -> None:
        self._given = given

    @property
    def _connection(self) -> Connection:
        # A session has another one after each of its transactions.
        return self._given.connection() if isinstance(self._given, Session) else self._given

    @property
    def driver(self) -> Any:
        """The driver's connection."""
        return self._connection.connection.driver_connection

    def execute(self, statement: Statement, text: str, schema: str) -> list[tuple[Any, ...]]:
        """Run a statement; options of the application's own, such as another schema map or streaming, do not concern it."""
        options: dict[str, Any] = {"schema_translate_map": {SCHEMA: schema}, "stream_results": False, "yield_per": None}
        try:
            return [tuple(row) for row in self._connection.execute(statement(), {"text": text}, execution_options=options)]
        except StatementError as error:
            error.hide_parameters = True
            raise

    def run(self, sql: str) -> None:
        """Run SQL without parameters."""
        self._connection.exec_driver_sql(sql)

    def after_commit(self, wakes: Wakes) -> None:
        """SQLAlchemy tells of a commit before it happens, so the wake-up comes a moment later."""
        connection = self._connection
        with _lock:
            known = _waiting.get(connection)
            if known is not None:
                known.add(wakes)
                return
            _waiting[connection] = {wakes}
        event.listen(connection, "commit", _committing)
        event.listen(connection, "rollback", _taken)


class _Cursors:
    """A connection that is used through its cursors."""

    def cursor(self) -> Any:
        raise NotImplementedError

    def execute(self, statement: Statement, text: str, schema: str) -> list[tuple[Any, ...]]:
        """Run a statement."""
        with self.cursor() as cursor:
            cursor.execute(_compiled(statement, schema), {"text": Document(text)})
            return [tuple(row) for row in cursor.fetchall()]

    def run(self, sql: str) -> None:
        """Run SQL without parameters."""
        with self.cursor() as cursor:
            cursor.execute(sql)


class ThroughPsycopg(_Cursors):
    """A psycopg connection. Nobody can tell when it commits: runners find what it sent at their next poll."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.driver: Any = connection

    def cursor(self) -> Any:
        """A cursor of akter's own: the connection's may make other rows, or write texts in another way."""
        cursor = psycopg.Cursor(self.driver, row_factory=tuple_row)
        cursor.adapters.register_dumper(Document, StrDumper)
        return cursor

    def after_commit(self, wakes: Wakes) -> None:
        """There is no such moment here."""


class ThroughDjango(_Cursors):
    """Django's connection of one alias."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def driver(self) -> Any:
        """The driver's connection."""
        self._connection.ensure_connection()
        return self._connection.connection

    def cursor(self) -> Any:
        """A cursor of Django's, so that broken blocks, wrappers and errors are what they are for any query."""
        return self._connection.cursor()

    def after_commit(self, wakes: Wakes) -> None:
        """With `transaction.on_commit`; in manual transaction management Django has no such hook."""
        if self._connection.in_atomic_block:
            self._connection.on_commit(wakes)


def deployment_of(connection: Lent, schema: str) -> str | None:
    """Whose deployment a connection leads to, or None. It is read once for each connection of the driver, and cannot fail a transaction."""
    driver = connection.driver
    known = _known.setdefault(driver, {})
    if schema not in known:
        known[schema] = _read(connection, schema)
    return known[schema]


def check(connection: Lent, schema: str, deployment_id: str) -> None:
    """Refuse a connection to another database; raises `DeploymentMismatch`, and leaves its transaction as it was."""
    if deployment_of(connection, schema) == deployment_id:
        return
    # It may have been migrated since.
    found = _known.setdefault(connection.driver, {})[schema] = _read(connection, schema)
    if found is None:
        raise DeploymentMismatch(
            f"the database of the given connection has no akter schema {schema!r}, or one that its role may not use: "
            "give a connection to the database of this Akter, or see `akter migrate` and `akter grants`"
        )
    if found != deployment_id:
        raise DeploymentMismatch("the given connection belongs to another database than this Akter: its messages would never be delivered")


def _read(connection: Lent, schema: str) -> str | None:
    ((tables, may_use),) = connection.execute(outside.usable, schema, schema)
    if tables < 2 or not may_use:
        return None
    found = connection.execute(outside.identity, schema, schema)
    return str(found[0][0]) if found else None


def alone(driver: Any) -> bool:
    """Whether the next statement would be a transaction of its own."""
    return bool(getattr(driver, "autocommit", False)) and idle(driver)


def idle(driver: Any) -> bool:
    """Whether no transaction is open."""
    info = getattr(driver, "info", None)
    return getattr(info, "transaction_status", None) == psycopg.pq.TransactionStatus.IDLE


@contextmanager
def together(connection: Lent) -> Generator[None]:
    """Make one transaction of several statements on a connection that is `alone`."""
    connection.run("BEGIN")
    try:
        yield
    except BaseException:
        connection.run("ROLLBACK")
        raise
    connection.run("COMMIT")


_known: weakref.WeakKeyDictionary[Any, dict[str, str | None]] = weakref.WeakKeyDictionary()
_waiting: weakref.WeakKeyDictionary[Connection, set[Wakes]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _committing(connection: Connection) -> None:
    for wakes in _taken(connection):
        wakes.soon()


def _taken(connection: Connection) -> set[Wakes]:
    with _lock:
        found = _waiting.get(connection, set())
        if found:
            _waiting[connection] = set()
    return found


@cache
def _compiled(statement: Callable[[], Any], schema: str) -> str:
    return str(statement().compile(dialect=_DIALECT, schema_translate_map={SCHEMA: schema}, render_schema_translate=True))
