"""Four doors lead to one history: the command, Alembic, the application's own revision, and SQL text (see test_history)."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, make_url, text

from akter import schema, schema_state
from akter.errors import ConfigurationError, SchemaError

ROOT = Path(__file__).parents[2]
HEAD = schema_state.REVISIONS[-1]
NEXT = f"akter_{len(schema_state.REVISIONS) + 1:04}"

ENV = """
from alembic import context
from sqlalchemy import MetaData, NullPool, create_engine
metadata = MetaData(naming_convention={"ck": "ck_%(table_name)s_%(constraint_name)s", "pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s"})
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=NullPool).connect() as connection:
        context.configure(connection=connection, target_metadata=metadata)
        with context.begin_transaction():
            context.run_migrations()
"""
OWN = """
import sqlalchemy as sa
from alembic import op
from akter import schema
revision, down_revision, branch_labels, depends_on = "{revision}", {before!r}, None, None
def upgrade():
    {up}
def downgrade():
    {down}
"""
REVISIONS = [
    ("a1", None, 'op.create_table("shop", sa.Column("id", sa.Integer, primary_key=True))', 'op.drop_table("shop")'),
    ("a2", "a1", f'schema.apply(op, "{HEAD}", start="base")', f'schema.apply(op, "base", down=True, start="{HEAD}")'),
    ("a3", "a2", 'op.add_column("shop", sa.Column("name", sa.Text))', 'op.drop_column("shop", "name")'),
]


class Application:
    """An application with an Alembic history of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(ENV)
        self.folder = folder
        self.config = Config()
        self.config.set_main_option("script_location", str(folder))
        self.config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
        for revision, before, up, down in REVISIONS:
            self.write(revision, before, up, down)

    def write(self, revision: str, before: str | None, up: str, down: str) -> None:
        (self.folder / "versions" / f"{revision}.py").write_text(OWN.format(revision=revision, before=before, up=up, down=down))

    def upgrade(self, to: str = "head") -> None:
        command.upgrade(self.config, to)

    def downgrade(self, to: str) -> None:
        command.downgrade(self.config, to)


@pytest.fixture
def application(database: Any, tmp_path: Path) -> Application:
    return Application(tmp_path / "application", database.url)


def state(database: Any) -> tuple[str | None, str | None]:
    """Where the application's history is, and where akter's."""
    own = database.one("SELECT to_regclass('public.alembic_version')")
    theirs = database.one("SELECT to_regclass('akter.alembic_version')")
    return (
        (database.rows("SELECT version_num FROM public.alembic_version") or [(None,)])[0][0] if own else None,
        (database.rows("SELECT version_num FROM akter.alembic_version") or [(None,)])[0][0] if theirs else None,
    )


def test_the_command_migrates(database: Any) -> None:
    first = database.akter("migrate")
    assert (first.returncode, first.out) == (0, f"akter: created schema akter at {HEAD}\n")
    again = database.akter("migrate")
    assert (again.returncode, again.out) == (0, f"akter: schema akter is at {HEAD}: nothing to do\n")
    assert first.err == again.err == ""


def test_alembic_migrates_from_a_section_of_the_applications_ini(database: Any, tmp_path: Path) -> None:
    url = database.url.replace("%", "%%")
    (tmp_path / "alembic.ini").write_text(f"[akter]\nscript_location = akter.migrations:\nsqlalchemy.url = {url}\n")
    upgrade = database.command("upgrade", "head", start=("-m", "alembic", "-n", "akter"), cwd=tmp_path).ended()
    assert upgrade.returncode == 0, upgrade.err
    assert schema.check(database.engine) is None
    current = database.command("current", start=("-m", "alembic", "-n", "akter"), cwd=tmp_path).ended()
    assert current.out == f"{HEAD} (head)\n"
    (tmp_path / "alembic.ini").write_text(f"[akter]\nscript_location = akter.migrations:\nsqlalchemy.url = {url}\nschema = other\n")
    assert database.command("upgrade", "head", start=("-m", "alembic", "-n", "akter"), cwd=tmp_path).ended().returncode == 0
    assert schema.check(database.engine, schema="other") is None


def test_alembic_migrates_in_this_repository(database: Any) -> None:
    for arguments in (("upgrade", "head"), ("check",), ("-x", "schema=other", "upgrade", "head"), ("downgrade", "base"), ("current",)):
        done = database.command(*arguments, start=("-m", "alembic"), cwd=ROOT).ended()
        assert done.returncode == 0, done.err
    assert schema.check(database.engine, schema="other") is None
    assert schema.check(database.engine) is not None


