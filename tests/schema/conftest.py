"""A server for the session, an empty database for each test, and a history that is one revision longer than the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, make_url, text

from akter import schema, schema_state
from akter.embedded import Server

NEXT = f"akter_{len(schema_state.REVISIONS) + 1:04}"
"""The revision after the newest."""

REVISION = """
from alembic import op
revision, down_revision, branch_labels, depends_on = "{revision}", "{before}", None, None
def upgrade():
    schema = op.get_context().opts["akter_schema"]
    {up}
def downgrade():
    schema = op.get_context().opts["akter_schema"]
    {down}
"""

COLUMN = 'op.execute(f"ALTER TABLE {schema}.actor_state ADD COLUMN note text")'
NO_COLUMN = 'op.execute(f"ALTER TABLE {schema}.actor_state DROP COLUMN note")'

CATALOG = """
    SELECT 'relation', c.relname::text, c.relkind::text, c.relpersistence::text, c.reloptions::text, obj_description(c.oid, 'pg_class')
      FROM pg_class c WHERE c.relnamespace = :schema::regnamespace
    UNION ALL
    SELECT 'column', c.relname, row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) || ' ' || a.attname,
           format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relnamespace = :schema::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT 'constraint', n.conrelid::regclass::text, n.conname, n.contype::text, pg_get_constraintdef(n.oid), n.convalidated::text
      FROM pg_constraint n WHERE n.connamespace = :schema::regnamespace
    UNION ALL
    SELECT 'index', i.indrelid::regclass::text, i.indexrelid::regclass::text, i.indisvalid::text, pg_get_indexdef(i.indexrelid), NULL
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = :schema::regnamespace
""".replace(":schema::regnamespace", "(SELECT oid FROM pg_namespace WHERE nspname = :schema)")


class Database:
    """One database: engines for it, and the command `akter` on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = create_engine(url)

    def as_role(self, role: str) -> str:
        """The URL under another name; the server trusts everybody."""
        return make_url(self.url).set(username=role).render_as_string(hide_password=False)

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), parameters)
            return list(result.all()) if result.returns_rows else []

    def one(self, statement: str, **parameters: Any) -> Any:
        return self.rows(statement, **parameters)[0][0]

    def run(self, script: str) -> None:
        """Run a script of several statements."""
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(script.encode())

    def command(
        self, *arguments: str, url: str | None = None, start: tuple[str, ...] = ("-m", "akter"), cwd: Path | None = None
    ) -> Command:
        return Command(
            [sys.executable, *start, *arguments],
            env={**os.environ, "AKTER_DATABASE_URL": url or self.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )

    def akter(self, *arguments: str, url: str | None = None) -> Command:
        return self.command(*arguments, url=url).ended()


class Command(subprocess.Popen[str]):
    """A process, and what it printed."""

    out = err = ""

    def ended(self) -> Command:
        self.out, self.err = self.communicate(timeout=60)
        return self


def catalog(connection: Connection, name: str = "akter") -> set[tuple[Any, ...]]:
    """Everything PostgreSQL knows about a schema, but the version table."""
    found = connection.execute(text(CATALOG), {"schema": name}).all()
    return {tuple(row) for row in found if not any("alembic_version" in str(value) for value in row)}


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with Server.temporary() as server:
        yield server


@pytest.fixture
def make_database(server: Server) -> Iterator[Callable[[], Database]]:
    admin = create_engine(server.url(), isolation_level="AUTOCOMMIT")
    made: list[Database] = []

    def make() -> Database:
        name = f"t{uuid4().hex[:12]}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        made.append(Database(server.url(name)))
        return made[-1]

    yield make
    with admin.connect() as connection:
        for database in made:
            database.engine.dispose()
            connection.execute(text(f"DROP DATABASE {make_url(database.url).database} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def database(make_database: Callable[[], Database]) -> Database:
    return make_database()


@pytest.fixture
def engine(database: Database) -> Engine:
    return database.engine


class Longer:
    """The real history and one more revision, in this process and in others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.revisions = (*schema_state.REVISIONS, NEXT)
        shutil.copytree(str(resources.files("akter.migrations")), folder)

    def write(self, up: str = COLUMN, down: str = NO_COLUMN) -> None:
        (self.folder / "versions" / f"{NEXT}.py").write_text(
            REVISION.format(revision=NEXT, before=schema_state.REVISIONS[-1], up=up, down=down)
        )

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schema, "_location", lambda: str(self.folder))
        monkeypatch.setattr(schema, "REVISIONS", self.revisions)
        monkeypatch.setattr(schema_state, "REVISIONS", self.revisions)

    def command(self, database: Database, *arguments: str, first: str = "") -> Command:
        """The command `akter` with this history, after some lines of Python."""
        script = (
            f"import akter.cli, akter.schema as s, akter.schema_lock as lock, akter.schema_state as t\n{first}\n"
            f"s._location = lambda: {str(self.folder)!r}\ns.REVISIONS = t.REVISIONS = {self.revisions!r}\nakter.cli.main()"
        )
        return database.command(*arguments, start=("-c", script))


@pytest.fixture
def longer(tmp_path: Path) -> Longer:
    """Written, but used only where the test says so."""
    assert NEXT not in schema_state.REVISIONS
    history = Longer(tmp_path / "longer")
    history.write()
    return history


class Shared:
    """What test modules share, since test folders are not packages."""

    catalog = staticmethod(catalog)
    next = NEXT


@pytest.fixture
def shared() -> type[Shared]:
    return Shared
