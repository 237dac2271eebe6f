"""A revision of akter's history as an operation of a Django migration."""

# pyright: reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from akter import encoding
from akter.contrib.django import database
from akter.errors import SchemaTooNew
from akter.schema import sql
from akter.schema_lock import LOCK_TIMEOUT, key
from akter.schema_state import REVISIONS, VERSION_TABLE, Newer, checked, position, revision_of


class AlembicRevision(Operation):
    """Bring akter's schema to a revision, by the SQL that `akter migrate` would run.

    Going up never takes a newer schema back, so `manage.py migrate` and `akter migrate` may be mixed. SQL text goes over Django's
    connection, and its transaction decides; databases that are not PostgreSQL are passed over.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, revision: str) -> None:
        self.revision = revision

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """What Django writes into a squashed migration."""
        return type(self).__name__, [self.revision], {}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """There are no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Go up to the revision."""
        if (schema := _schema(app_label, schema_editor)) is None:
            return
        target = position(self.revision)
        current = target - 1 if schema_editor.collect_sql else _current(schema_editor, schema, newer=len(REVISIONS))
        if current < target:
            _run(schema_editor, sql(_name(current), self.revision, schema=schema))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Go down to the revision before; raises `SchemaTooNew` for a schema that this library cannot take back."""
        if (schema := _schema(app_label, schema_editor)) is None:
            return
        target = position(self.revision) - 1
        current = target + 1 if schema_editor.collect_sql else _current(schema_editor, schema, newer=None)
        if current > target:
            _run(schema_editor, sql(_name(current), _name(target), schema=schema))

    def describe(self) -> str:
        """What `manage.py migrate --plan` says."""
        return f"Bring akter's schema to {self.revision}"

    @property
    def migration_name_fragment(self) -> str:
        """What Django would call a migration of it."""
        return self.revision


def _schema(app_label: str, schema_editor: Any) -> str | None:
    connection = schema_editor.connection
    if connection.vendor != "postgresql" or not router.allow_migrate(connection.alias, app_label):
        return None
    return checked(database.schema())


def _run(schema_editor: Any, text: str) -> None:
    for statement in schema_editor.connection.ops.prepare_sql_script(text):
        schema_editor.execute(statement, params=None)


def _current(schema_editor: Any, schema: str, *, newer: int | None) -> int:
    """Where the schema is, while no other migration moves it; `newer` stands for a revision that this library does not know."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key(schema)])
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [f'"{schema}".{VERSION_TABLE}'])
        if not cursor.fetchone()[0]:
            cursor.execute("SHOW server_encoding")
            encoding.refuse(cursor.fetchone()[0])
            return -1
        cursor.execute(f'SELECT version_num FROM "{schema}".{VERSION_TABLE}')
        try:
            return position(revision_of([row[0] for row in cursor.fetchall()], schema) or "base")
        except Newer as found:
            if newer is None:
                raise SchemaTooNew(str(found)) from found
            return newer


def _name(at: int) -> str:
    return REVISIONS[at] if at >= 0 else "base"
