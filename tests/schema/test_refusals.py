"""Where akter's tables cannot be made, nothing of them is: the refusal names the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text

from akter import Actor, Akter, command, schema
from akter.errors import ConfigurationError, SchemaError


class Counter(Actor):
    """Counts."""

    count: int = 0

    @command
    def increment(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture
def encoded(server: Any) -> Iterator[Callable[[str], str]]:
    """A function that makes a database of an encoding, and returns its URL."""
    admin = create_engine(server.url(), isolation_level="AUTOCOMMIT")
    made: list[str] = []

    def make(encoding: str) -> str:
        made.append(f"t{uuid4().hex[:12]}")
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {made[-1]} ENCODING '{encoding}' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"))
        return str(server.url(made[-1]))

    yield make
    with admin.connect() as connection:
        for name in made:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def schemas(url: str) -> list[str]:
    """The schemas of a database that are not PostgreSQL's own."""
    engine = create_engine(url, connect_args={"client_encoding": "utf8"})
    with engine.connect() as connection:
        found = connection.scalars(
            text("SELECT nspname::text FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)' ORDER BY 1")
        ).all()
    engine.dispose()
    return list(found)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_is_not_utf8_is_refused_before_anything_is_created(encoded: Callable[[str], str], encoding: str) -> None:
    url = encoded(encoding)
    app = Akter(url, actors=[Counter])
    for refused in (app.migrate, app.verify, app.actor(Counter, "a").increment):
        with pytest.raises(ConfigurationError, match=f"{encoding}.*createdb --encoding=UTF8 --template=template0"):
            refused()
    app.close()
    assert schemas(url) == ["public"]


@pytest.mark.parametrize("verb", ["migrate", "status", "health"])
def test_the_command_says_so_too(encoded: Callable[[str], str], database: Any, verb: str) -> None:
    done = database.akter(verb, url=encoded("SQL_ASCII"))
    assert done.returncode == 2
    assert "SQL_ASCII" in done.err
    assert "createdb --encoding=UTF8" in done.err
    assert "Traceback" not in done.err


def test_an_encoding_that_the_client_hides_is_seen(encoded: Callable[[str], str]) -> None:
    url = encoded("SQL_ASCII")
    engine = create_engine(url, connect_args={"client_encoding": "utf8"})
    with pytest.raises(ConfigurationError, match="encoded in SQL_ASCII"):
        schema.upgrade(engine)
    engine.dispose()
    assert schemas(url) == ["public"]


def test_without_rights_on_the_database_migrate_says_who_may(database: Any) -> None:
    role = f"guest-{uuid4().hex[:6]}"
    database.run(f'CREATE ROLE "{role}" LOGIN')
    app = Akter(database.as_role(role), actors=[Counter])
    remedy = f'CREATE SCHEMA "akter" AUTHORIZATION "{role}"; CREATE SCHEMA "akter_views" AUTHORIZATION "{role}"'
    with pytest.raises(SchemaError, match=f"may not create schema akter and akter_views in it.*{remedy}"):
        app.migrate()
    assert schemas(database.url) == ["public"]
    # The remedy, word for word.
    database.run(remedy)
    app.migrate()
    assert app.actor(Counter, "a").increment() == 1
    app.close()
    database.run(f'DROP OWNED BY "{role}" CASCADE; DROP ROLE "{role}"')


def test_without_rights_on_the_schema_migrate_says_whose_it_is_to_run(database: Any) -> None:
    role = f"guest-{uuid4().hex[:6]}"
    database.run(f'CREATE ROLE "{role}" LOGIN; CREATE SCHEMA akter; GRANT USAGE ON SCHEMA akter TO "{role}"')
    app = Akter(database.as_role(role), actors=[Counter])
    with pytest.raises(SchemaError, match="permission denied for schema akter: .* run this as the owner of the schema"):
        app.migrate()
    app.close()
    assert database.rows("SELECT relname FROM pg_class WHERE relnamespace = 'akter'::regnamespace") == []
    database.run(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_step_that_the_role_may_not_take_changes_nothing(database: Any, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.upgrade(database.engine)
    role = f"guest-{uuid4().hex[:6]}"
    database.run(f'CREATE ROLE "{role}" LOGIN; ' + schema.grants(role))
    longer.use(monkeypatch)
    engine = create_engine(database.as_role(role))
    with pytest.raises(SchemaError, match="must be owner of table actor_state: nothing was changed; run this as the owner"):
        schema.upgrade(engine)
    engine.dispose()
    assert database.one("SELECT version_num FROM akter.alembic_version") == longer.revisions[-2]
    database.run(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def test_a_wait_without_end_is_refused(database: Any) -> None:
    for wait in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ConfigurationError, match="wait is seconds between 0 and"):
            schema.upgrade(database.engine, wait=wait)
    assert schemas(database.url) == ["public"]
