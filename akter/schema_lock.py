"""One migration at a time, and none that makes the application wait.

Migrations of one schema exclude each other by a transaction-level advisory lock, which ends with its holder. It is polled and never
waited for, since a waiting statement keeps a snapshot that would block `CREATE INDEX CONCURRENTLY`. DDL waits for a table at most
`LOCK_TIMEOUT`, because every later statement on that table queues behind it, and the whole work is then rolled back and tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TypeVar

from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.exc import DBAPIError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_fixed

from akter import encoding
from akter.errors import ConfigurationError, SchemaError
from akter.limits import seconds

logger = logging.getLogger("akter.schema")
T = TypeVar("T")

WAIT = 60.0
"""Seconds to wait for another migration of the same schema."""
LOCK_TIMEOUT = "2s"
IDLE_TIMEOUT = "30s"
"""After which the server ends a migration that does nothing: its process is frozen, and every table it altered is locked."""
ATTEMPTS = 30
PAUSE = 0.5
POLL = 0.1

LOCK_NOT_AVAILABLE = "55P03"
DEADLOCK_DETECTED = "40P01"

TAKE = text(
    "SELECT pg_try_advisory_xact_lock(:key) AS taken, current_setting('lock_timeout') AS lock_timeout,"
    " current_setting('transaction_isolation') AS isolation"
)
PATIENCE = text("SELECT set_config('lock_timeout', :lock_timeout, true)")
OWN_SETTINGS = text(
    "SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', :idle, true),"
    " set_config('application_name', coalesce(nullif(current_setting('application_name'), ''), 'akter migrate'), true)"
)
# The session of a killed process ends in the middle of a long statement, not after it. Servers on some platforms refuse the setting.
WATCH_CLIENT = text(
    "DO $$ BEGIN PERFORM set_config('client_connection_check_interval', '1s', true); EXCEPTION WHEN OTHERS THEN NULL; END $$"
)
SESSION = (
    "a.pid, coalesce(nullif(a.application_name, ''), a.backend_type, 'hidden from this role') AS application, a.state,"
    " extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.backend_start))::bigint AS age"
)
HOLDER = text(
    f"SELECT {SESSION} FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND ((l.classid::bigint << 32) | l.objid::bigint) = :key"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
BLOCKERS = text(
    f"SELECT DISTINCT {SESSION} FROM pg_locks l JOIN pg_stat_activity a USING (pid) JOIN pg_class c ON c.oid = l.relation"
    " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND l.granted AND l.pid <> pg_backend_pid()"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY age DESC NULLS LAST LIMIT 5"
)


def key(schema: str) -> int:
    """The advisory lock that migrations of this schema take, in the database they migrate."""
    return int.from_bytes(blake2b(f"akter.migrate:{schema}".encode(), digest_size=8).digest(), "big", signed=True)


@contextmanager
def connected(where: Engine | Connection) -> Generator[Connection]:
    """The given connection, or one of the engine in READ COMMITTED READ WRITE, whatever the defaults of either are."""
    if isinstance(where, Connection):
        yield where
    else:
        with encoding.opened(where) as connection:
            yield connection.execution_options(isolation_level="READ COMMITTED", postgresql_readonly=False)


def exclusively(connection: Connection, schema: str, work: Callable[[], T], *, wait: float = WAIT) -> T:
    """Do `work` in one transaction that no other migration of this schema overlaps, and commit it.

    On a connection inside a transaction it happens in a savepoint, and the caller commits. Raises `SchemaError` naming the sessions in
    the way when another migration or a reader of the tables does not end in time; nothing is changed then.
    """
    if getattr(connection.connection.driver_connection, "autocommit", False):
        raise ConfigurationError("a migration needs a transaction, and this connection is in AUTOCOMMIT")
    nested = connection.in_transaction()
    deadline = time.monotonic() + seconds("a migration: wait", wait)
    retrying = Retrying(
        retry=retry_if_exception(_in_the_way),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_fixed(PAUSE),
        before_sleep=lambda state: _report(connection, schema, nested, state),
        reraise=True,
    )

    def attempt() -> T:
        with _locked(connection, schema, nested, deadline):
            return work()

    try:
        return retrying(attempt)
    except DBAPIError as error:
        if not _in_the_way(error):
            raise
        raise SchemaError(
            f"the tables of schema {schema} stayed locked for {ATTEMPTS} attempts of {LOCK_TIMEOUT} each, and nothing was changed: "
            f"end the transactions that hold them ({_sessions(connection, BLOCKERS, nested, schema=schema)}) and try again"
        ) from error


@contextmanager
def _locked(connection: Connection, schema: str, nested: bool, deadline: float) -> Generator[None]:
    while True:
        with connection.begin_nested() if nested else connection.begin() as transaction:
            found = connection.execute(TAKE, {"key": key(schema)}).one()
            if found.isolation != "read committed":
                raise ConfigurationError(f"a migration needs a READ COMMITTED transaction, and this one is {found.isolation.upper()}")
            if found.taken:
                if not nested:
                    connection.execute(OWN_SETTINGS, {"idle": IDLE_TIMEOUT})
                    connection.execute(WATCH_CLIENT)
                connection.execute(PATIENCE, {"lock_timeout": LOCK_TIMEOUT})
                yield
                if nested:
                    connection.execute(PATIENCE, {"lock_timeout": found.lock_timeout})
                return
            transaction.rollback()
        if time.monotonic() >= deadline:
            raise SchemaError(
                f"another migration of schema {schema} is still running ({_sessions(connection, HOLDER, nested, key=key(schema))}). "
                "Wait for it; if its process is gone or frozen, end its session with `SELECT pg_terminate_backend(<pid>)` and try again"
            )
        time.sleep(POLL)


def _in_the_way(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in {LOCK_NOT_AVAILABLE, DEADLOCK_DETECTED}


def _report(connection: Connection, schema: str, nested: bool, state: RetryCallState) -> None:
    if state.attempt_number % 10 == 1:
        sessions = _sessions(connection, BLOCKERS, nested, schema=schema)
        logger.warning("schema.locked", extra={"akter_schema": schema, "akter_sessions": sessions})


def _sessions(connection: Connection, query: TextClause, nested: bool, **parameters: object) -> str:
    rows = connection.execute(query, parameters).all()
    if not nested:
        connection.rollback()
    found = [f"pid {row.pid}, {row.application}, {row.state or 'state unknown'}, for {row.age or 0} s" for row in rows]
    return "; ".join(found) or "a session that has just ended"
