"""Where a database's akter schema is, and whether this library can work with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

import akter
from akter import encoding
from akter.errors import ConfigurationError, SchemaError, SchemaMissing, SchemaOutdated, SchemaTooNew
from akter.tables import SCHEMA, metadata

REVISIONS: tuple[str, ...] = (
    "akter_0001",
    "akter_0002",
    "akter_0003",
    "akter_0004",
    "akter_0005",
    "akter_0006",
    "akter_0007",
    "akter_0008",
)
"""The history, oldest first; the last one is what this library needs."""

VERSION_TABLE = "alembic_version"

VIEWS = "_views"
"""How the name of the schema of the views ends; no schema of tables may be called so."""

VIEW_NAMES = (
    *("actors", "dead_letters", "events", "jobs", "operator_audit", "outbox", "outcomes", "receipts", "state", "subscriptions", "timers"),
    "views",
)
"""The views there are."""

RELATIONS = text(
    "SELECT c.relname, obj_description(c.oid, 'pg_class') LIKE 'akter: %' AS ours"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = :schema AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')"
)
STATUS = """
    SELECT (SELECT array_agg(version_num) FROM "{schema}".alembic_version) AS revisions,
           (SELECT min_library FROM "{schema}".actor_deployment) AS min_library,
           (SELECT array_agg(c.relname || '.' || a.attname)
              FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped) AS columns
"""
PLACE = text(
    "SELECT current_setting('server_encoding') AS encoding, current_database() AS database, current_user AS role,"
    " has_database_privilege(current_database(), 'CREATE') AS may_create,"
    " (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = :schema) AS may_fill"
)
UNDEFINED = {"42P01", "42703", "3F000"}
INSUFFICIENT_PRIVILEGE = "42501"


class Newer(SchemaTooNew):
    """The database's akter schema is at a revision that this library does not know."""

    def __init__(self, revision: str) -> None:
        super().__init__(f"database at {revision}, which is newer than {REVISIONS[-1]}, the newest this library knows: upgrade the package")
        self.revision = revision


def verify(connection: Connection, *, schema: str = SCHEMA) -> None:
    """Refuse a database that this library cannot work with. One query; a transaction that was open stays open and usable.

    Raises `SchemaMissing`, `SchemaOutdated`, `SchemaTooNew`, or `SchemaError` for a version table that is not akter's alone.
    """
    checked(schema)
    nested = connection.in_transaction()
    remedy = f"run `{_migrate(schema)}`"
    try:
        with connection.begin_nested() if nested else nullcontext():
            row = connection.execute(text(STATUS.format(schema=schema))).one()
    except DBAPIError as error:
        if not nested:
            connection.rollback()
        state = getattr(error.orig, "sqlstate", None)
        if state == INSUFFICIENT_PRIVILEGE:
            raise SchemaError(
                f"this role may not read schema {schema}: run the SQL of `akter grants <role>` as the schema's owner"
            ) from error
        if state not in UNDEFINED:
            raise
        tables = {found.relname for found in connection.execute(RELATIONS, {"schema": schema})}
        if VERSION_TABLE in tables:
            raise SchemaOutdated(
                f"schema {schema} has a version table, but not the tables its revision creates: a revision was skipped"
            ) from error
        raise SchemaMissing(f"the database has no akter tables in schema {schema}: {remedy}") from error
    finally:
        if not nested:
            connection.rollback()
    _judge(row, schema, remedy)


def refuse_place(connection: Connection, schema: str) -> None:
    """Refuse a database in which this role cannot create the tables, or nobody should.

    Raises `SchemaError` for missing rights, and `ConfigurationError` for an encoding.
    """
    places = {name: connection.execute(PLACE, {"schema": name}).one() for name in (schema, views_schema(schema))}
    place = places[schema]
    encoding.refuse(place.encoding)
    for name, found in places.items():
        if found.may_fill is False:
            raise SchemaError(
                f"permission denied for schema {name}: {place.role} may create nothing in it: run this as the owner of the schema"
            )
    missing = [name for name, found in places.items() if found.may_fill is None]
    if missing and not place.may_create:
        made = "; ".join(f'CREATE SCHEMA "{name}" AUTHORIZATION "{place.role}"' for name in missing)
        raise SchemaError(
            f"permission denied for database {place.database}: {place.role} may not create schema {' and '.join(missing)} in it: run this "
            f"as the owner of the database, who may also make what is missing for this role: {made}"
        )


