"""Django's migrations are akter's history: whoever migrates, all agree."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import pytest
import sqlalchemy

from akter import schema
from akter.schema_state import REVISIONS

HEAD = REVISIONS[-1]


def stamp(rows: Any, url: str, name: str) -> str | None:
    if rows(url, f"SELECT to_regclass('\"{name}\".alembic_version')") == [(None,)]:
        return None
    found = rows(url, f'SELECT version_num FROM "{name}".alembic_version')
    return str(found[0][0]) if found else None


def test_there_is_a_migration_for_each_revision_and_no_other() -> None:
    folder = resources.files("akter.contrib.django.migrations")
    names = sorted(path.name for path in folder.iterdir() if re.match(r"\d", path.name))
    found = [re.findall(r'AlembicRevision\("(\w+)"\)', (folder / name).read_text()) for name in names]
    assert found == [[revision] for revision in REVISIONS], "add the missing one-liner to akter/contrib/django/migrations"
    assert [f"akter_{name[:4]}" for name in names] == list(REVISIONS)


@pytest.mark.timeout(400)
def test_migrate_back_forward_and_all_agree(empty: Any, rows: Any, akter_schema: str) -> None:
    engine = sqlalchemy.create_engine(empty.url, poolclass=sqlalchemy.NullPool)
    for _ in range(2):
        done = empty.manage("migrate")
        assert done.code == 0, done.err
        assert stamp(rows, empty.url, akter_schema) == HEAD
        assert schema.check(engine, schema=akter_schema) is None
        again = empty.akter("--schema", akter_schema, "migrate")
        assert (again.code, again.out) == (0, f"akter: schema {akter_schema} is at {HEAD}: nothing to do\n")
        assert empty.manage("makemigrations", "--check", "--dry-run").code == 0
        back = empty.manage("migrate", "akter", "zero")
        assert back.code == 0, back.err
        assert stamp(rows, empty.url, akter_schema) is None
        assert rows(empty.url, f"SELECT relname FROM pg_class WHERE relnamespace = '\"{akter_schema}\"'::regnamespace") == []
    created = empty.akter("--schema", akter_schema, "migrate")
    assert created.out == f"akter: created schema {akter_schema} at {HEAD}\n"
    # What akter's command created, Django finds.
    done = empty.manage("migrate")
    assert done.code == 0, done.err
    assert schema.check(engine, schema=akter_schema) is None


def test_a_database_that_akter_took_back_is_taken_back_by_django_too(project: Any, rows: Any, akter_schema: str) -> None:
    schema.downgrade(sqlalchemy.create_engine(project.url, poolclass=sqlalchemy.NullPool), "base", schema=akter_schema)
    assert project.manage("migrate", "akter", "zero").code == 0
    assert project.manage("migrate").code == 0
    assert stamp(rows, project.url, akter_schema) == HEAD


def test_a_newer_schema_is_left_alone(empty: Any, rows: Any, akter_schema: str) -> None:
    engine = sqlalchemy.create_engine(empty.url, poolclass=sqlalchemy.NullPool)
    schema.upgrade(engine, schema=akter_schema)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE \"{akter_schema}\".alembic_version SET version_num = 'akter_9999'")
    assert empty.manage("migrate").code == 0
    assert stamp(rows, empty.url, akter_schema) == "akter_9999"
    back = empty.manage("migrate", "akter", "zero")
    assert back.code != 0
    assert "akter_9999, which is newer" in back.err
    assert stamp(rows, empty.url, akter_schema) == "akter_9999"


def test_the_sql_can_be_read_before(empty: Any, rows: Any, akter_schema: str) -> None:
    up, down = empty.manage("sqlmigrate", "akter", "0001"), empty.manage("sqlmigrate", "akter", "0001", "--backwards")
    assert up.code == down.code == 0, up.err + down.err
    assert f"CREATE TABLE {akter_schema}.actor_outbox" in up.out.replace('"', "")
    assert f"DROP TABLE {akter_schema}.actor_outbox" in down.out.replace('"', "")
    assert "Bring akter's schema to akter_0001" in empty.manage("migrate", "--plan").out


def test_another_database_is_migrated_by_its_alias_and_sqlite_is_passed_over(empty: Any, rows: Any, akter_schema: str) -> None:
    assert empty.manage("migrate", "--database", "other").code == 0
    assert stamp(rows, empty.other, akter_schema) == HEAD
    assert stamp(rows, empty.url, akter_schema) is None
    done = empty.manage("migrate", "--database", "lite")
    assert done.code == 0, done.err


def test_two_migrations_at_once_do_not_meet(empty: Any, rows: Any, akter_schema: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as threads:
        django = threads.submit(empty.manage, "migrate", "akter")
        akter = threads.submit(empty.akter, "--schema", akter_schema, "migrate")
        assert (django.result().code, akter.result().code) == (0, 0), django.result().err + akter.result().err
    assert stamp(rows, empty.url, akter_schema) == HEAD