def test_alembic_says_what_is_wrong_in_a_line(database: Any) -> None:
    done = database.command("-x", "schema=public", "upgrade", "head", start=("-m", "alembic"), cwd=ROOT).ended()
    assert done.returncode != 0
    assert "'public' cannot be akter's schema" in done.err + done.out
    assert "Traceback" not in done.err


def test_looking_changes_nothing(database: Any) -> None:
    assert database.command("current", start=("-m", "alembic"), cwd=ROOT).ended().returncode == 0
    assert state(database) == (None, None)
    assert database.one("SELECT count(*) FROM pg_namespace WHERE nspname = 'akter'") == 0


def test_a_revision_of_the_applications_own_history_migrates(
    database: Any, application: Application, make_database: Any, shared: Any
) -> None:
    application.upgrade()
    assert state(database) == ("a3", HEAD)
    plain = make_database()
    schema.upgrade(plain.engine, HEAD)
    with database.engine.connect() as one, plain.engine.connect() as other:
        assert shared.catalog(one) == shared.catalog(other), "the application's naming convention is not ours"
    application.downgrade("a1")
    assert state(database) == ("a1", None)
    application.upgrade()
    assert state(database) == ("a3", HEAD)
    application.downgrade("base")
    assert state(database) == (None, None)


def test_the_applications_own_history_as_sql_text(database: Any, application: Application, capsys: pytest.CaptureFixture[str]) -> None:
    command.upgrade(application.config, "head", sql=True)
    database.run(capsys.readouterr().out)
    assert state(database) == ("a3", HEAD)
    assert schema.check(database.engine) is None
    command.downgrade(application.config, "a3:a1", sql=True)
    database.run(capsys.readouterr().out)
    assert state(database) == ("a1", None)
    schema.upgrade(database.engine)


def test_offline_sql_does_not_guess_where_the_schema_is(application: Application) -> None:
    application.write("a2", "a1", f'schema.apply(op, "{HEAD}")', "pass")
    with pytest.raises(ConfigurationError, match="start="):
        command.upgrade(application.config, "head", sql=True)


