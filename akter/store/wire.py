"""A connection checked out for one turn or query, and the flights sent on it."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from typing import Any, cast

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection, Engine, Integer, Text, func, select
from sqlalchemy import cast as sql_cast

from akter.errors import ConfigurationError, Unavailable
from akter.store import failure
from akter.store.flight import Compiled, Core, Line, Link, Lost, Rows, StatementFailed, compile_core, fly, raw

_LINK = "akter_link"
_PROBE = select(
    func.pg_backend_pid(type_=Integer()).label("pid"),
    sql_cast(func.current_setting("server_encoding"), Text()).label("server"),
    sql_cast(func.pg_client_encoding(), Text()).label("client"),
)
ROLLBACK = Line(raw("ROLLBACK"), {})


class Statements:
    """The statements of one Akter, compiled for its schema when they are first used."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._compiled: dict[Hashable, Compiled] = {}

    def get(self, build: Any, *options: bool) -> Compiled:
        """The compiled form of `build(*options)`."""
        key = (build, options)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = compile_core(build(*options), self.schema)
        return found

    def fixed(self, statement: Core) -> Compiled:
        """The compiled form of a statement that is a module constant."""
        found = self._compiled.get(statement)
        if found is None:
            found = self._compiled[statement] = compile_core(statement, self.schema)
        return found


class Wire:
    """One checked-out connection. Use it as a context manager: it is given back clean, or thrown away."""

    __slots__ = ("_driver", "_link", "connection", "statements")

    def __init__(self, engine: Engine, statements: Statements, command_id: str = "") -> None:
        self.statements = statements
        try:
            self.connection: Connection = engine.connect()
        except (sqlalchemy.exc.TimeoutError, sqlalchemy.exc.DBAPIError, psycopg.Error, OSError) as error:
            raise failure.of_connecting(error, command_id) from error
        try:
            self._driver = cast("psycopg.Connection[Any]", self.connection.connection.driver_connection)
            self._link = self.connection.info.get(_LINK) or self._probe(command_id)
        except BaseException:
            self.discard()
            self.connection.close()
            raise

    def _probe(self, command_id: str) -> Link:
        link = Link(pooled=True)
        try:
            ((pid, server, client),) = fly(self._driver, link, [Line(self.statements.fixed(_PROBE), {})], 10.0)[0].rows
        except (StatementFailed, Lost) as problem:
            raise Unavailable(f"the database cannot be reached: {problem}", command_id=command_id) from problem
        if server != "UTF8":
            raise ConfigurationError(f"the database is encoded in {server}: akter needs a UTF8 database, createdb --encoding=UTF8 --template=template0")
        if client != "UTF8":
            raise ConfigurationError(f"the engine sets client_encoding to {client}: akter needs UTF8, so leave it out of the engine's options")
        # A pooler in transaction mode answers with the pid of whichever server connection it uses now.
        link.pooled = pid != self._driver.pgconn.backend_pid
        self.connection.info[_LINK] = link
        return link

    @property
    def pooled(self) -> bool:
        """Whether a pooler in transaction mode stands between, so that nothing may be kept on the connection."""
        return self._link.pooled

    @property
    def in_transaction(self) -> bool:
        """Whether the server is in a transaction that has not failed."""
        return self._driver.pgconn.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    def fly(self, lines: Sequence[Line], seconds: float) -> list[Rows]:
        """Send statements together; raises `StatementFailed` and `Lost`, after which the connection is thrown away."""
        try:
            return fly(self._driver, self._link, lines, seconds)
        except StatementFailed as failed:
            if failed.error.sqlstate in failure.STALE_CONNECTION or failed.error.sqlstate in ("25P03", "57P01", "57P02", "57P03"):
                self.discard()
            raise
        except BaseException:
            self.discard()
            raise

    def roll_back(self) -> None:
        """End the transaction without keeping anything; a connection that cannot is thrown away."""
        if self.connection.invalidated or self._driver.closed:
            return
        if self._driver.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            with contextlib.suppress(StatementFailed, Lost):
                self.fly([ROLLBACK], 5.0)

    def discard(self) -> None:
        """Throw the connection away instead of giving it back to the pool."""
        if not self.connection.closed and not self.connection.invalidated:
            self.connection.invalidate()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.roll_back()
        finally:
            self.connection.close()
