"""The application's role needs the documented grants and no more; the owner needs no rights on the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

from akter import schema, schema_state
from akter.errors import SchemaError
from akter.tables import metadata

HEAD = schema_state.REVISIONS[-1]


class Roles:
    """The schema's owner, who may not create schemas, and the application."""

    def __init__(self, database: Any) -> None:
        self.owner, self.app = f"owner-{uuid4().hex[:6]}", f"app-{uuid4().hex[:6]}"
        self.owner_url, self.app_url = database.as_role(self.owner), database.as_role(self.app)


@pytest.fixture
def roles(database: Any) -> Iterator[Roles]:
    roles = Roles(database)
    database.run(
        f'CREATE ROLE "{roles.owner}" LOGIN; CREATE ROLE "{roles.app}" LOGIN; REVOKE ALL ON SCHEMA public FROM public;'
        f'CREATE SCHEMA akter AUTHORIZATION "{roles.owner}"; CREATE SCHEMA akter_views AUTHORIZATION "{roles.owner}"'
    )
    yield roles
    database.run(f'DROP OWNED BY "{roles.app}"; DROP OWNED BY "{roles.owner}" CASCADE; DROP ROLE "{roles.owner}", "{roles.app}"')


def test_the_owner_of_an_existing_schema_needs_no_right_to_create_one(database: Any, roles: Roles) -> None:
    done = database.akter("migrate", url=roles.owner_url)
    assert (done.returncode, done.out) == (0, f"akter: created schema akter at {HEAD}\n"), done.err
    database.run(f'SET ROLE "{roles.owner}"; ' + schema.sql(HEAD, "base") + schema.sql())
    assert schema.check(database.engine) is None


def test_without_the_right_to_create_it_the_error_says_who_should_run_it(database: Any, roles: Roles) -> None:
    done = database.akter("--schema", "other", "migrate", url=roles.owner_url)
    assert done.returncode == 1
    assert "permission denied for database" in done.err
    assert "run this as the owner" in done.err
    assert "Traceback" not in done.err


def test_where_only_the_schema_of_the_views_is_missing_the_error_says_what_to_run(database: Any, roles: Roles) -> None:
    database.run("DROP SCHEMA akter_views")
    done = database.akter("migrate", url=roles.owner_url)
    assert done.returncode == 1
    remedy = f'CREATE SCHEMA "akter_views" AUTHORIZATION "{roles.owner}"'
    assert done.err.endswith(f"{remedy}\n")
    owner = create_engine(roles.owner_url)
    database.run(remedy)
    schema.upgrade(owner, "akter_0002")
    database.run("DROP SCHEMA akter_views")
    with pytest.raises(SchemaError, match=f"let the owner of the database run {remedy}"):
        schema.upgrade(owner)
    owner.dispose()
    database.run(remedy)
    done = database.akter("migrate", url=roles.owner_url)
    assert (done.returncode, done.out) == (0, f"akter: schema akter went from akter_0002 to {HEAD}\n"), done.err


def test_without_grants_verifying_says_which_are_missing(database: Any, roles: Roles) -> None:
    schema.upgrade(database.engine)
    engine = create_engine(roles.app_url)
    with engine.connect() as connection, pytest.raises(SchemaError, match="akter grants"):
        schema.verify(connection)
    engine.dispose()


def test_with_the_printed_grants_the_application_works_and_can_do_no_more(
    database: Any, roles: Roles, longer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert database.akter("migrate", url=roles.owner_url).returncode == 0
    printed = database.akter("grants", roles.app)
    assert printed.returncode == 0
    with psycopg.connect(roles.owner_url.replace("+psycopg", "")) as connection:
        connection.execute(printed.out.encode())

    engine = create_engine(roles.app_url)
    with engine.begin() as connection:
        schema.verify(connection)
        for table in metadata.sorted_tables:
            connection.execute(table.select())
            connection.execute(table.delete())
        connection.execute(text("INSERT INTO akter.actor_placements VALUES ('Counter', 'actor', 1)"))
        connection.execute(text("INSERT INTO akter.actor_generations VALUES (0, 1, '', 'Counter', 'a')"))
        connection.execute(text("SELECT FROM akter.actor_generations FOR NO KEY UPDATE"))
        connection.execute(text("UPDATE akter.actor_generations SET event_sequence = 1"))
        connection.execute(text("INSERT INTO akter.actor_deployment DEFAULT VALUES"))
    for forbidden in (
        "CREATE TABLE akter.mine (x int)",
        "DROP TABLE akter.actor_state",
        "ALTER TABLE akter.actor_state ADD COLUMN x int",
        "TRUNCATE akter.actor_state",
        "UPDATE akter.alembic_version SET version_num = 'x'",
        "CREATE SCHEMA more",
    ):
        with engine.begin() as connection, pytest.raises(ProgrammingError, match=r"permission denied|must be owner"):
            connection.execute(text(forbidden))
    for verb in (("migrate", "--check"), ("migrate",)):
        assert database.akter(*verb, url=roles.app_url).returncode == 0

    longer.write(up='op.execute(f"CREATE TABLE {schema}.actor_notes (x int)")')
    longer.use(monkeypatch)
    owner = create_engine(roles.owner_url)
    schema.upgrade(owner)
    with engine.begin() as connection:
        schema.verify(connection)
        connection.execute(text("INSERT INTO akter.actor_notes VALUES (1)"))
    owner.dispose()
    engine.dispose()
