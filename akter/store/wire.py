"""A connection checked out for one turn or query, and the flights sent on it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

import psycopg
import sqlalchemy.exc
from sqlalchemy import ClauseElement, Connection, Engine, Integer, PoolProxiedConnection, QueuePool, Text, func, select
from sqlalchemy import cast as sql_cast

from akter import encoding
from akter.errors import ConfigurationError, Unavailable
from akter.store import failure
from akter.store.flight import Behind, Compiled, Line, Lost, Rows, StatementFailed, compile_core, depart, fly, land, raw, say
from akter.store.guarded import Guarded
from akter.store.link import Link

T = TypeVar("T")

_LINK = "akter_link"
_PROBE = select(
    func.pg_backend_pid(type_=Integer()).label("pid"),
    sql_cast(func.current_setting("server_encoding"), Text()).label("server"),
    sql_cast(func.pg_client_encoding(), Text()).label("client"),
)
BEGIN = Line(raw("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"), {})
COMMIT = Line(raw("COMMIT"), {})
ROLLBACK = Line(raw("ROLLBACK"), {})


class Statements:
    """What the wires of one Akter share: its statements, compiled for its schema when they are first used.

    Connections made before `trusted_since`, a `time.monotonic()` value, are not used any more: one of them was found dead or stale.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.trusted_since = 0.0
        self._compiled: dict[Hashable, Compiled] = {}

    def get(self, build: Any, *options: bool) -> Compiled:
        """The compiled form of `build(*options)`."""
        key = (build, options)
        found = self._compiled.get(key)
        if found is None:
            found = self._compiled[key] = compile_core(build(*options), self.schema)
        return found

    def fixed(self, statement: ClauseElement) -> Compiled:
        """The compiled form of a statement that is a module constant."""
        found = self._compiled.get(statement)
        if found is None:
            found = self._compiled[statement] = compile_core(statement, self.schema)
        return found


class Answering:
    """A block whose failures are raised as akter's own."""

    __slots__ = ("_command_id", "_schema")

    def __init__(self, schema: str, command_id: str) -> None:
        self._schema, self._command_id = schema, command_id

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        if isinstance(problem, StatementFailed):
            raise failure.of_statement(problem.error, self._command_id, self._schema) from problem.error
        if isinstance(problem, Lost):
            raise Unavailable(f"the database connection was lost: {problem}", command_id=self._command_id) from problem


