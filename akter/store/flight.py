"""A flight: statements sent to PostgreSQL together, their results in order; one network round trip.

Core statements are compiled once per schema and sent through libpq's pipeline mode, which costs a fraction of executing them one by
one. Everything else speaks Core; this module is where it becomes bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import psycopg
from psycopg import pq, waiting
from psycopg.errors import error_from_result
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql import psycopg as dialects
from sqlalchemy.sql.expression import Select

from akter.store import answer, parameter
from akter.store.link import Link
from akter.tables import SCHEMA

Value: TypeAlias = "int | str | bool | bytes | None"
Row: TypeAlias = answer.Row
Receive: TypeAlias = "Callable[[pq.abc.PGconn, list[pq.abc.PGresult]], bool]"

_OK = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
_DIALECT: Any = cast(Any, dialects.dialect)(paramstyle="numeric_dollar")
_TICK = 0.2
_NOTHING: Mapping[int, bytes] = {}


class Compiled(NamedTuple):
    """A statement as it is sent."""

    name: bytes
    sql: bytes
    parameters: tuple[str, ...]
    constants: Mapping[str, Any]
    kinds: tuple[int, ...]
    """What the columns of the answer are read as."""


class Line(NamedTuple):
    """One statement of a flight and its parameters."""

    statement: Compiled
    values: Mapping[str, Any]


class Rows:
    """The answer to one statement. Its rows become Python values when they are asked for: most are never looked at."""

    __slots__ = ("_kinds", "_result")

    def __init__(self, result: pq.abc.PGresult, kinds: tuple[int, ...]) -> None:
        self._result, self._kinds = result, kinds

    @property
    def rows(self) -> list[Row]:
        """The rows, each a tuple of values."""
        return answer.read(self._result, self._kinds)

    @property
    def tag(self) -> bytes:
        """What PostgreSQL says it did, such as `COMMIT`."""
        return self._result.command_status or b""


class StatementFailed(Exception):
    """PostgreSQL refused statement `position` of a flight; the ones behind it were not run."""

    def __init__(self, position: int, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.position, self.error = position, error


class Lost(Exception):
    """The connection broke, or the server did not answer in time, while a flight was under way; `sqlstate` is the server's reason."""

    def __init__(self, said: str, sqlstate: str | None = None) -> None:
        super().__init__(said)
        self.sqlstate = sqlstate


def compile_core(statement: ClauseElement, schema: str) -> Compiled:
    """Compile a Core statement for one schema."""
    compiled: Any = statement.compile(
        dialect=_DIALECT, compile_kwargs={"literal_binds": False}, schema_translate_map={SCHEMA: schema}, render_schema_translate=True
    )
    sql = str(compiled).encode()
    columns: Any = cast(Any, statement).selected_columns if isinstance(statement, Select) else ()
    kinds = tuple(answer.kind_of(column.type) for column in columns)
    names = tuple(compiled.positiontup or ())
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    return Compiled(b"akter_" + hashlib.blake2b(sql, digest_size=9).hexdigest().encode(), sql, names, constants, kinds)


def raw(sql: str) -> Compiled:
    """A statement without parameters that Core has no word for, such as BEGIN."""
    return Compiled(b"", sql.encode(), (), {}, ())


def fly(connection: psycopg.Connection[Any], link: Link, lines: Sequence[Line], seconds: float) -> list[Rows]:
    """Send `lines` together and return their results in order.

    Raises `StatementFailed` for the first statement PostgreSQL refused and `Lost` when there is no connection any more, or no answer
    within `seconds`; after `Lost`, or any other exception, the connection must be thrown away.
    """
    pgconn = connection.pgconn
    results: list[pq.abc.PGresult] = []
    # Known and alone, as a query's: pipeline mode would cost a sixth of what the flight does here.
    piped = len(lines) > 1 or link.pooled or lines[0].statement.name not in link.prepared
    with connection.lock:
        try:
            if piped:
                pgconn.enter_pipeline_mode()
            fresh = _send(pgconn, link, lines)
            if piped:
                pgconn.pipeline_sync()
            _wait(pgconn, results, seconds, _receive if piped else _receive_one)
            if piped:
                pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            # A farewell may have arrived together with the end.
            with contextlib.suppress(psycopg.Error):
                _receive(pgconn, results)
            raise _lost(error, results) from error
    return _read(link, lines, fresh, results)


