"""Install, upgrade, verify and remove the akter schema.

Every door leads to one history in one version table, `alembic_version` inside the schema itself:

- `akter migrate`, or `upgrade(engine)`;
- `alembic -n akter upgrade head`, with `script_location = akter.migrations:` in the `[akter]` section of the application's alembic.ini;
- `schema.apply(op, "akter_0001")` in a revision of the application's own history;
- `sql(...)`, for whoever runs SQL by hand or by another tool.

The only module that imports Alembic, and only where a migration runs: a process that merely verifies does not pay for it.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from importlib import resources
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Engine, MetaData, text
from sqlalchemy.exc import DBAPIError

from akter.errors import ConfigurationError, SchemaError
from akter.schema_lock import LOCK_TIMEOUT, WAIT, connected, exclusively, key
from akter.schema_state import (
    INSUFFICIENT_PRIVILEGE,
    RELATIONS,
    REVISIONS,
    VERSION_TABLE,
    VIEW_NAMES,
    Newer,
    checked,
    position,
    refuse_place,
    revision_of,
    stamps,
    verify,
    views_schema,
)
from akter.tables import SCHEMA, metadata

if TYPE_CHECKING:
    from types import ModuleType

    from alembic.config import Config
    from alembic.operations import Operations

__all__ = ["Move", "apply", "check", "downgrade", "drop", "grants", "grants_of_views", "include_name", "sql", "upgrade", "verify"]

EXISTS = text("SELECT count(*) FROM pg_namespace WHERE nspname = :schema")

_one_alembic = Lock()  # Alembic's `op` and `context` are globals of the process.


class Move(NamedTuple):
    """Where a schema was, and where it is now; None is: no tables."""

    before: str | None
    after: str | None


def upgrade(where: Engine | Connection, revision: str = "head", *, schema: str = SCHEMA, wait: float = WAIT) -> Move:
    """Bring the schema forward to `revision`, creating it if need be, in one transaction.

    A schema that is already there, or newer, is left as it is. On a connection inside a transaction, the caller commits. Raises
    `SchemaError` when another migration or a reader of the tables is in the way for too long or the role may not do it, `SchemaTooNew` when
    the database needs a newer library, and `ConfigurationError` for an unknown revision, a bad schema name, a database that is not UTF8 or
    an Alembic that already runs in this process. Nothing is changed then.
    """
    checked(schema)
    if position(revision) < 0:
        raise ConfigurationError("an upgrade does not lead to base: use `downgrade`, or `drop` to remove the schema")
    with connected(where) as connection:
        try:
            return _command("upgrade", connection, revision, schema, wait)
        except Newer as newer:
            verify(connection, schema=schema)
            return Move(newer.revision, newer.revision)


def downgrade(where: Engine | Connection, revision: str, *, schema: str = SCHEMA, wait: float = WAIT) -> Move:
    """Take the schema back to `revision`, or to "base": no tables. What the dropped columns and tables held is gone.

    Raises what `upgrade` raises.
    """
    checked(schema)
    position(revision)
    with connected(where) as connection:
        return _command("downgrade", connection, revision, schema, wait)


def sql(start: str = "base", end: str = "head", *, schema: str = SCHEMA, transaction: bool = False) -> str:
    """The SQL that leads from one revision to another, up or down; with `transaction`, as a script that is one transaction.

    Raises `ConfigurationError` for an unknown revision or a bad schema name.
    """
    from alembic import command

    out = io.StringIO()
    config = _config(schema, output_buffer=out)
    first, last = position(start), position(end)
    with _alembic():
        (command.upgrade if first <= last else command.downgrade)(config, f"{start}:{end}", sql=True)
    if last < 0 <= first:
        out.write(f'DROP TABLE "{schema}".{VERSION_TABLE};\n\n')
    if not transaction:
        return out.getvalue()
    return (
        f"-- schema {schema} from {start} to {end}; run it as its owner, with: psql -v ON_ERROR_STOP=1\n\nBEGIN;\n\n"
        f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}';\n\nSELECT pg_advisory_xact_lock({key(schema)});\n\n{out.getvalue()}COMMIT;\n"
    )


def apply(op: Operations | ModuleType, revision: str, *, schema: str = SCHEMA, down: bool = False, start: str | None = None) -> None:
    """Bring the schema to `revision` from inside a revision of the application's own Alembic history, in its transaction.

    Going up never takes a newer schema back, so this and `akter migrate` can be mixed; a `downgrade()` says `down=True`. Offline SQL
    cannot look, so there `start` names the revision the schema is at. Raises what `upgrade` raises.
    """
    from alembic.script import ScriptDirectory

    context = op.get_context()
    script = ScriptDirectory.from_config(_config(schema))
    target = position(revision)
    table = f'"{schema}".{VERSION_TABLE}'

    def steps(current: int) -> None:
        moving = range(current, target, -1) if down else range(current + 1, target + 1)
        if moving and current < 0:
            op.execute(f"CREATE TABLE IF NOT EXISTS {table} (version_num varchar(32) NOT NULL CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY)")
        for at in moving:
            module = script.get_revision(REVISIONS[at]).module
            (module.downgrade if down else module.upgrade)()
        if moving:
            op.execute(f"DELETE FROM {table}" if target >= 0 else f"DROP TABLE {table}")
        if moving and target >= 0:
            op.execute(f"INSERT INTO {table} VALUES ('{REVISIONS[target]}')")

    def work() -> None:
        try:
            steps(position(prepare(connection, schema) or "base"))
        except Newer:
            if down:
                raise

    context.opts["akter_schema"] = schema
    try:
        if not context.as_sql:
            connection = op.get_bind()
            exclusively(connection, schema, work)
        elif start is None:
            raise ConfigurationError(
                'offline SQL cannot look: say `schema.apply(op, ..., start="base")`, or wherever the schema is by then'
            )
        else:
            op.execute(creation(schema))
            steps(position(start))
    finally:
        del context.opts["akter_schema"]


def check(where: Engine | Connection, *, schema: str = SCHEMA) -> str | None:
    """The reason why `verify` refuses the database, or None."""
    with connected(where) as connection:
        try:
            verify(connection, schema=schema)
        except SchemaError as error:
            return str(error)
    return None


def drop(where: Engine | Connection, *, schema: str = SCHEMA, wait: float = WAIT) -> bool:
    """Drop the schema with everything in it, if there is one. Raises `ConfigurationError` for a schema that is not akter's."""
    checked(schema)

    def work() -> bool:
        if not connection.scalar(EXISTS, {"schema": schema}):
            return False
        found = connection.execute(RELATIONS, {"schema": schema}).all()
        if found and not any(row.ours for row in found):
            raise ConfigurationError(f"schema {schema} holds no akter table, but {found[0].relname}: it is not dropped")
        connection.execute(text(f'DROP SCHEMA "{schema}" CASCADE'))
        # The views went with their tables. What else somebody put beside them is not akter's.
        if all(row.ours for row in connection.execute(RELATIONS, {"schema": views_schema(schema)})):
            connection.execute(text(f'DROP SCHEMA IF EXISTS "{views_schema(schema)}" CASCADE'))
        return True

    with connected(where) as connection:
        return exclusively(connection, schema, work, wait=wait)


