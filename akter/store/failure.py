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
        "25P04",  # the transaction was longer than the database allows
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

TURN_TOO_SLOW = frozenset({"25P03", "25P04"})
"""SQLSTATEs with which a server ends one connection because of what its own turn did."""

_SCHEMA = frozenset({"3F000", "42P01", "42703"})


def is_retryable(error: psycopg.Error) -> bool:
    """Whether a new transaction may succeed where this error ended one."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError) and (error.pgconn is None or error.pgconn.status != psycopg.pq.ConnStatus.OK)
    return state in RETRYABLE or state.startswith("08") or _is_stale_plan(error)


def is_stale(error: psycopg.Error) -> bool:
    """Whether a statement of the application failed because its connection, or what was prepared on it, is of no use any more."""
    return error.sqlstate in ("25006", "26000", "42P05") or _is_stale_plan(error)


def _is_stale_plan(error: psycopg.Error) -> bool:
    # What PostgreSQL does not support has the same SQLSTATE, and the message is in the server's language.
    return error.sqlstate == "0A000" and error.diag.source_function == "RevalidateCachedQuery"


def driver_errors(problem: BaseException | None, outer: BaseException | None = None) -> Iterator[psycopg.Error]:
    """The driver's errors that an exception is or was raised from, up to `outer`, which was being handled before it all began."""
    seen: set[int] = {id(outer)}
    while problem is not None and id(problem) not in seen:
        seen.add(id(problem))
        found = problem.orig if isinstance(problem, sqlalchemy.exc.DBAPIError) else problem
        if isinstance(found, psycopg.Error):
            yield found
        problem = problem.__cause__ or problem.__context__


def of_statement(error: psycopg.Error, command_id: str, schema: str) -> AkterError:
    """What an error of one of our own statements is raised as."""
    state = error.sqlstate
    if state in _SCHEMA:
        flag = "" if schema == "akter" else f" --schema {schema}"
        return SchemaMissing(f"the database has no usable akter schema ({said(error)}): run `akter{flag} migrate`")
    if state == "42501":
        return ConfigurationError(f"the database role lacks a right that akter needs ({said(error)}): see `akter grants`")
    if state in STALE_CONNECTION or is_retryable(error):
        return Unavailable(f"the command could not run now: {said(error)}", command_id=command_id)
    return Defect(f"PostgreSQL refused the turn, nothing was saved: {said(error)}", command_id=command_id)


def of_connecting(error: BaseException, command_id: str) -> AkterError:
    """What it is raised as when there is no connection to be had."""
    if isinstance(error, sqlalchemy.exc.TimeoutError):
        return Unavailable(
            "no connection became free: the engine's pool is used up; make pool_size at least the number of threads that call actors",
            command_id=command_id,
        )
    if isinstance(error, sqlalchemy.exc.ProgrammingError):
        return ConfigurationError(f"the engine's options are not PostgreSQL's: {said(error)}", command_id=command_id)
    return Unavailable(f"the database cannot be reached: {said(error)}", command_id=command_id)


def said(error: BaseException) -> str:
    """What an error says in its first line; a statement, its parameters and the rows it met stand in those below."""
    if isinstance(error, sqlalchemy.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def reason(problem: BaseException) -> str:
    """What a handler failed with, for a message; of an error of SQL no more than `said`."""
    try:
        if isinstance(problem, sqlalchemy.exc.SQLAlchemyError | psycopg.Error):
            return f"{type(problem).__name__}: {said(problem)}"[:2000]
        return f"{type(problem).__name__}: {problem}"[:2000]
    except Exception:  # noqa: BLE001 - a message that cannot be made must not hide the failure it belongs to
        return type(problem).__name__
