"""Which database: a URL, an embedded server or an engine of the application's own, accepted or refused with the remedy."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy import Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import AssertionPool, QueuePool, SingletonThreadPool, StaticPool

from akter.errors import ConfigurationError

POOL_SIZE = 16
"""Connections of an engine that akter makes; of an engine it is given, the engine's own pool decides."""

POOL_TIMEOUT = 30.0
"""Seconds that a call waits for a connection of such an engine, unless its time for delivery is shorter."""

CONNECTING = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Seconds after which a host that does not answer is given up; without them it takes the operating system's two minutes, or hours."""


def engine_for(target: str | URL | Engine | None = None, **options: Any) -> tuple[Engine, bool]:
    """The engine for a URL, `embedded:PATH`, an engine, or `AKTER_DATABASE_URL`, and whether akter made it.

    Nothing is connected to. Raises `ConfigurationError` for drivers and engines that cannot carry a turn.
    """
    if target is None:
        target = os.environ.get("AKTER_DATABASE_URL") or None
        if target is None:
            raise ConfigurationError("no database is given: pass a URL, an engine or 'embedded:./data', or set AKTER_DATABASE_URL")
    if isinstance(target, Engine):
        return _checked(target), False
    if not isinstance(target, str | URL):
        raise ConfigurationError(_no_engine(target))
    settings: dict[str, Any] = {"pool_size": POOL_SIZE, "max_overflow": 0, "hide_parameters": True, **options}
    if isinstance(target, str) and target.startswith("embedded:"):
        from akter import embedded

        return embedded.engine(target, **settings), True
    url = _url(target)
    # What the URL or the environment says stands, and connect_args would override it.
    patience = {name: value for name, value in CONNECTING.items() if name not in url.query}
    if "PGCONNECT_TIMEOUT" in os.environ:
        patience.pop("connect_timeout", None)
    settings["connect_args"] = {**patience, **settings.get("connect_args", {})}
    return _checked(sqlalchemy.create_engine(url, **settings)), True


def _no_engine(target: object) -> str:
    if hasattr(target, "sync_engine"):
        return "an AsyncEngine cannot carry a turn: pass a synchronous engine, create_engine('postgresql+psycopg://...')"
    return f"a database is a URL or an Engine, not {type(target).__name__}"


def _url(target: str | URL) -> URL:
    try:
        url = make_url(target)
    except (ArgumentError, ValueError):
        # The reason would quote a part of the URL, perhaps of the password.
        raise ConfigurationError("the database URL cannot be read: it looks like postgresql://user:password@host/database") from None
    backend, _, driver = url.drivername.partition("+")
    if backend not in ("postgresql", "postgres"):
        raise ConfigurationError(f"akter needs PostgreSQL, and the URL says {backend}: use postgresql://...")
    if driver not in ("", "psycopg"):
        raise ConfigurationError(f"akter needs the driver psycopg 3, and the URL says {driver}: use postgresql+psycopg://...")
    return url.set(drivername="postgresql+psycopg")


def _checked(engine: Engine) -> Engine:
    if engine.dialect.is_async:
        raise ConfigurationError("the engine of an AsyncEngine cannot carry a turn: pass create_engine('postgresql+psycopg://...')")
    if engine.dialect.name != "postgresql" or engine.dialect.driver != "psycopg":
        raise ConfigurationError(
            f"akter needs an engine on psycopg 3, and this one uses {engine.dialect.name}+{engine.dialect.driver}: "
            "create_engine('postgresql+psycopg://...')"
        )
    if isinstance(engine.pool, StaticPool | SingletonThreadPool | AssertionPool):
        raise ConfigurationError(
            f"a turn needs a connection of its own, and a {type(engine.pool).__name__} gives one connection to all: "
            "leave out poolclass, or use NullPool"
        )
    return engine


@contextmanager
def unhindered(engine: Engine) -> Generator[Engine]:
    """The engine, or one like it while its pool has no connection to give: whoever asks may hold the last one."""
    pool = engine.pool
    if not isinstance(pool, QueuePool) or pool.size() == 0 or not 0 <= pool._max_overflow <= pool.checkedout() - pool.size():
        yield engine
        return
    beside = Engine(pool.recreate(), engine.dialect, engine.url, hide_parameters=engine.hide_parameters)
    try:
        yield beside
    finally:
        beside.dispose()


def seats(engine: Engine) -> int:
    """How many turns may run at once: never more than the engine's pool holds."""
    pool = engine.pool
    # A QueuePool of size 0 has no limit.
    return (isinstance(pool, QueuePool) and pool.size()) or POOL_SIZE