class Behind(NamedTuple):
    """A flight that was sent right behind another one, and not answered yet."""

    lines: Sequence[Line]
    fresh: Mapping[int, bytes]
    results: list[pq.abc.PGresult]
    ended: bool


def depart(
    connection: psycopg.Connection[Any], link: Link, lines: Sequence[Line], behind: Sequence[Line], seconds: float
) -> tuple[list[Rows], Behind]:
    """Send two flights together, and return the results of the first as soon as they are there; raises as `fly` does.

    If it fails, the second does not run; otherwise the connection is of no other use until `land` has returned that one's results.
    """
    pgconn = connection.pgconn
    results: list[pq.abc.PGresult] = []
    ended = False

    def receive(pgconn: pq.abc.PGconn, results: list[pq.abc.PGresult]) -> bool:
        nonlocal ended
        ended = _receive(pgconn, results)
        return ended or len(results) >= first

    with connection.lock:
        try:
            pgconn.enter_pipeline_mode()
            first = len(lines) + len(fresh := _send(pgconn, link, lines))
            # The server answers up to here at once. Nothing is sent yet: it would take the processor that the rest is written on.
            pgconn.send_flush_request()
            after = _send(pgconn, link, behind, fresh)
            pgconn.pipeline_sync()
            _wait(pgconn, results, seconds, receive)
            rest = Behind(behind, after, results[first:], ended)
            if any(result.status not in _OK for result in results[:first]):
                # The second does not run, so this is not the place to leave it.
                _settle(pgconn, rest, seconds)
        except psycopg.Error as error:
            raise _lost(error, results) from error
    return _read(link, lines, fresh, results), rest


def land(connection: psycopg.Connection[Any], link: Link, behind: Behind, seconds: float) -> list[Rows]:
    """The results of the second of two flights; raises as `fly` does."""
    with connection.lock:
        try:
            _settle(connection.pgconn, behind, seconds)
        except psycopg.Error as error:
            raise _lost(error, behind.results) from error
    return _read(link, behind.lines, behind.fresh, behind.results)


def _settle(pgconn: pq.abc.PGconn, behind: Behind, seconds: float) -> None:
    # What came together with the first flight's results is not on the socket any more.
    if not behind.ended and not _receive(pgconn, behind.results):
        _wait(pgconn, behind.results, seconds, _receive)
    pgconn.exit_pipeline_mode()


def say(connection: psycopg.Connection[Any], statement: bytes, seconds: float) -> None:
    """Send one statement that returns nothing, without a pipeline, which costs as much as the statement; raises as `fly` does."""
    with connection.lock:
        try:
            connection.pgconn.send_query(statement)
        except psycopg.Error as error:
            raise _lost(error, []) from error
    hear(connection, seconds)


def hear(connection: psycopg.Connection[Any], seconds: float) -> None:
    """Wait for the answer to a statement that was sent like that; raises as `fly` does."""
    pgconn = connection.pgconn
    results: list[pq.abc.PGresult] = []
    with connection.lock:
        try:
            _wait(pgconn, results, seconds, _receive_plain)
        except psycopg.Error as error:
            raise _lost(error, results) from error
    if results and results[0].status not in _OK:
        raise StatementFailed(0, _refusal(results[0]))


def _send(pgconn: pq.abc.PGconn, link: Link, lines: Sequence[Line], before: Mapping[int, bytes] = _NOTHING) -> dict[int, bytes]:
    """Hand the lines to libpq; returns the names of those that are prepared here for the first time, by position.

    `before`: the same of a flight that goes before this one.
    """
    fresh: dict[int, bytes] = {}
    for position, (statement, values) in enumerate(lines):
        if statement.constants:
            values = {**statement.constants, **values}
        parameters = [parameter.text(values[name]) for name in statement.parameters]
        name = statement.name
        if link.pooled or not name:
            pgconn.send_query_params(statement.sql, parameters)
            continue
        if name not in link.prepared and name not in fresh.values() and name not in before.values():
            pgconn.send_prepare(name, statement.sql)
            fresh[position] = name
        pgconn.send_query_prepared(name, parameters)
    return fresh


