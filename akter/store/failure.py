"""What an error of PostgreSQL, the driver or the pool means for a turn."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import sqlalchemy.exc

from akter.errors import AkterError, ConfigurationError, Defect, SchemaMissing, Unavailable

RETRYABLE = frozenset(
    {
        "25006",  # read-only: the server is a standby now
        "25P03",  # the turn was idle in its transaction for too long
        "26000",  # a prepared statement is gone: a pooler gave the connection to somebody else
        "40001",
        "40P01",
        "42P05",  # a prepared statement is there already: the same
        "53000",
        "53100",
        "53200",
        "53300",
        "55P03",
        "57014",
        "57P01",
        "57P02",
        "57P03",
        "57P05",
    }
)
"""SQLSTATEs after which the same command may succeed, in a new transaction."""

STALE_CONNECTION = frozenset({"0A000", "25006", "26000", "42P05"})
"""SQLSTATEs of our own statements that mean: this connection, or its prepared plans, are of no use any more."""

_SCHEMA = frozenset({"3F000", "42P01", "42703"})


def is_retryable(error: psycopg.Error) -> bool:
    """Whether a new transaction may succeed where this error ended one."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError) and (error.pgconn is None or error.pgconn.status != psycopg.pq.ConnStatus.OK)
    return state in RETRYABLE or state.startswith("08")


def driver_errors(problem: BaseException | None) -> Iterator[psycopg.Error]:
    """The driver's errors that an exception is or was raised from."""
    seen: set[int] = set()
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        if isinstance(problem, psycopg.Error):
            yield problem
        elif isinstance(problem, sqlalchemy.exc.DBAPIError) and isinstance(problem.orig, psycopg.Error):
            yield problem.orig
        problem = problem.__cause__ or problem.__context__


def of_statement(error: psycopg.Error, command_id: str, schema: str) -> AkterError:
    """What an error of one of our own statements is raised as."""
    state = error.sqlstate
    said = _first_line(error)
    if state in _SCHEMA:
        flag = "" if schema == "akter" else f" --schema {schema}"
        return SchemaMissing(f"the database has no usable akter schema ({said}): run `akter{flag} migrate`")
    if state == "42501":
        return ConfigurationError(f"the database role lacks a right that akter needs ({said}): see `akter grants`")
    if state in STALE_CONNECTION or is_retryable(error):
        return Unavailable(f"the command could not run now: {said}", command_id=command_id)
    return Defect(f"PostgreSQL refused the turn, nothing was saved: {said}", command_id=command_id)


def of_connecting(error: BaseException, command_id: str) -> Unavailable:
    """What it is raised as when there is no connection to be had."""
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return Unavailable(
            "no connection became free: the engine's pool is used up; make pool_size at least the number of threads that call actors",
            command_id=command_id,
        )
    orig = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None else error
    return Unavailable(f"the database cannot be reached: {_first_line(orig)}", command_id=command_id)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
