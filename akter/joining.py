"""A process joins its deployment before its first call: the schema is checked, settings are compared, the clock is read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Engine

from akter.clock import Clock
from akter.engine import unhindered
from akter.errors import Unavailable
from akter.followers import Followers
from akter.importing import check_not_importing
from akter.store import deployment, failure, routed, versions
from akter.store.deployment import Deployment, Placed
from akter.store.flight import Line, Lost, StatementFailed, raw
from akter.store.versions import Readable
from akter.store.wire import BEGIN, COMMIT, Statements, Wire
from akter.tables import SCHEMA

_PATIENCE = 15.0
_LIMIT = Line(raw("SET LOCAL statement_timeout = '10s'"), {})
"""A migration that runs right now holds locks; the first call does not wait for all of it."""


class Joining:
    """Joins once, at the first call. It never migrates; what is missing is named with the command that makes it."""

    def __init__(
        self,
        engine: Engine,
        statements: Statements,
        retry_window_ms: int,
        types: Sequence[Placed],
        followers: Followers,
        readable: Callable[[], Sequence[Readable]],
    ) -> None:
        self._engine, self._statements, self._window_ms, self._types = engine, statements, retry_window_ms, types
        self._followers, self._readable = followers, readable
        self._joined: Deployment | None = None
        self._clock, self._lock = Clock(0), threading.Lock()

    def join(self) -> Deployment:
        """The deployment, after checking it the first time; raises `SchemaError`, `DeploymentMismatch` and `Unavailable`,
        and `AkterError` in a process that only imports its script."""
        found = self._joined
        if found is None:
            with self._lock:
                if (found := self._joined) is None:
                    found = self._joined = self._verified()
                    self._clock.set(found.now_ms)
        return found

    @property
    def joined(self) -> Deployment | None:
        """The deployment, if it was joined already."""
        return self._joined

    def now_ms(self) -> int:
        """The database's time in epoch milliseconds, from an estimate that is never ahead of it."""
        self.join()
        now = self._clock.now_ms()
        if now is None:
            self._joined = None
            self.join()
            now = self._clock.now_ms()
        return now if now is not None else int(time.time() * 1000)

    def moved(self, by_ms: int) -> None:
        """Carry on the estimate after a test moved the database's clock."""
        if (now := self._clock.now_ms()) is not None:
            self._clock.set(now + by_ms)

    def _verified(self) -> Deployment:
        from akter import schema

        check_not_importing()
        name = self._statements.schema
        # A first call may be `within(...)` on the pool's only connection.
        with unhindered(self._engine) as engine, Wire(engine, self._statements) as wire:
            connection: Connection = wire.connection.execution_options(schema_translate_map={SCHEMA: name})
            try:
                # By hand, since the engine may be in autocommit, and the database's default serializable or read-only.
                wire.fly([BEGIN, _LIMIT], _PATIENCE)
                connection.begin()
                schema.verify(connection, schema=name)
                versions.verify(connection, self._readable())
                joined = deployment.join(connection, self._window_ms, self._types)
                self._followers.learn(routed.join(connection, self._followers.declared, [placed.name for placed in self._types]))
                wire.fly([COMMIT], _PATIENCE)
            except Lost as lost:
                raise Unavailable(f"the database connection was lost: {lost}") from lost
            except StatementFailed as failed:
                raise failure.of_statement(failed.error, "", name) from failed.error
            except Exception as problem:
                for error in failure.driver_errors(problem):
                    raise failure.of_statement(error, "", name) from problem
                raise
        return joined