def grants(role: str, *, schema: str = SCHEMA) -> str:
    """The SQL that lets `role` run the application and no more, now and after later migrations; the schema's owner runs it."""
    checked(schema)
    to = _quoted(role)
    return (
        f'GRANT USAGE ON SCHEMA "{schema}" TO {to};\n'
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO {to};\n'
        f'REVOKE INSERT, UPDATE, DELETE ON "{schema}".{VERSION_TABLE} FROM {to};\n'
        f'ALTER DEFAULT PRIVILEGES IN SCHEMA "{schema}" GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {to};\n'
    )


def grants_of_views(role: str, views: Collection[str] = (), *, schema: str = SCHEMA) -> str:
    """The SQL that lets `role` read the views, all or some, and nothing else; the schema's owner runs it.

    Raises `ConfigurationError` for a view that there is not, and for what can be no role.
    """
    place = views_schema(checked(schema))
    if unknown := sorted(set(views).difference(VIEW_NAMES)):
        raise ConfigurationError(f"there is no view {unknown[0]}: the views are {', '.join(VIEW_NAMES)}")
    reading = (f'GRANT SELECT ON "{place}".{name} TO {_quoted(role)};\n' for name in sorted(views or VIEW_NAMES))
    return f'GRANT USAGE ON SCHEMA "{place}" TO {_quoted(role)};\n' + "".join(reading)


