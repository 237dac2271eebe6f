"""One server: its first start, its crashes, its copies, its end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from akter.embedded import Server

CREATE = "CREATE TABLE kept AS SELECT 42 AS answer"
READ = "SELECT answer FROM kept"


def execute(server: Server, statement: str) -> list[Any]:
    with psycopg.connect(server.url(driver=""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with PostgreSQL."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.poll() is None, "the bystander was harmed"


def give_pid(server_data: Path, process: subprocess.Popen[bytes]) -> None:
    pidfile = server_data / "pgdata" / "postmaster.pid"
    pidfile.write_text("\n".join([str(process.pid), *pidfile.read_text().split("\n")[1:]]))


@pytest.mark.parametrize("account", ["this", "ordinary"], indirect=True)
def test_what_was_committed_is_there_at_the_next_start(child: Callable[..., Any], place: Path) -> None:
    first = child()
    first.ask("start", str(place / "data"))
    first.ask("sql", CREATE)
    first.ask("stop")
    assert child().ask("start", str(place / "data"))
    assert first.ask("start", str(place / "data"))
    assert first.ask("sql", READ) == [[42]]


def test_the_url_is_sqlalchemys_or_any_other_drivers(data: Path) -> None:
    with Server(data) as server:
        engine = create_engine(server.url())
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT current_database()")) == "postgres"
        engine.dispose()
        with psycopg.connect(server.url("template1", driver="")) as other:
            assert other.info.dbname == "template1"
        assert (server.host, server.port) == (str(data), 5432)


def test_a_data_directory_keeps_what_it_reported_as_committed(data: Path) -> None:
    with Server(data, settings={"max_connections": "17"}) as server:
        names = ("fsync", "full_page_writes", "synchronous_commit", "data_checksums", "max_connections", "listen_addresses")
        assert [execute(server, f"SHOW {name}")[0][0] for name in names] == ["on", "on", "on", "on", "17", ""]


def test_only_its_own_account_can_get_at_the_socket(place: Path) -> None:
    (place / "data").mkdir(mode=0o755)
    with Server(place / "data") as server:
        assert (place / "data").stat().st_mode & 0o777 == 0o700
        assert Path(server.host) == place / "data"


def test_starting_and_stopping_twice_is_harmless(data: Path, ends: Callable[[int], bool]) -> None:
    server = Server(data)
    server.stop()
    pid = server.start().pid
    assert server.start().pid == pid
    server.stop()
    server.stop()
    assert ends(pid)
    with server:
        assert execute(server, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("account", ["this", "ordinary"], indirect=True)
def test_a_killed_server_recovers_every_commit(child: Callable[..., Any], data: Path, ends: Callable[[int], bool]) -> None:
    process = child()
    pid = process.ask("start", str(data))
    process.ask("sql", CREATE)
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)
    assert process.ask("start_again") != pid
    assert process.ask("sql", READ) == [[42]]


def test_a_process_and_its_server_killed_together_leave_every_commit(child: Callable[..., Any], data: Path) -> None:
    killed = child()
    pid = killed.ask("start", str(data))
    killed.ask("sql", CREATE)
    os.kill(pid, signal.SIGKILL)
    killed.kill()
    process = child()
    process.ask("start", str(data))
    assert process.ask("sql", READ) == [[42]]


def test_a_bystander_with_the_pid_of_a_crashed_server_is_not_taken_for_it(
    data: Path, ends: Callable[[int], bool], bystander: subprocess.Popen[bytes]
) -> None:
    with Server(data) as server:
        execute(server, CREATE)
        os.kill(pid := server.pid, signal.SIGKILL)
        assert ends(pid)
        give_pid(server.data, bystander)
        assert server.start().pid != bystander.pid
        assert execute(server, READ) == [(42,)]


def test_a_bystander_with_the_pid_of_a_crashed_server_is_not_stopped(
    data: Path, ends: Callable[[int], bool], bystander: subprocess.Popen[bytes]
) -> None:
    with Server(data) as server:
        os.kill(pid := server.pid, signal.SIGKILL)
        assert ends(pid)
        give_pid(server.data, bystander)
    assert bystander.poll() is None


def test_a_copy_of_a_stopped_directory_runs_elsewhere(data: Path, place: Path) -> None:
    with Server(data) as server:
        execute(server, CREATE)
    shutil.copytree(data, place / "restored")
    with server, Server(place / "restored") as restored:
        execute(server, "UPDATE kept SET answer = 0")
        assert execute(restored, READ) == [(42,)]


def test_a_copy_of_a_running_directory_is_not_mistaken_for_the_original(data: Path, place: Path) -> None:
    with Server(data) as server:
        execute(server, CREATE)
        shutil.copytree(data, place / "copy", ignore=shutil.ignore_patterns(".s.PGSQL.5432"))
        with Server(place / "copy") as copy:
            assert copy.pid != server.pid
            execute(server, "UPDATE kept SET answer = 0")
            assert execute(copy, READ) == [(42,)]
        assert execute(server, READ) == [(0,)]


@pytest.mark.parametrize("name", ["a" * 150, "it's, so; %s * & so", "größer"], ids=["long", "quotes", "letters"])
def test_a_directory_may_have_any_name(place: Path, name: str) -> None:
    with Server(place / name / "data") as server:
        host = Path(server.host)
        assert execute(server, "SELECT 1") == [(1,)]
        assert execute(server.start(), "SELECT 1") == [(1,)]
    assert host == server.data or not host.exists()


def test_an_empty_file_system_may_be_the_data_directory(place: Path) -> None:
    (place / "data" / "lost+found").mkdir(parents=True)
    with Server(place / "data") as server:
        assert execute(server, "SELECT 1") == [(1,)]


def test_the_callers_locale_and_postgresql_settings_do_not_matter(child: Callable[..., Any], place: Path) -> None:
    nonsense = {"LC_ALL": "xx_YY.nonsense", "PGDATA": "/nonexistent", "PGPORT": "1", "PGHOST": "nowhere", "PGOPTIONS": "-c nonsense=1"}
    process = child(**nonsense, PYTHONUTF8="1")
    process.ask("start", str(place / "data"))
    process.close()
    again = child(LC_ALL="xx_YY.nonsense", PYTHONUTF8="1")
    again.ask("start", str(place / "data"))
    assert again.ask("sql", "SELECT 'B' < 'a', current_setting('server_encoding'), current_setting('TimeZone')") == [[True, "UTF8", "UTC"]]


def test_a_first_start_that_was_killed_half_way_is_done_again(place: Path) -> None:
    half = place / "data" / "pgdata.init-killed"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with Server(place / "data") as server:
        assert execute(server, "SELECT 1") == [(1,)]
    assert not half.exists()


def test_a_temporary_server_is_fast_and_removed_at_its_end() -> None:
    server = Server.temporary({"max_connections": "17"})
    assert not server.data.exists()
    with server:
        assert [execute(server, f"SHOW {name}") for name in ("fsync", "max_connections")] == [[("off",)], [("17",)]]
        execute(server, CREATE)
    assert not server.data.exists()
    with server:
        assert execute(server, "SELECT FROM pg_tables WHERE tablename = 'kept'") == []
    assert not server.data.exists()


def test_a_temporary_server_recovers_while_it_is_used(ends: Callable[[int], bool]) -> None:
    with Server.temporary() as server:
        execute(server, CREATE)
        os.kill(pid := server.pid, signal.SIGKILL)
        assert ends(pid)
        assert execute(server.start(), READ) == [(42,)]


@pytest.mark.parametrize(
    ("account", "way"), [("this", "exit"), ("this", "_exit"), ("this", "kill"), ("ordinary", "kill")], indirect=["account"]
)
def test_a_temporary_server_is_removed_however_its_process_ends(
    child: Callable[..., Any], ends: Callable[[int], bool], vanishes: Callable[[str], bool], way: str
) -> None:
    process = child()
    pid = process.ask("start", "")
    data = process.ask("data")
    assert Path(data).exists()
    process.kill() if way == "kill" else process.tell("leave", way)
    assert ends(pid)
    assert vanishes(data)