class Wire:
    """One checked-out connection. Use it as a context manager: it is given back clean, or thrown away."""

    __slots__ = ("_behind", "_connection", "_driver", "_engine", "_link", "_outer", "_pid", "_pooled", "statements")

    _pooled: PoolProxiedConnection
    _driver: psycopg.Connection[Any]

    def __init__(self, engine: Engine, statements: Statements, command_id: str = "") -> None:
        self.statements, self._pid, self._outer = statements, os.getpid(), sys.exception()
        self._engine = engine
        self._behind: Behind | None = None
        # Connections that the application has used before may have died since; each of them is met once.
        idle = engine.pool.checkedin() if isinstance(engine.pool, QueuePool) else 0
        while True:
            self._check_out(engine, command_id)
            try:
                link = self._pooled.info.get(_LINK) or self._probe(command_id)
                if link.since >= statements.trusted_since and self.misuse is None:
                    self._link: Link = link
                    self._refuse_open_transaction(command_id)
                    if link.use():
                        with contextlib.suppress(StatementFailed):
                            say(self._driver, b"DISCARD PLANS", 10.0)
                    return
            except Lost as lost:
                if idle == 0:
                    self._give_up()
                    raise Unavailable(f"the database cannot be reached: {lost}", command_id=command_id) from lost
                idle -= 1
            except BaseException:
                self._give_up()
                raise
            self._give_up()

    def _check_out(self, engine: Engine, command_id: str) -> None:
        self._connection: Connection | None = None
        try:
            if _is_watched(engine):
                self._connection = encoding.opened(engine)
                self._pooled = self._connection.connection
            else:
                self._pooled = encoding.pooled(engine)
        except (sqlalchemy.exc.TimeoutError, sqlalchemy.exc.DBAPIError, psycopg.Error, OSError) as error:
            raise failure.of_connecting(error, command_id) from error
        self._driver = cast("psycopg.Connection[Any]", self._pooled.driver_connection)

    @property
    def connection(self) -> Connection:
        """SQLAlchemy's view of the connection, for statements that are not akter's own; made when it is first asked for."""
        if self._connection is None:
            self._connection = Guarded(self._engine, self._pooled)
        return self._connection

    def _give_up(self) -> None:
        self.discard()
        self._close()

    def _close(self) -> None:
        (self._pooled if self._connection is None else self._connection).close()

    def _probe(self, command_id: str) -> Link:
        link = Link(pooled=True)
        try:
            ((pid, server, client),) = fly(self._driver, link, [Line(self.statements.fixed(_PROBE), {})], 10.0)[0].rows
        except StatementFailed as failed:
            raise failure.of_statement(failed.error, command_id, self.statements.schema) from failed.error
        encoding.refuse(server)
        if client != "UTF8":
            raise ConfigurationError(
                f"the engine sets client_encoding to {client}: akter needs UTF8, so leave it out of the engine's options"
            )
        # A pooler in transaction mode answers with the pid of whichever server connection it uses now.
        link.pooled = pid != self._driver.pgconn.backend_pid
        if link.pooled:
            # For the application's own SQL in a turn, which the driver sends.
            self._driver.prepare_threshold = None
        self._pooled.info[_LINK] = link
        return link

    def _refuse_open_transaction(self, command_id: str) -> None:
        if self._driver.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            raise ConfigurationError(
                "a connection came out of the engine's pool with a transaction open, which a turn must not commit: "
                "listeners for connect and checkout have to work with autocommit, and pool_reset_on_return must not be None",
                command_id=command_id,
            )

    @property
    def pooled(self) -> bool:
        """Whether a pooler in transaction mode stands between, so that nothing may be kept on the connection."""
        return self._link.pooled

    @property
    def broken(self) -> bool:
        """Whether the connection is known to be gone."""
        return self._gone or self._driver.closed

    @property
    def _gone(self) -> bool:
        """Whether the pool's connection was given back or thrown away."""
        return self._pooled.dbapi_connection is None

    @property
    def misuse(self) -> str | None:
        """How the application's own use left the connection, when no statement of akter's can follow on it."""
        pgconn = self._driver.pgconn
        if self._driver.closed:
            return None
        if pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF:
            return "in pipeline mode"
        if self._driver.lock.locked() or pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
            return "in the middle of a stream, a copy or a statement"
        if pgconn.parameter_status(b"client_encoding") != b"UTF8":
            return "with another client_encoding"
        return None

    @property
    def in_transaction(self) -> bool:
        """Whether the server is in a transaction that has not failed."""
        return self._driver.pgconn.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    def fly(self, lines: Sequence[Line], seconds: float, behind: Sequence[Line] = ()) -> list[Rows]:
        """Send statements together; raises `StatementFailed`, and `Lost`, after which the connection is thrown away.

        `behind`: a transaction that begins when these have committed and is sent with them; `land` has what it answers.
        """
        if not behind:
            return self._sent(fly, lines, seconds)
        answers, self._behind = self._sent(depart, lines, behind, seconds)
        return answers

    def keep(self) -> bool:
        """Whether another turn may follow on this connection without a visit to the pool, which counts as a use."""
        link = self._link
        return not link.pooled and not self.broken and link.since >= self.statements.trusted_since and link.use_again()

    def _sent(self, send: Callable[..., T], *flight: Any) -> T:
        try:
            if os.getpid() != self._pid:
                raise Lost("this process was forked from the one that the connection belongs to, in the middle of a turn")
            return send(self._driver, self._link, *flight)
        except StatementFailed as failed:
            if failed.error.sqlstate in failure.STALE_CONNECTION:
                self._distrust()
            raise
        except Lost as lost:
            self.discard()
            if lost.sqlstate not in failure.TURN_TOO_SLOW:
                self._distrust()
            raise
        except BaseException:
            self.discard()
            raise

    def transact(self, lines: Sequence[Line], seconds: float, behind: Sequence[Line] = ()) -> list[Rows]:
        """Send statements together as one transaction of their own, whatever isolation and rights to write the database defaults to.

        `behind`: a transaction that begins right after it and is sent with it; `land` has what it answers.
        """
        return self.fly([BEGIN, *lines, COMMIT], seconds, [BEGIN, *behind] if behind else ())[1:-1]

    @property
    def under_way(self) -> bool:
        """Whether there is a transaction whose beginning has not been answered."""
        return self._behind is not None

    def land(self, seconds: float) -> list[Rows]:
        """The answers of the transaction that was sent with another one; raises as `fly` does."""
        assert self._behind is not None
        behind, self._behind = self._behind, None
        return self._sent(land, behind, seconds)

    def answering(self, command_id: str = "") -> Answering:
        """What fails in this block is raised as akter's own: a lost connection as `Unavailable`, a refused statement as what it means."""
        return Answering(self.statements.schema, command_id)

    def roll_back(self) -> None:
        """End the transaction without keeping anything; a connection that cannot is thrown away."""
        if self._gone or self._driver.closed:
            return
        if self._behind is not None:
            with contextlib.suppress(StatementFailed, Lost):
                self.land(5.0)
            return self.roll_back()
        if self._connection is not None and self.misuse is not None:
            self.discard()
        elif self._driver.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            with contextlib.suppress(StatementFailed, Lost):
                self.fly([ROLLBACK], 5.0)

    def discard(self) -> None:
        """Throw the connection away instead of giving it back to the pool."""
        if self._gone:
            return
        if os.getpid() != self._pid and not self._driver.closed:
            # The socket is shared with the process that forked, and a farewell on it would end that process's turn.
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, self._driver.pgconn.socket)
            os.close(nowhere)
        (self._pooled if self._connection is None else self._connection).invalidate()

    def _distrust(self) -> None:
        """What happened to this connection happened to those that wait in the pool: a restart, a failover, a migration."""
        self.statements.trusted_since = time.monotonic()
        self.discard()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, _: object, problem: BaseException | None, __: object) -> None:
        try:
            if problem is not None and any(failure.is_stale(error) for error in failure.driver_errors(problem, self._outer)):
                self._distrust()
            self.roll_back()
        finally:
            self._close()


def _is_watched(engine: Engine) -> bool:
    """Whether the application has something to say about each connection: a listener, or an option such as an isolation level."""
    return type(engine) is not Engine or bool(engine.dispatch.engine_connect) or bool(engine.get_execution_options())
