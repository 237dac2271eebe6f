"""An embedded PostgreSQL as an engine, which starts it when it is first needed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from akter.embedded import engine, engine_server, stop
from akter.errors import ConfigurationError


@pytest.fixture
def opened() -> Iterator[Callable[..., Engine]]:
    """Makes engines, and stops them."""
    engines: list[Engine] = []

    def make(target: object, **options: Any) -> Engine:
        engines.append(engine(f"embedded:{target}", **options))
        return engines[-1]

    yield make
    for made in engines:
        stop(made)


def execute(engine: Engine, statement: str) -> list[Any]:
    with engine.begin() as connection:
        result = connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []


def test_nothing_is_started_before_the_first_connection(opened: Callable[..., Engine], place: Path) -> None:
    made = opened(place / "data")
    assert not engine_server(made).started
    assert not (place / "data").exists()
    assert execute(made, "SELECT current_database()") == [("akter",)]
    assert engine_server(made).data == place / "data"


def test_processes_and_threads_that_connect_at_once_get_one_database(
    child: Callable[..., Any], place: Path, ends: Callable[[int], bool]
) -> None:
    processes = [child() for _ in range(3)]
    for process in processes:
        process.ask("engine", f"embedded:{place}/data")
        process.tell("query_in_threads", "SELECT current_database()")
    assert [process.answer() for process in processes] == [[[["akter"]]] * 8] * 3
    (pid,) = {process.ask("pid") for process in processes}
    for process in processes:
        process.kill()
    assert ends(pid)


def test_engines_on_one_directory_use_one_server(
    opened: Callable[..., Engine], data: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    first, second = opened("./data"), opened(data)
    assert engine_server(first) is engine_server(second)
    execute(first, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert execute(second, "SELECT answer FROM kept") == [(42,)]
    stop(first)
    assert engine_server(second).started
    stop(second)
    assert not engine_server(second).started
    assert execute(first, "SELECT answer FROM kept") == [(42,)]


def test_each_throw_away_database_is_its_own_and_ends_with_its_engine(opened: Callable[..., Engine]) -> None:
    first, second = opened(""), opened("")
    execute(first, "CREATE TABLE mine ()")
    assert execute(second, "SELECT FROM pg_tables WHERE tablename = 'mine'") == []
    stop(first)
    assert not engine_server(first).data.exists()
    assert execute(first, "SELECT FROM pg_tables WHERE tablename = 'mine'") == []


def test_the_server_ends_with_the_process(child: Callable[..., Any], ends: Callable[[int], bool], vanishes: Callable[[str], bool]) -> None:
    process = child()
    data = process.ask("engine", "embedded:")
    assert process.ask("query", "SELECT 1") == [[1]]
    pid = process.ask("pid")
    process.tell("leave", "exit")
    assert ends(pid)
    assert vanishes(data)
    process.popen.wait()
    assert process.popen.stderr.read() == ""


def test_a_crashed_server_is_started_again_by_the_next_connection(
    opened: Callable[..., Engine], data: Path, ends: Callable[[int], bool]
) -> None:
    made = opened(data, pool_pre_ping=True)
    execute(made, "CREATE TABLE kept AS SELECT 42 AS answer")
    ((backend,),) = execute(made, "SELECT pg_backend_pid()")
    os.kill(engine_server(made).pid, signal.SIGKILL)
    assert ends(backend)
    assert execute(made, "SELECT answer FROM kept") == [(42,)]


def test_a_forked_child_has_connections_of_its_own_to_the_same_server(child: Callable[..., Any], data: Path) -> None:
    process = child()
    process.ask("engine", f"embedded:{data}")
    (backend,) = process.ask("query", "SELECT pg_backend_pid()")
    pid = process.ask("pid")
    process.ask("fork")
    (forked,) = process.ask("query", "SELECT pg_backend_pid()")
    assert forked != backend
    assert process.ask("pid") == pid
    process.ask("stop_engine")
    process.tell("leave", "exit")
    assert process.answer()[0] == "parent"
    assert process.ask("query", "SELECT pg_backend_pid()") == [backend]


def test_a_forked_child_goes_on_when_its_parent_is_killed(child: Callable[..., Any], data: Path, ends: Callable[[int], bool]) -> None:
    process = child()
    process.ask("engine", f"embedded:{data}")
    process.ask("query", "CREATE TABLE kept AS SELECT 42 AS answer")
    process.ask("fork")
    assert process.ask("query", "SELECT answer FROM kept") == [[42]]
    process.kill()
    assert process.ask("query", "SELECT answer FROM kept") == [[42]]
    pid = process.ask("pid")
    process.tell("leave", "exit")
    assert ends(pid)


def test_the_options_are_those_of_any_engine(opened: Callable[..., Engine]) -> None:
    made = opened("", connect_args={"application_name": "mine"}, isolation_level="SERIALIZABLE", pool_size=1)
    assert execute(made, "SELECT current_setting('application_name'), current_setting('transaction_isolation')") == [
        ("mine", "serializable")
    ]


@pytest.mark.conformance("KILL-38")
@pytest.mark.parametrize("whose", ["ROLE postgres", "DATABASE akter", "ROLE postgres IN DATABASE akter"])
def test_relaxed_durability_of_a_role_or_a_database_is_refused(opened: Callable[..., Engine], data: Path, whose: str) -> None:
    made = opened(data)
    execute(made, f"ALTER {whose} SET synchronous_commit = off")
    stop(made)
    with pytest.raises(ConfigurationError, match=r"runs with synchronous_commit=off, .*RESET"):
        execute(made, "SELECT 1")
    assert not engine_server(made).started


@pytest.mark.parametrize("target", ["./data", "postgresql://", "embedded", "embedded://data", "embedded:///data"])
def test_another_target_is_refused(target: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write 'embedded:\./directory', or 'embedded:'"):
        engine(target)


def test_a_creator_of_connections_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="leave out `creator`"):
        engine("embedded:", creator=lambda: None)


def test_another_engine_has_no_embedded_server() -> None:
    other = create_engine("postgresql+psycopg://nowhere/nothing")
    with pytest.raises(ConfigurationError, match=r"make it with akter\.embedded\.engine\(\)"):
        engine_server(other)
