"""A fresh migrated database for each test: a clone of a template, or, where databases cannot be created, the given one emptied."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Connection, NullPool, create_engine, inspect
from sqlalchemy.exc import ProgrammingError

from akter import schema
from akter.tables import metadata

_KEPT = 2
"""Databases dropped that many tests late: one whose last client has just left makes DROP wait."""


@contextmanager
def databases(url: Callable[[str], str], given: str, schema_name: str) -> Iterator[Callable[[], str]]:
    """A function that returns the URL of a database of its own for each call.

    `url` makes the URL of a database from its name, `given` is the database to begin with. Everything made is dropped at the end.
    """
    admin = create_engine(url(given), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    tag = f"akter_test_{os.getpid()}"
    template = f"{tag}_template"
    try:
        with admin.connect() as connection:
            if not _created(connection, template):
                yield lambda: _emptied(url(given), schema_name)
                return
            made = [template]
            try:
                _migrate(url(template), schema_name)
                yield _cloning(connection, url, tag, template, made)
            finally:
                for name in made:
                    connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
    finally:
        admin.dispose()


def _created(connection: Connection, name: str) -> bool:
    try:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    except ProgrammingError as problem:
        if isinstance(problem.orig, psycopg.errors.InsufficientPrivilege):
            return False
        raise
    return True


def _migrate(url: str, schema_name: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    schema.upgrade(engine, schema=schema_name)
    engine.dispose()


def _cloning(connection: Connection, url: Callable[[str], str], tag: str, template: str, made: list[str]) -> Callable[[], str]:
    number = itertools.count(1)
    version: Any = connection.dialect.server_version_info or (0,)
    how = "STRATEGY FILE_COPY" if version >= (15,) else ""

    def clone() -> str:
        while len(made) > _KEPT + 1:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{made.pop(1)}" WITH (FORCE)')
        name = f"{tag}_{next(number)}"
        connection.exec_driver_sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}" {how}')
        made.append(name)
        return url(name)

    return clone


def _emptied(url: str, schema_name: str) -> str:
    engine = create_engine(url, poolclass=NullPool)
    schema.upgrade(engine, schema=schema_name)
    with engine.begin() as connection:
        quoted = engine.dialect.identifier_preparer.quote_schema(schema_name)
        there = inspect(connection).get_table_names(schema=schema_name)
        names = [table.name for table in metadata.sorted_tables if table.name in there]
        connection.exec_driver_sql(f"TRUNCATE {', '.join(f'{quoted}.{name}' for name in names)}")
        connection.exec_driver_sql(f"INSERT INTO {quoted}.actor_deployment DEFAULT VALUES")
    engine.dispose()
    return url
