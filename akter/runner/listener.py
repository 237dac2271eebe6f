"""Listen for the hints of other processes. It is only for speed: without it the poll finds the same work a little later."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Engine

from akter.errors import Unavailable
from akter.named import Gathered, Named, heard
from akter.runner.lane import Work
from akter.runner.loop import Loop
from akter.store import apart
from akter.store.flight import Lost, StatementFailed, say
from akter.store.wire import Statements

logger = logging.getLogger("akter.listener")

_TICK = 1.0
_CHECK = 15.0
"""Seconds of silence after which the listener sends itself a hint, to learn whether the connection still lives."""
_ANSWER = 5.0
_POOLED = 300.0
"""Seconds until it is tried again whether a pooler still stands between."""


class Listener:
    """The thread `akter-listen` on a connection of its own; it connects again when that is lost or says nothing."""

    def __init__(
        self,
        engine: Engine,
        statements: Statements,
        wake: Callable[[Sequence[Named]], None],
        take: Callable[[Sequence[Named], Callable[[Work], None]], bool],
        ours: str = "",
    ) -> None:
        self._engine, self._statements, self._wake, self._take = engine, statements, wake, take
        self._channel, self._me = apart.channel(statements.schema), str(uuid.uuid4())
        self._connection: psycopg.Connection[Any] | None = None
        self._own = {self._me, ours}
        self._either = selectors.DefaultSelector()
        self._heard = self._asked = 0.0
        self._nudged, self._nudge = socket.socketpair()
        self.loop = Loop("akter-listen", self._pass)
        self.connected_once = False

    def _pass(self) -> float:
        try:
            return self._listen()
        except (psycopg.Error, Lost, StatementFailed) as problem:
            self.disconnect()
            raise Unavailable(f"the listener lost its connection: {problem}") from problem
        except BaseException:
            self.disconnect()
            raise

    def _listen(self) -> float:
        connection = self._connection
        if connection is None:
            connection = apart.connect(self._engine)
            self._connection = connection
            if connection.execute("SELECT pg_backend_pid()").fetchone() != (connection.info.backend_pid,):
                # A pooler in transaction mode would listen on a connection that is somebody else's a moment later.
                self.disconnect()
                logger.info("listener.off", extra={"akter_reason": "a transaction pooler stands between: the poll alone finds the work"})
                return _POOLED
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._either = selectors.DefaultSelector()
            self._either.register(connection.fileno(), selectors.EVENT_READ)
            self._either.register(self._nudged, selectors.EVENT_READ)
            self._heard, self._asked, self.connected_once = time.monotonic(), 0.0, True
            # Whatever was said while nobody listened is due already.
            self._wake(())
        self._either.select(_TICK)
        self._hear(connection)
        self._check(connection)
        return 0.0

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        # Taken from libpq itself: psycopg's generator looks at the clock and waits before it hands anything over.
        pgconn = connection.pgconn
        pgconn.consume_input()
        said = Gathered()
        while (notice := pgconn.notifies()) is not None:
            self._heard, self._asked = time.monotonic(), 0.0
            who, rows = heard(notice.extra.decode(errors="replace"))
            # What this process says itself woke its runner before it was said.
            if who not in self._own:
                said.add(rows)
        if said.some and not self._take(rows := said.take() or [], self.loop.afterwards):
            self._wake(rows)

    def _check(self, connection: psycopg.Connection[Any]) -> None:
        now = time.monotonic()
        if self._asked and now - self._asked > _ANSWER:
            raise Lost("a hint to itself did not arrive")
        if not self._asked and now - self._heard > _CHECK:
            self._asked = now
            say(connection, apart.hint(self._statements.schema, self._me), _ANSWER)
            # What came together with the answer is not on the socket any more.
            self._hear(connection)

    def stop(self) -> None:
        """End the thread at once, and the connection with it."""
        self.loop.stop()
        with contextlib.suppress(OSError):
            self._nudge.close()
        if self.loop.join(2.0):
            self.disconnect()
            self._nudged.close()

    def disconnect(self) -> None:
        """Close the connection; the next pass opens another."""
        connection, self._connection = self._connection, None
        self._either.close()
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()