class TestTwoHistories:
    """The application's Alembic and akter's, in one database, in each order."""

    def test_application_first(self, database: Any, application: Application) -> None:
        application.upgrade()
        head = schema_state.REVISIONS[-1]
        assert schema.upgrade(database.engine).after == head
        application.downgrade("-1")
        assert state(database) == ("a2", head)
        assert schema.upgrade(database.engine) == (head, head)

    def test_akter_first(self, database: Any, application: Application) -> None:
        schema.upgrade(database.engine)
        application.upgrade()
        assert state(database) == ("a3", HEAD)
        application.downgrade("a1")
        assert state(database) == ("a1", None)
        assert schema.upgrade(database.engine) == (None, HEAD)
        application.upgrade()
        assert state(database) == ("a3", HEAD)

    def test_an_older_revision_of_the_application_never_takes_the_schema_back(
        self, database: Any, application: Application, longer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        longer.use(monkeypatch)
        schema.upgrade(database.engine)
        application.upgrade()
        assert state(database) == ("a3", NEXT)

    def test_nor_does_an_older_library(self, database: Any, application: Application, longer: Any) -> None:
        with pytest.MonkeyPatch.context() as newer:
            longer.use(newer)
            schema.upgrade(database.engine)
        application.upgrade()
        assert state(database) == ("a3", NEXT)
        with pytest.raises(SchemaError, match=f"{NEXT}, which is newer than {HEAD}"):
            application.downgrade("a1")
        assert state(database) == ("a3", NEXT)

    def test_one_step_at_a_time_and_in_other_schemas(
        self, database: Any, application: Application, longer: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        longer.use(monkeypatch)
        application.write("a4", "a3", f'schema.apply(op, "{NEXT}")', f'schema.apply(op, "{HEAD}", down=True)')
        application.write("a5", "a4", 'schema.apply(op, "head", schema="other")', 'schema.apply(op, "base", schema="other", down=True)')
        application.upgrade()
        assert state(database) == ("a5", NEXT)
        assert database.one("SELECT version_num FROM other.alembic_version") == NEXT
        application.downgrade("a3")
        assert state(database) == ("a3", HEAD)
        assert database.one("SELECT to_regclass('other.alembic_version')") is None

    def test_a_failing_revision_of_the_application_takes_all_of_it_back(self, database: Any, application: Application) -> None:
        application.write("a3", "a2", 'raise RuntimeError("planted")', "pass")
        with pytest.raises(RuntimeError, match="planted"):
            application.upgrade()
        assert state(database) == (None, None)

    def test_akter_in_one_schema_with_another_history_is_refused(self, database: Any) -> None:
        database.run(
            "CREATE SCHEMA akter; CREATE TABLE akter.alembic_version (version_num text); INSERT INTO akter.alembic_version VALUES ('f00d')"
        )
        with pytest.raises(SchemaError, match="holds f00d, which is not akter's: another history uses this schema"):
            schema.upgrade(database.engine)


def test_an_upgrade_inside_a_running_alembic_is_refused_and_harms_it_not(database: Any, application: Application) -> None:
    application.write(
        "a2",
        "a1",
        "from akter.errors import ConfigurationError as Refused\n"
        "    try: schema.upgrade(op.get_bind())\n"
        "    except Refused as error: assert 'akter.schema.apply' in str(error)\n"
        "    else: raise AssertionError\n"
        "    op.execute('SELECT 1')",
        "pass",
    )
    application.upgrade()
    assert state(database) == ("a3", None)


def test_threads_of_one_process_migrate_one_after_the_other(database: Any) -> None:
    errors: list[BaseException] = []

    def run(name: str) -> None:
        try:
            schema.upgrade(database.engine, schema=name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two", "three", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert [schema.check(database.engine, schema=name) for name in ("one", "two", "three")] == [None, None, None]


def test_inside_the_callers_transaction_the_caller_decides(engine: Engine, database: Any) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        connection.execute(text("SET LOCAL lock_timeout = '7s'"))
        schema.upgrade(connection)
        schema.verify(connection)
        assert connection.scalar(text("SHOW lock_timeout")) == "7s"
        assert connection.scalar(text("SHOW statement_timeout")) == "0"
        transaction.rollback()
    assert state(database) == (None, None)
    with engine.begin() as connection:
        schema.upgrade(connection)
    assert schema.check(engine) is None


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "SERIALIZABLE", "REPEATABLE READ"])
def test_the_engines_isolation_level_does_not_matter(database: Any, level: Any) -> None:
    engine = create_engine(database.url, isolation_level=level)
    assert schema.upgrade(engine) == (None, HEAD)
    assert schema.check(engine) is None
    engine.dispose()


@pytest.mark.parametrize(("level", "why"), [("AUTOCOMMIT", "AUTOCOMMIT"), ("REPEATABLE READ", "READ COMMITTED transaction")])
def test_a_connection_that_cannot_carry_a_migration_is_refused(engine: Engine, database: Any, level: Any, why: str) -> None:
    with engine.connect().execution_options(isolation_level=level) as connection, pytest.raises(ConfigurationError, match=why):
        schema.upgrade(connection)
    assert state(database) == (None, None)


def test_the_settings_of_the_database_do_not_matter(database: Any, longer: Any) -> None:
    longer.write(up='op.execute("SELECT pg_sleep(0.5)")')
    name = make_url(database.url).database
    database.run(
        f"ALTER DATABASE {name} SET statement_timeout = '400ms'; ALTER DATABASE {name} SET default_transaction_isolation = 'serializable';"
        f"ALTER DATABASE {name} SET search_path = ''; ALTER DATABASE {name} SET default_transaction_read_only = on"
    )
    done = longer.command(database, "migrate").ended()
    assert (done.returncode, done.out) == (0, f"akter: created schema akter at {NEXT}\n"), done.err


def test_logging_is_left_as_it_is(engine: Engine) -> None:
    def configuration() -> Any:
        loggers = [logging.getLogger(), *(found for found in logging.root.manager.loggerDict.values() if isinstance(found, logging.Logger))]
        return {one.name: (one.level, one.disabled, one.propagate, list(one.handlers)) for one in loggers if "akter" not in one.name}

    before = configuration()
    schema.upgrade(engine)
    after = configuration()
    assert {name: after[name] for name in before} == before
    assert all(value == (logging.NOTSET, False, True, []) for name, value in after.items() if name not in before)


def test_no_lock_is_left(database: Any) -> None:
    schema.upgrade(database.engine)
    with pytest.raises(ConfigurationError):
        schema.upgrade(database.engine, "nope")
    schema.downgrade(database.engine, "base")
    assert database.rows("SELECT pid FROM pg_locks WHERE locktype = 'advisory'") == []
    assert database.rows("SELECT pid FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'") == []
