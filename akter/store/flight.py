"""A flight: statements sent to PostgreSQL together, their results in order; one network round trip.

Core statements are compiled once per schema and sent through libpq's pipeline mode, which costs a fraction of executing them one by
one. Everything else speaks Core; this module is where it becomes bytes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import psycopg
from psycopg import pq, waiting
from psycopg.errors import error_from_result
from sqlalchemy import ARRAY, BigInteger, Boolean, Integer, Text, TextClause
from sqlalchemy.dialects.postgresql import psycopg as dialects
from sqlalchemy.sql.expression import Select

from akter.tables import SCHEMA

Value: TypeAlias = "int | str | bool | bytes | None"
Row: TypeAlias = "tuple[Any, ...]"
Core: TypeAlias = "Select[Any] | TextClause"

_OK = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
_DIALECT = dialects.dialect(paramstyle="numeric_dollar")
_TICK = 0.2


class Compiled(NamedTuple):
    """A statement as it is sent."""

    name: bytes
    sql: bytes
    parameters: tuple[str, ...]
    constants: Mapping[str, Any]
    readers: tuple[Callable[[bytes], Any], ...]


class Line(NamedTuple):
    """One statement of a flight and its parameters."""

    statement: Compiled
    values: Mapping[str, Any]


class Rows(NamedTuple):
    """The answer to one statement."""

    rows: list[Row]
    tag: bytes


class StatementFailed(Exception):
    """PostgreSQL refused statement `position` of a flight; the ones behind it were not run."""

    def __init__(self, position: int, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.position, self.error = position, error


class Lost(Exception):
    """The connection broke, or the server did not answer in time, while a flight was under way."""


class Link:
    """What is known of one physical connection."""

    __slots__ = ("pooled", "prepared")

    def __init__(self, pooled: bool) -> None:
        self.pooled = pooled
        self.prepared: set[bytes] = set()


def compile_core(statement: Core, schema: str) -> Compiled:
    """Compile a Core statement for one schema."""
    compiled = statement.compile(
        dialect=_DIALECT, compile_kwargs={"literal_binds": False}, schema_translate_map={SCHEMA: schema}, render_schema_translate=True
    )
    sql = str(compiled).encode()
    readers = tuple(_reader(column.type) for column in statement.selected_columns) if isinstance(statement, Select) else ()
    names = tuple(compiled.positiontup or ())  # type: ignore[attr-defined]
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    return Compiled(b"akter_" + hashlib.blake2b(sql, digest_size=9).hexdigest().encode(), sql, names, constants, readers)


def raw(sql: str) -> Compiled:
    """A statement without parameters that Core has no word for, such as BEGIN."""
    return Compiled(b"", sql.encode(), (), {}, ())


def fly(connection: psycopg.Connection[Any], link: Link, lines: Sequence[Line], seconds: float) -> list[Rows]:
    """Send `lines` together and return their results in order.

    Raises `StatementFailed` for the first statement PostgreSQL refused and `Lost` when there is no connection any more, or no answer
    within `seconds`; after `Lost`, or any other exception, the connection must be thrown away.
    """
    pgconn = connection.pgconn
    with connection.lock:
        try:
            pgconn.enter_pipeline_mode()
            sent = [_send(pgconn, link, line) for line in lines]
            pgconn.pipeline_sync()
            exchange = _exchange(pgconn, time.monotonic() + seconds)
            results = waiting.wait(exchange, pgconn.socket, interval=_TICK)
            pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            raise Lost(str(error)) from error
    return _read(pgconn, link, lines, sent, results)


def _send(pgconn: pq.abc.PGconn, link: Link, line: Line) -> bytes:
    statement, values = line
    if statement.constants:
        values = {**statement.constants, **values}
    parameters = [_text(values[name]) for name in statement.parameters]
    if link.pooled or not statement.name:
        pgconn.send_query_params(statement.sql, parameters)
        return b""
    fresh = statement.name not in link.prepared
    if fresh:
        pgconn.send_prepare(statement.name, statement.sql)
    pgconn.send_query_prepared(statement.name, parameters)
    return statement.name if fresh else b""


def _exchange(pgconn: pq.abc.PGconn, deadline: float) -> Generator[waiting.Wait, waiting.Ready, list[pq.abc.PGresult]]:
    results: list[pq.abc.PGresult] = []
    unsent = pgconn.flush()
    while True:
        ready = yield waiting.Wait.RW if unsent else waiting.Wait.R
        if not ready:
            if time.monotonic() > deadline:
                raise Lost("the server did not answer in time")
            continue
        if ready & waiting.Ready.R:
            pgconn.consume_input()
            while notice := pgconn.notifies():
                if pgconn.notify_handler:
                    pgconn.notify_handler(notice)
            fresh = True
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    if fresh:
                        break
                    fresh = True
                elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                    return results
                else:
                    fresh = False
                    results.append(result)
        if unsent:
            unsent = pgconn.flush()


def _read(
    pgconn: pq.abc.PGconn, link: Link, lines: Sequence[Line], sent: Sequence[bytes], results: list[pq.abc.PGresult]
) -> list[Rows]:
    answers: list[Rows] = []
    at = iter(results)
    for position, (line, prepared) in enumerate(zip(lines, sent, strict=True)):
        result = next(at)
        if prepared and result.status == pq.ExecStatus.COMMAND_OK:
            link.prepared.add(prepared)
            result = next(at)
        if result.status not in _OK:
            raise StatementFailed(position, error_from_result(result, encoding="utf-8"))
        answers.append(Rows(_rows(result, line.statement.readers), result.command_status or b""))
    return answers


def _rows(result: pq.abc.PGresult, readers: tuple[Callable[[bytes], Any], ...]) -> list[Row]:
    get = result.get_value
    return [
        tuple(None if (value := get(row, column)) is None else read(value) for column, read in enumerate(readers))
        for row in range(result.ntuples)
    ]


def _text(value: Any) -> bytes | None:
    if value is None:
        return None
    if value is True:
        return b"t"
    if value is False:
        return b"f"
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return b"{" + b",".join(_element(item) for item in value) + b"}"
    return str(value).encode()


def _element(value: Any) -> bytes:
    text = _text(value)
    if text is None:
        return b"NULL"
    if isinstance(value, int):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _reader(kind: Any) -> Callable[[bytes], Any]:
    if isinstance(kind, Boolean):
        return b"t".__eq__
    if isinstance(kind, Integer | BigInteger):
        return int
    if isinstance(kind, Text):
        return bytes.decode
    if isinstance(kind, ARRAY):
        raise TypeError("a statement of a turn returns no arrays")
    return bytes
