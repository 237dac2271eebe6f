"""A connection apart from every pool, for the threads that keep one: the hint's and the listener's."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import psycopg
import sqlalchemy.exc
from psycopg import sql
from sqlalchemy import Engine, Text, bindparam, func, select
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store import failure


def connect(engine: Engine) -> psycopg.Connection[Any]:
    """Open a connection as the engine would, in autocommit; raises `Unavailable`. Whoever opens it closes it."""
    try:
        proxy = engine.pool.recreate().connect()
        connection = cast("psycopg.Connection[Any]", proxy.driver_connection)
        proxy.detach()
        connection.autocommit = True
    except (sqlalchemy.exc.TimeoutError, sqlalchemy.exc.DBAPIError, psycopg.Error, OSError) as error:
        raise failure.of_connecting(error, "") from error
    return connection


def channel(schema: str) -> str:
    """The channel that processes tell each other on that something is due; it names the schema, within PostgreSQL's 63 bytes."""
    name = f"akter_{schema}"
    return name if len(name.encode()) <= 63 else "akter_" + hashlib.blake2b(schema.encode(), digest_size=20).hexdigest()


def notify() -> ExecutableReturnsRows:
    """Tell the others; a hint says no more than who says it and, at most, which rows, because the rows say what is due."""
    return select(func.pg_notify(bindparam("channel", type_=Text()), bindparam("said", type_=Text())).label("told"))


def hint(schema: str, said: str) -> bytes:
    """The same as a plain statement, for a connection apart: it reaches the listeners sooner than a prepared SELECT does."""
    return sql.SQL("NOTIFY {}, {}").format(sql.Identifier(channel(schema)), sql.Literal(said)).as_bytes()
