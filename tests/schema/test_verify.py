"""A database that the library cannot work with is refused, in words that name the command to run."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event, text

import akter
from akter import schema, schema_state
from akter.errors import ConfigurationError, SchemaError, SchemaMissing, SchemaOutdated, SchemaTooNew
from akter.tables import metadata

HEAD = schema_state.REVISIONS[-1]
NEXT = f"akter_{len(schema_state.REVISIONS) + 1:04}"


def refusal(engine: Engine, kind: type[SchemaError], **options: Any) -> str:
    with engine.connect() as connection, pytest.raises(kind) as refused:
        schema.verify(connection, **options)
    assert schema.check(engine, **options) == str(refused.value)
    return str(refused.value)


def test_no_schema(engine: Engine) -> None:
    assert refusal(engine, SchemaMissing) == "the database has no akter tables in schema akter: run `akter migrate`"
    assert refusal(engine, SchemaMissing, schema="other").endswith("in schema other: run `akter --schema other migrate`")


def test_an_empty_schema(database: Any) -> None:
    database.run("CREATE SCHEMA akter")
    refusal(database.engine, SchemaMissing)


def test_tables_without_a_history(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA akter"))
        metadata.create_all(connection)
    refusal(engine, SchemaMissing)


def test_a_version_table_without_a_row(database: Any) -> None:
    schema.upgrade(database.engine)
    database.run("DELETE FROM akter.alembic_version")
    assert refusal(database.engine, SchemaMissing) == "schema akter is at no revision: run `akter migrate`"


def test_an_older_revision(engine: Engine, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.upgrade(engine)
    schema.upgrade(engine, schema="other")
    longer.use(monkeypatch)
    assert refusal(engine, SchemaOutdated) == f"database at {HEAD}, library needs {NEXT}: run `akter migrate`"
    assert refusal(engine, SchemaOutdated, schema="other").endswith("run `akter --schema other migrate`")


class TestANewerRevision:
    """What a library of the previous release sees during a rolling deploy."""

    @pytest.fixture(autouse=True)
    def newer(self, engine: Engine, longer: Any) -> None:
        with pytest.MonkeyPatch.context() as later:
            longer.use(later)
            schema.upgrade(engine)

    def test_is_fine_when_nothing_says_otherwise(self, engine: Engine) -> None:
        assert schema.check(engine) is None

    def test_is_left_alone_by_an_upgrade(self, engine: Engine) -> None:
        assert schema.upgrade(engine) == (NEXT, NEXT)

    def test_is_fine_when_this_library_is_new_enough(self, database: Any) -> None:
        database.run(f"UPDATE akter.actor_deployment SET min_library = '{akter.__version__}'")
        assert schema.check(database.engine) is None

    def test_is_refused_when_it_needs_a_newer_library(self, database: Any) -> None:
        database.run("UPDATE akter.actor_deployment SET min_library = '99.10'")
        assert refusal(database.engine, SchemaTooNew) == (
            f"database at {NEXT} needs akter 99.10 or newer, and this is {akter.__version__}: upgrade the package"
        )
        with pytest.raises(SchemaTooNew, match=r"99\.10"):
            schema.upgrade(database.engine)

    def test_is_not_taken_back_by_a_library_that_cannot(self, engine: Engine) -> None:
        with pytest.raises(SchemaTooNew, match=f"{NEXT}, which is newer than {HEAD}"):
            schema.downgrade(engine, "base")


@pytest.mark.parametrize(("least", "fine"), [("0.0.9", True), ("0.1", True), ("0.1.0.dev3", True), ("0.1.1", False), ("0.10", False)])
def test_versions_are_compared_as_numbers(database: Any, monkeypatch: pytest.MonkeyPatch, least: str, fine: bool) -> None:
    monkeypatch.setattr(akter, "__version__", "0.1.0")
    schema.upgrade(database.engine)
    database.run(f"UPDATE akter.actor_deployment SET min_library = '{least}'")
    assert (schema.check(database.engine) is None) == fine


def test_two_rows_in_the_version_table(database: Any) -> None:
    schema.upgrade(database.engine)
    database.run("INSERT INTO akter.alembic_version VALUES ('f00d')")
    assert f"holds {HEAD}, f00d" in refusal(database.engine, SchemaError)
    with pytest.raises(SchemaError, match=f"holds {HEAD}, f00d"):
        schema.upgrade(database.engine)


def test_another_history_in_the_version_table(database: Any) -> None:
    schema.upgrade(database.engine)
    database.run("UPDATE akter.alembic_version SET version_num = 'f00d'")
    assert "holds f00d, which is not akter's" in refusal(database.engine, SchemaError)


def test_a_revision_that_was_only_stamped(database: Any) -> None:
    database.run(f"CREATE SCHEMA akter; CREATE TABLE akter.alembic_version AS SELECT '{HEAD}' AS version_num")
    assert "a revision was skipped" in refusal(database.engine, SchemaOutdated)


@pytest.mark.parametrize("damage", ["DROP TABLE akter.actor_events CASCADE", "ALTER TABLE akter.actor_outbox DROP COLUMN waiting CASCADE"])
def test_a_table_or_column_that_is_not_there(database: Any, damage: str) -> None:
    schema.upgrade(database.engine)
    database.run(damage)
    message = refusal(database.engine, SchemaOutdated)
    assert damage.split(".")[1].split()[0] in message
    assert "a revision was skipped" in message


def test_it_is_one_query_and_leaves_no_transaction(engine: Engine) -> None:
    schema.upgrade(engine)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda _c, _k, statement, *_: statements.append(statement))
    with engine.connect() as connection:
        schema.verify(connection)
        assert not connection.in_transaction()
    assert len(statements) == 1


def test_a_refusal_leaves_the_callers_transaction_usable(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept (x int)"))
        with pytest.raises(SchemaMissing):
            schema.verify(connection)
        assert connection.scalar(text("SELECT count(*) FROM kept")) == 0


@pytest.mark.parametrize("name", ["public", "pg_akter", "information_schema", "", "a" * 64, 'a"b', "a.b", "a b", "a'b", "%s", ":a", "1a"])
def test_names_that_cannot_be_a_schema_of_its_own_are_refused_everywhere(engine: Engine, name: str) -> None:
    for use in (schema.upgrade, schema.check, schema.drop):
        with pytest.raises(ConfigurationError, match="cannot be akter's schema"):
            use(engine, schema=name)
    with pytest.raises(ConfigurationError, match="cannot be akter's schema"):
        schema.sql(schema=name)
    with pytest.raises(ConfigurationError, match="cannot be akter's schema"):
        schema.grants("app", schema=name)


def test_importing_and_verifying_does_not_import_alembic(database: Any) -> None:
    done = database.command(start=("-c", "import sys, akter.schema; sys.exit('alembic' in sys.modules)")).ended()
    assert done.returncode == 0
    assert schema_state.REVISIONS