def include_name(name: str | None, kind: str, parents: Mapping[str, str | None], *, schema: str = SCHEMA) -> bool:
    """Alembic's `include_name`, for an application whose env.py sets `include_schemas=True`: its autogenerate leaves this schema alone."""
    return kind != "schema" or name != schema


def options(schema: str) -> dict[str, Any]:
    """What `context.configure` of akter.migrations is called with."""
    target = metadata
    if schema != SCHEMA:
        target = MetaData()
        for table in metadata.sorted_tables:
            table.to_metadata(target, schema=schema)
    return {
        "akter_schema": checked(schema),
        "version_table": VERSION_TABLE,
        "version_table_schema": schema,
        "include_schemas": True,
        "include_name": lambda name, kind, parents: kind != "schema" or name == schema,
        "target_metadata": target,
    }


def creation(schema: str) -> str:
    """The statement that creates the schema; it asks for no right to create one that exists."""
    return (
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{schema}') THEN CREATE SCHEMA \"{schema}\"; END IF; END $$"
    )


def prepare(connection: Connection, schema: str) -> str | None:
    """Before revisions run: create the schema, and tell the revision it is at.

    Raises `Newer`, `SchemaError` as `verify` does, and what `refuse_place` raises.
    """
    found = revision_of(stamps(connection, schema), schema)
    if found is None:
        refuse_place(connection, schema)
    connection.execute(text(creation(schema)))
    return found


def finish(connection: Connection, schema: str) -> str | None:
    """After revisions ran: tell the revision it is at; a schema without tables keeps no version table either."""
    if found := stamps(connection, schema):
        return found[0]
    connection.execute(text(f'DROP TABLE IF EXISTS "{schema}".{VERSION_TABLE}'))
    return None


def _command(verb: str, connection: Connection, revision: str, schema: str, wait: float) -> Move:
    from alembic import command

    config = _config(schema, connection=connection, wait=wait)
    try:
        with _alembic():
            (command.upgrade if verb == "upgrade" else command.downgrade)(config, revision)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != INSUFFICIENT_PRIVILEGE:
            raise
        said = " ".join(str(error.orig).split())
        raise SchemaError(f"{said}: nothing was changed; run this as the owner of schema {schema} and of its tables") from error
    return Move(config.attributes["before"], config.attributes["after"])


def _config(schema: str, *, output_buffer: io.StringIO | None = None, **attributes: object) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output_buffer)
    config.set_main_option("script_location", _location().replace("%", "%%"))
    config.attributes.update(attributes, schema=checked(schema))
    return config


def _location() -> str:
    return str(resources.files("akter.migrations"))


@contextmanager
def _alembic() -> Generator[None]:
    from alembic import context
    from alembic.util import CommandError

    with _one_alembic:
        try:
            context.is_offline_mode()
        except (NameError, AttributeError):
            pass
        else:
            raise ConfigurationError("Alembic is running in this process: inside a revision call `akter.schema.apply(op, ...)`")
        try:
            yield
        except CommandError as error:
            raise SchemaError(str(error)) from error


def _quoted(role: str) -> str:
    if not role or "\0" in role:
        raise ConfigurationError(f"{role!r} is no role of PostgreSQL: give the name of the one that is to have the rights")
    return '"' + role.replace('"', '""') + '"'
