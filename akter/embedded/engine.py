"""An embedded PostgreSQL as a SQLAlchemy engine, which is all the rest of akter asks for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

import psycopg
from psycopg import errors
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine.interfaces import Dialect
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from akter.embedded.server import Server
from akter.errors import ConfigurationError, Unavailable

T = TypeVar("T")

SCHEME = "embedded:"
DATABASE = "akter"
PATIENCE = 3.0
"""Seconds in which a connection that fails is tried again."""

# What is in force, which a server that was started by other means brings along, and what roles and databases put in its place.
RELAXED = """
    SELECT name || '=' || setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'
    UNION ALL
    SELECT configured FROM pg_db_role_setting, unnest(setconfig) AS configured
    WHERE configured ~* '^synchronous_commit=(of|off|f|false|fal|n|no|0)$'
"""


def engine(target: str, **engine_options: Any) -> Engine:
    """An engine on a PostgreSQL of your own: "embedded:./data" keeps its data there, "embedded:" in memory until the process ends.

    The options are those of `create_engine`. Nothing is started before the first connection; then the server is, if no process
    has done so already, and the database `akter` is created. All engines of a process on the same directory use one `Server`, which ends
    with the process or by `stop`. Raises ConfigurationError, which says what to do, for a target that cannot be used.
    """
    if not target.startswith(SCHEME) or target.startswith(f"{SCHEME}//"):
        raise ConfigurationError(
            f"{target!r} is not an embedded PostgreSQL: write 'embedded:./directory', or 'embedded:' for a throw-away one."
        )
    if "creator" in engine_options:
        raise ConfigurationError("An embedded PostgreSQL makes its own connections: leave out `creator`.")
    directory = target.removeprefix(SCHEME)
    server = Server(directory) if directory else Server.temporary()
    opened = create_engine(f"postgresql+psycopg:///{DATABASE}", **engine_options)
    source = _engines.add(opened, server)
    whose = ref(opened)

    def connect(dialect: Dialect, record: object, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        return source.connect(whose(), dialect, arguments, parameters)

    event.listen(opened, "do_connect", connect)
    return opened


def engine_server(engine: Engine) -> Server:
    """The server of an engine made by `engine()`, started or not. Raises ConfigurationError for another engine."""
    return _engines.source(engine).server


def stop(engine: Engine) -> None:
    """Close the engine's connections and stop its server, unless other engines or processes use it; the next connection starts it again."""
    source = _engines.source(engine)
    engine.dispose()
    source.leave(engine)


class _Source:
    """Where the connections of the engines on one directory come from."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.guard = threading.Lock()
        self._users: WeakSet[Engine] = WeakSet()
        self._prepared = False

    def connect(self, engine: Engine | None, dialect: Dialect, arguments: list[Any], parameters: dict[str, Any]) -> Any:
        with self.guard:
            if engine is not None:
                self._users.add(engine)
            self._prepare()
        return _persistently(self.server, lambda: dialect.connect(*arguments, **parameters, **self._address()))

    def leave(self, engine: Engine) -> None:
        with self.guard:
            self._users.discard(engine)
            if not self._users:
                self._prepared = False
                self.server.stop()

    def _address(self) -> dict[str, Any]:
        return {"user": "postgres", "host": self.server.host, "port": self.server.port}

    def _prepare(self) -> None:
        if not self.server.started:
            self.server.start()
        if self._prepared:
            return
        with _persistently(self.server, lambda: psycopg.connect(self.server.url(driver=""), autocommit=True)) as connection:
            if self.server.durable and (relaxed := connection.execute(RELAXED).fetchone()):
                self.server.stop()
                raise ConfigurationError(
                    f"The PostgreSQL in {self.server.data} runs with {relaxed[0]}, so commits may be lost in a crash: take that out of its "
                    "configuration files, or by ALTER ROLE or ALTER DATABASE ... RESET, or use 'embedded:' for data to throw away."
                )
            if connection.execute("SELECT FROM pg_database WHERE datname = %s", [DATABASE]).rowcount == 0:
                with suppress(errors.DuplicateDatabase, errors.UniqueViolation):  # another process was faster
                    connection.execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0")
        self._prepared = True


def _persistently(server: Server, connect: Callable[[], T]) -> T:
    """Connect, and start the server again if it crashed; one that is just dying lets in and drops for a moment."""
    for attempt in Retrying(
        retry=retry_if_exception_type((psycopg.OperationalError, Unavailable)),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(PATIENCE),
        reraise=True,
    ):
        with attempt:
            if attempt.retry_state.attempt_number > 1:
                server.start()
            return connect()
    raise AssertionError("the last attempt raises")


class _Engines:
    """The engines of this process and where each gets its connections."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self._sources: dict[Path, _Source] = {}
        self._of: WeakKeyDictionary[Engine, _Source] = WeakKeyDictionary()

    def add(self, engine: Engine, server: Server) -> _Source:
        with self.guard:
            source = self._of[engine] = self._sources.setdefault(server.data, _Source(server))
        return source

    def source(self, engine: Engine) -> _Source:
        try:
            return self._of[engine]
        except KeyError:
            raise ConfigurationError(f"{engine!r} is no embedded PostgreSQL: make it with akter.embedded.engine().") from None

    def after_fork(self) -> None:
        self.guard = threading.Lock()
        for source in self._sources.values():
            source.guard = threading.Lock()
        for engine in list(self._of):
            engine.dispose(close=False)  # the connections are the parent's


_engines = _Engines()
os.register_at_fork(after_in_child=_engines.after_fork)