def _judge(row: Any, schema: str, remedy: str) -> None:
    try:
        current = revision_of(row.revisions or (), schema)
    except Newer as newer:
        current = newer.revision
    if current is None:
        raise SchemaMissing(f"schema {schema} is at no revision: {remedy}")
    if row.min_library and _release(row.min_library) > _release(akter.__version__):
        raise SchemaTooNew(
            f"database at {current} needs akter {row.min_library} or newer, and this is {akter.__version__}: upgrade the package"
        )
    if current in REVISIONS[:-1]:
        raise SchemaOutdated(f"database at {current}, library needs {REVISIONS[-1]}: {remedy}")
    needed = {f"{table.name}.{column.name}" for table in metadata.tables.values() for column in table.columns}
    if missing := sorted(needed - set(row.columns or ())):
        raise SchemaOutdated(
            f"database at {current}, but without {', '.join(missing[:3])}: a revision was skipped, or a table was changed by hand"
        )


def checked(schema: str) -> str:
    """The name, if a schema of akter's own may be called so; it is never shared, nor needs escaping. Raises `ConfigurationError`."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", schema) or schema.startswith("pg_") or schema in {"public", "information_schema"}:
        raise ConfigurationError(
            f"{schema!r} cannot be akter's schema: it needs one of its own, named by letters, digits, _ and -, at most 63"
        )
    if schema.endswith(VIEWS):
        raise ConfigurationError(f"{schema!r} cannot be akter's schema: a name that ends in {VIEWS} is one where akter puts its views")
    return schema


def views_schema(schema: str) -> str:
    """The schema of the views beside a schema of tables, within PostgreSQL's 63 bytes."""
    name = f"{schema}{VIEWS}"
    return name if len(name) <= 63 else f"{schema[:40]}_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}{VIEWS}"


def position(revision: str) -> int:
    """Where in the history a revision stands: 0 is the first, -1 is "base". Raises `ConfigurationError`."""
    known = ("base", *REVISIONS)
    if revision not in (*known, "head"):
        raise ConfigurationError(f"there is no revision {revision!r}: use one of {', '.join(known)}, head")
    return len(REVISIONS) - 1 if revision == "head" else known.index(revision) - 1


def stamps(connection: Connection, schema: str) -> Sequence[str]:
    """The rows of the version table, if there is one."""
    if VERSION_TABLE not in {row.relname for row in connection.execute(RELATIONS, {"schema": schema})}:
        return ()
    return connection.scalars(text(f'SELECT version_num FROM "{schema}".{VERSION_TABLE}')).all()


def revision_of(stamps: Sequence[str], schema: str) -> str | None:
    """The revision these rows of the version table say. Raises `Newer`, and `SchemaError` for rows that are not akter's."""
    if len(stamps) > 1:
        raise SchemaError(
            f"{schema}.{VERSION_TABLE} holds {', '.join(sorted(stamps))}, and akter's history has one line: delete what is not its"
        )
    if not stamps or stamps[0] in REVISIONS:
        return stamps[0] if stamps else None
    if re.fullmatch(r"akter_\d{4}", stamps[0]) and stamps[0] > REVISIONS[-1]:
        raise Newer(stamps[0])
    raise SchemaError(f"{schema}.{VERSION_TABLE} holds {stamps[0]}, which is not akter's: another history uses this schema")


def _migrate(schema: str) -> str:
    return "akter migrate" if schema == SCHEMA else f"akter --schema {schema} migrate"


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in re.sub(r"(\.0)+$", "", found.group()).split(".")) if found else ()
