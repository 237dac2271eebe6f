"""The history leads to exactly the tables of akter.tables, forwards, backwards and as SQL text."""

from __future__ import annotations

from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, MetaData, text

from akter import schema, schema_state
from akter.tables import metadata

HEAD = schema_state.REVISIONS[-1]
NEXT = f"akter_{len(schema_state.REVISIONS) + 1:04}"


def test_from_zero_it_leads_to_the_tables_of_the_library(make_database: Any, shared: Any) -> None:
    migrated, created = make_database().engine, make_database().engine
    assert schema.upgrade(migrated) == (None, schema_state.REVISIONS[-1])
    with created.begin() as connection:
        connection.execute(text("CREATE SCHEMA akter"))
        metadata.create_all(connection)
        wanted = shared.catalog(connection)
    with migrated.connect() as connection:
        assert shared.catalog(connection) == wanted
        context = MigrationContext.configure(connection, opts={**schema.options("akter"), "compare_type": True})
        assert compare_metadata(context, metadata) == []
        schema.verify(connection)


def test_the_list_of_revisions_is_the_history() -> None:
    config = Config()
    config.set_main_option("script_location", schema._location())
    script = ScriptDirectory.from_config(config)
    assert tuple(revision.revision for revision in reversed(list(script.walk_revisions()))) == schema_state.REVISIONS
    assert script.get_current_head() == schema_state.REVISIONS[-1]


def test_the_deployment_has_its_one_row(database: Any) -> None:
    schema.upgrade(database.engine)
    assert database.one("SELECT count(*) FROM akter.actor_deployment WHERE deployment_id <> '' AND min_library IS NULL") == 1


def test_every_revision_goes_back_and_forward_again(engine: Engine, shared: Any) -> None:
    def found() -> tuple[Any, Any]:
        with engine.connect() as connection:
            return shared.catalog(connection), shared.catalog(connection, "akter_views")

    for before, after in zip(("base", *schema_state.REVISIONS), schema_state.REVISIONS, strict=False):
        schema.upgrade(engine, after)
        there = found()
        schema.downgrade(engine, before)
        assert found() != there
        assert schema.upgrade(engine, after).after == after
        assert found() == there


def test_at_base_nothing_is_left_but_the_schema(database: Any) -> None:
    schema.upgrade(database.engine)
    assert schema.downgrade(database.engine, "base") == (schema_state.REVISIONS[-1], None)
    assert database.one("SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'akter'::regnamespace") == 0


def test_a_second_upgrade_changes_nothing(database: Any) -> None:
    schema.upgrade(database.engine)
    before = database.one("SELECT deployment_id FROM akter.actor_deployment")
    head = schema_state.REVISIONS[-1]
    assert schema.upgrade(database.engine) == (head, head)
    assert database.one("SELECT deployment_id FROM akter.actor_deployment") == before


def test_the_next_revision_is_applied_and_taken_back_alone(database: Any, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.upgrade(database.engine)
    longer.use(monkeypatch)
    assert schema.upgrade(database.engine) == (HEAD, NEXT)
    assert schema.upgrade(database.engine, HEAD) == (NEXT, NEXT), "an upgrade never goes back"
    assert schema.downgrade(database.engine, HEAD) == (NEXT, HEAD)


@pytest.mark.parametrize("transaction", [False, True])
def test_offline_sql_makes_what_an_upgrade_makes(make_database: Any, shared: Any, transaction: bool) -> None:
    online, offline = make_database(), make_database()
    schema.upgrade(online.engine)
    offline.run(schema.sql(transaction=transaction))
    with online.engine.connect() as one, offline.engine.connect() as other:
        assert shared.catalog(other) == shared.catalog(one)
        schema.verify(other)


def test_offline_and_online_steps_can_follow_each_other(database: Any, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    longer.use(monkeypatch)
    database.run(schema.sql("base", HEAD))
    assert schema.upgrade(database.engine) == (HEAD, NEXT)
    database.run(schema.sql(NEXT, "base"))
    assert schema.upgrade(database.engine, HEAD) == (None, HEAD)
    database.run(schema.sql(HEAD, NEXT))
    schema.downgrade(database.engine, "base")
    database.run(schema.sql())
    assert schema.upgrade(database.engine) == (NEXT, NEXT)


@pytest.mark.parametrize("name", ["other", "Order-1", "select"])
def test_another_schema_name_is_all_that_differs(engine: Engine, shared: Any, name: str) -> None:
    schema.upgrade(engine)
    schema.upgrade(engine, schema=name)
    with engine.connect() as connection:
        one, other = shared.catalog(connection), shared.catalog(connection, name)
        quoted = connection.dialect.identifier_preparer.quote_schema(name)
        assert {tuple(value and value.replace(f"{quoted}.", "akter.") for value in row) for row in other} == one
        schema.verify(connection, schema=name)
        assert (
            compare_metadata(MigrationContext.configure(connection, opts=schema.options(name)), schema.options(name)["target_metadata"])
            == []
        )


def test_two_installs_in_one_database_never_meet(database: Any, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.upgrade(database.engine)
    schema.upgrade(database.engine, schema="other")
    longer.use(monkeypatch)
    assert schema.upgrade(database.engine, schema="other") == (HEAD, NEXT)
    assert database.one("SELECT version_num FROM akter.alembic_version") == HEAD
    assert schema.drop(database.engine)
    assert database.one("SELECT count(*) FROM other.actor_deployment") == 1


def test_offline_sql_of_another_schema_names_no_other(database: Any) -> None:
    script = schema.sql(schema="other")
    assert "akter." not in script.replace("akter: ", "")
    database.run(script)
    assert schema.check(database.engine, schema="other") is None


def test_a_new_revision_is_written_as_the_others_are(engine: Engine, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (longer.folder / "versions" / f"{NEXT}.py").unlink()
    config = Config()
    config.set_main_option("script_location", str(longer.folder))
    command.revision(config, "Nothing yet", rev_id=NEXT)
    longer.use(monkeypatch)
    assert schema.upgrade(engine, schema="other") == (None, NEXT)
    assert schema.downgrade(engine, HEAD, schema="other") == (NEXT, HEAD)


class TestForeignAutogenerate:
    """An application's `alembic revision --autogenerate` next to akter."""

    def found(self, engine: Engine, own: MetaData, **options: Any) -> list[Any]:
        with engine.connect() as connection:
            return list(compare_metadata(MigrationContext.configure(connection, opts=options), own))

    @pytest.fixture
    def own(self, database: Any) -> MetaData:
        """The application's tables, in the database already."""
        from sqlalchemy import Column, Integer, Table

        own = MetaData()
        Table("shop", own, Column("id", Integer, primary_key=True))
        own.create_all(database.engine)
        schema.upgrade(database.engine)
        return own

    def test_proposes_nothing(self, engine: Engine, own: MetaData) -> None:
        assert self.found(engine, own) == []

    def test_would_drop_the_tables_if_it_looked_into_all_schemas(self, engine: Engine, own: MetaData) -> None:
        assert self.found(engine, own, include_schemas=True)

    def test_proposes_nothing_with_include_name(self, engine: Engine, own: MetaData) -> None:
        assert self.found(engine, own, include_schemas=True, include_name=schema.include_name) == []
