"""The databases of Django's settings, for akter's own connections."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any

import psycopg
import sqlalchemy
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from akter.engine import CONNECTING, POOL_SIZE
from akter.errors import ConfigurationError
from akter.tables import SCHEMA

_DJANGOS_OWN = ("client_encoding", "context", "cursor_factory", "prepare_threshold")


def engine(alias: str = DEFAULT_DB_ALIAS, **options: Any) -> Engine:
    """An engine for a database of the settings, for `Akter(engine(), ...)`; `options` are those of SQLAlchemy's `create_engine`.

    The settings are read anew for each connection: an app that was made when modules were imported works on Django's test database in
    tests. There, `poolclass=sqlalchemy.NullPool`, and `Akter(..., hint=False)`, leave no connection open that would keep Django from
    dropping it. Nothing is connected to. Turns commit on connections of this engine, never on Django's.
    """

    def connect() -> psycopg.Connection[Any]:
        given: dict[str, Any] = {**CONNECTING, **parameters(alias)}
        return psycopg.connect(**given)

    pool = {} if "poolclass" in options else {"pool_size": POOL_SIZE, "max_overflow": 0}
    chosen: dict[str, Any] = {**pool, "hide_parameters": True, **options}
    return sqlalchemy.create_engine("postgresql+psycopg://", creator=connect, **chosen)


def url(alias: str = DEFAULT_DB_ALIAS) -> URL:
    """The URL of a database of the settings, as it is now."""
    given = {name: str(value) for name, value in parameters(alias).items()}
    user, password, database = given.pop("user", None), given.pop("password", None), given.pop("dbname", None)
    return URL.create("postgresql+psycopg", user, password, database=database, query=given)


def parameters(alias: str) -> dict[str, Any]:
    """What a connection to a database of the settings is opened with; raises `ConfigurationError` unless it is PostgreSQL."""
    connection: Any = connections[alias]
    if connection.vendor != "postgresql":
        raise ConfigurationError(f"akter needs PostgreSQL, and DATABASES[{alias!r}] is {connection.vendor}: name another alias")
    return {name: value for name, value in connection.get_connection_params().items() if name not in _DJANGOS_OWN}


def schema() -> str:
    """The PostgreSQL schema of akter's tables."""
    return str(getattr(settings, "AKTER_SCHEMA", SCHEMA))