def _wait(pgconn: pq.abc.PGconn, results: list[pq.abc.PGresult], seconds: float, receive: Receive) -> None:
    waiting.wait(_exchange(pgconn, results, time.monotonic() + seconds, receive), pgconn.socket, interval=_TICK)


def _exchange(
    pgconn: pq.abc.PGconn, results: list[pq.abc.PGresult], deadline: float, receive: Receive
) -> Generator[waiting.Wait, waiting.Ready | int, None]:
    """Send and receive at once, so that neither side waits for the other with full buffers, until the server has answered all."""
    unsent = pgconn.flush()
    while True:
        ready = yield waiting.Wait.RW if unsent else waiting.Wait.R
        if ready & waiting.Ready.R:
            pgconn.consume_input()
            if receive(pgconn, results):
                return
        if time.monotonic() > deadline:
            raise Lost("the server did not answer in time")
        if unsent:
            unsent = pgconn.flush()


def _receive_one(pgconn: pq.abc.PGconn, results: list[pq.abc.PGresult]) -> bool:
    """The same for a statement that is not in a pipeline."""
    _hand_on(pgconn)
    if not _receive_plain(pgconn, results):
        return False
    if not results or _is_farewell(results[-1]):
        raise psycopg.OperationalError("the server ended the connection")
    return True


def _receive_plain(pgconn: pq.abc.PGconn, results: list[pq.abc.PGresult]) -> bool:
    """The same without a pipeline, where nothing follows the end of the results. Notices stay where a listener finds them."""
    while not pgconn.is_busy():
        if (result := pgconn.get_result()) is None:
            return True
        results.append(result)
    return False


def _receive(pgconn: pq.abc.PGconn, results: list[pq.abc.PGresult]) -> bool:
    """Take what has arrived; whether that was all."""
    _hand_on(pgconn)
    ended = False
    while not pgconn.is_busy():
        result = pgconn.get_result()
        if result is None:
            # One ends the results of a statement, two in a row mean that nothing more is expected: the connection is closed.
            if ended:
                break
            ended = True
        elif (status := result.status) == pq.ExecStatus.PIPELINE_SYNC:
            return True
        else:
            ended = False
            results.append(result)
            if status == pq.ExecStatus.FATAL_ERROR and _is_farewell(result):
                raise psycopg.OperationalError("the server ended the connection")
    if pgconn.status == pq.ConnStatus.BAD:
        raise psycopg.OperationalError("the connection is closed")
    return False


def _hand_on(pgconn: pq.abc.PGconn) -> None:
    """Hand what was notified to whoever listens on the connection."""
    while (notice := pgconn.notifies()) is not None:
        if pgconn.notify_handler:
            pgconn.notify_handler(notice)


def _is_farewell(result: pq.abc.PGresult) -> bool:
    """Whether the server says with this that it ends the connection."""
    if result.status != pq.ExecStatus.FATAL_ERROR:
        return False
    return result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC")


def _lost(error: psycopg.Error, results: list[pq.abc.PGresult]) -> Lost:
    """A server that ends a connection on purpose says why before, which explains more than the closed socket does."""
    for result in reversed(results):
        if _is_farewell(result):
            reason = _refusal(result)
            return Lost(str(reason), reason.sqlstate)
    return Lost(str(error).partition("\n")[0])


def _read(link: Link, lines: Sequence[Line], fresh: Mapping[int, bytes], results: list[pq.abc.PGresult]) -> list[Rows]:
    answers: list[Rows] = []
    at = iter(results)
    for position, line in enumerate(lines):
        result = next(at)
        if position in fresh and result.status == pq.ExecStatus.COMMAND_OK:
            link.prepared.add(fresh[position])
            result = next(at)
        if result.status not in _OK:
            raise StatementFailed(position, _refusal(result))
        answers.append(Rows(result, line.statement.kinds))
    return answers


def _refusal(result: pq.abc.PGresult) -> psycopg.Error:
    """The error of a result, which says what is wrong, but not with which row: details hold stored values."""
    error = error_from_result(result, encoding="utf-8")
    error.args = ((error.diag.message_primary or str(error)).partition("\n")[0],)
    return error
