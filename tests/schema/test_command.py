"""The command's words and exit codes; what it does to the database is in the other modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from akter import cli, schema, schema_state
from akter.errors import ConfigurationError

HEAD = schema_state.REVISIONS[-1]
NEXT = f"akter_{len(schema_state.REVISIONS) + 1:04}"


def run(*arguments: str, url: str | None = None) -> Result:
    return CliRunner().invoke(cli.main, arguments, env={"AKTER_DATABASE_URL": url, "AKTER_SCHEMA": None})


def test_check_tells_whether_and_why(database: Any, longer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = run("migrate", "--check", url=database.url)
    assert (missing.exit_code, missing.output) == (1, "akter: the database has no akter tables in schema akter: run `akter migrate`\n")
    assert run("migrate", url=database.url).exit_code == 0
    fine = run("migrate", "--check", url=database.url)
    assert (fine.exit_code, fine.output) == (0, "akter: schema akter is what this library needs\n")
    longer.use(monkeypatch)
    old = run("migrate", "--check", url=database.url)
    assert (old.exit_code, old.output) == (1, f"akter: database at {HEAD}, library needs {NEXT}: run `akter migrate`\n")
    moved = run("migrate", url=database.url)
    assert (moved.exit_code, moved.output) == (0, f"akter: schema akter went from {HEAD} to {NEXT}\n")


def test_sql_is_printed_and_nothing_is_asked_of_a_database(database: Any) -> None:
    printed = run("migrate", "--sql")
    assert printed.exit_code == 0
    assert "BEGIN;" in printed.output
    assert "COMMIT;" in printed.output
    database.run(printed.output)
    assert run("migrate", "--check", url=database.url).exit_code == 0
    assert "DROP TABLE akter.actor_state" in run("migrate", "--sql", f"{HEAD}:base").output


def test_drop_asks_for_a_yes_and_drops_only_what_is_akters(database: Any) -> None:
    run("migrate", url=database.url)
    refused = run("drop", url=database.url)
    assert refused.exit_code == 1
    assert "say --yes" in refused.output
    assert schema.check(database.engine) is None
    database.run("CREATE SCHEMA shop; CREATE TABLE shop.orders (x int); CREATE VIEW public.counters AS SELECT * FROM akter.actor_state")
    foreign = run("--schema", "shop", "drop", "--yes", url=database.url)
    assert foreign.exit_code == 2
    assert "holds no akter table, but orders" in foreign.output
    dropped = run("drop", "--yes", url=database.url)
    assert (dropped.exit_code, dropped.output) == (0, "akter: dropped schema akter\n")
    again = run("drop", "--yes", url=database.url)
    assert (again.exit_code, again.output) == (0, "akter: there is no schema akter: nothing to do\n")
    assert database.one("SELECT to_regclass('shop.orders')") is not None


def test_the_schema_may_come_from_the_environment(database: Any) -> None:
    done = CliRunner().invoke(cli.main, ["--url", database.url, "migrate"], env={"AKTER_SCHEMA": "other"})
    assert done.output == f"akter: created schema other at {HEAD}\n"


@pytest.mark.parametrize(
    ("arguments", "url", "code", "words"),
    [
        (("migrate",), None, 2, "AKTER_DATABASE_URL"),
        (("migrate",), "mysql://me:hunter2@x/y", 2, "akter needs PostgreSQL"),
        (("migrate",), "postgresql+asyncpg://me:hunter2@x/y", 2, "akter needs the driver psycopg 3"),
        (("migrate",), "not a url", 2, "cannot be read"),
        (("migrate",), "postgres://me:hunter2@127.0.0.1:1/y", 1, "no way to the database"),
        (("migrate",), "postgres://me:hunter2@nowhere.invalid/y", 1, "no way to the database"),
        (("migrate", "--check"), "postgres://me:hunter2@127.0.0.1:1/y", 1, "no way to the database"),
        (("migrate", "akter_9999"), "postgres://me:hunter2@127.0.0.1:1/y", 2, "there is no revision 'akter_9999'"),
        (("migrate", "base"), "postgres://me:hunter2@127.0.0.1:1/y", 2, "does not lead to base"),
        (("migrate", "--sql", "akter_9999"), None, 2, "there is no revision 'akter_9999'"),
        (("migrate", "--sql", "--check"), None, 2, "exclude each other"),
        (("--schema", "public", "migrate"), "postgres://me:hunter2@127.0.0.1:1/y", 2, "cannot be akter's schema"),
        (("nonsense",), None, 2, "No such command"),
    ],
)
def test_what_is_wrong_is_said_in_words(arguments: tuple[str, ...], url: str | None, code: int, words: str) -> None:
    done = run(*arguments, url=url)
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit)
    assert words in done.output
    assert "hunter2" not in done.output


def test_a_password_in_an_error_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(*_: Any, **__: Any) -> None:
        raise ConfigurationError("could not use me and hunter2@home")

    monkeypatch.setattr(schema, "upgrade", leak)
    done = run("migrate", url="postgresql://me:hunter2@home@127.0.0.1:1/y")
    assert "could not use me and ***" in done.output


def test_a_command_of_another_module_is_imported_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def wave() -> None:
        """Wave."""
        click.echo("waving")

    monkeypatch.setitem(cli.ELSEWHERE, "wave", "akter.cli:wave")
    with pytest.raises(AttributeError):
        cli.main.get_command(click.Context(cli.main), "wave")
    monkeypatch.setattr(cli, "wave", wave, raising=False)
    assert run("wave").output == "waving\n"
    assert "wave" in run("--help").output


def test_python_dash_m_is_the_same_command(database: Any) -> None:
    assert database.akter("--version").out.startswith("akter, version ")


def test_the_help_says_in_a_whole_sentence_what_each_command_does() -> None:
    pages = {name: run(*name, "--help") for name in [(), ("actor",), ("letters",), ("outbox",), ("subscriptions",)]}
    assert [page.exit_code for page in pages.values()] == [0] * len(pages)
    for name, page in pages.items():
        listed = page.output.split("Commands:\n")[1].splitlines()
        assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == [], name
        assert len(listed) >= 2


def test_a_command_that_looks_makes_no_embedded_server(tmp_path: Path) -> None:
    for command in (("status",), ("doctor",), ("outbox", "list"), ("migrate", "--check")):
        looked = run(*command, url=f"embedded:{tmp_path / 'nowhere'}")
        assert looked.exit_code == 2, looked.output
        assert "run akter where your application runs, or `akter migrate` to make one" in looked.output
    assert list(tmp_path.iterdir()) == []
