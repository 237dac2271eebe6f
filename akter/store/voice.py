"""The connection on which a process says its hints, apart from every pool: at once, in the thread that committed, or with patience."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import psycopg
from sqlalchemy import Engine

from akter.store import apart
from akter.store.flight import Lost, StatementFailed, hear, say

REST = 0.002
"""Seconds between two hints of a process: what is committed meanwhile shares the next one."""

_PATIENCE = 5.0
"""Seconds after which a server that does not answer is taken for dead."""
_NEVER = float("-inf")


class Voice:
    """Says hints for one schema. Threads may share it; none ever waits for another but in `say`."""

    def __init__(self, engine: Engine, schema: str) -> None:
        self._engine, self._schema = engine, schema
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._pid, self._said_at, self._answered = 0, _NEVER, True

    def rest(self) -> float:
        """Seconds until the next hint may be said."""
        return max(0.0, self._said_at + REST - time.monotonic())

    def at_once(self, said: str) -> bool:
        """Say it without waiting for anything, an answer neither; returns whether that was possible."""
        if self.rest() > 0.0 or not self._lock.acquire(blocking=False):
            return False
        try:
            if (connection := self._connection) is None or self._pid != os.getpid() or not self._heard(connection):
                return False
            connection.pgconn.send_query(apart.hint(self._schema, said))
            self._said_at, self._answered = time.monotonic(), False
            return connection.pgconn.flush() == 0
        except psycopg.Error:
            # Whoever says the next one with patience makes another.
            self._drop()
            return False
        finally:
            self._lock.release()

    def say(self, said: str) -> None:
        """Say it, on a new connection if need be; raises `Unavailable`, `Lost`, `StatementFailed` and psycopg's errors."""
        with self._lock:
            try:
                if (connection := self._usable()) is None:
                    self._drop()
                    connection = self._connection = apart.connect(self._engine)
                    self._pid = os.getpid()
                say(connection, apart.hint(self._schema, said), _PATIENCE)
                self._said_at = time.monotonic()
            except BaseException:
                self._drop()
                raise

    def _usable(self) -> psycopg.Connection[Any] | None:
        """The connection, once its server has answered the last hint; none where there is none, or it does not answer."""
        connection = self._connection
        try:
            if connection is not None and not self._heard(connection):
                hear(connection, _PATIENCE)
                self._answered = True
        except (psycopg.Error, Lost, StatementFailed):
            return None
        return connection

    def _heard(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the server has answered the hint that nobody waited for; raises psycopg's errors when it has ended the connection."""
        pgconn = connection.pgconn
        pgconn.consume_input()
        if self._answered:
            # A farewell hides the end of the connection from the first look.
            pgconn.consume_input()
            return True
        while not pgconn.is_busy():
            if pgconn.get_result() is None:
                self._answered = True
                return True
        return False

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        connection, self._connection, self._answered = self._connection, None, True
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()
