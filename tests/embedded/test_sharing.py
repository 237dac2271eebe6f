"""Several processes on one data directory: they share a server, which ends with the last of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from akter.embedded import Server, watcher
from akter.errors import Unavailable


@pytest.mark.parametrize("account", ["this", "ordinary"], indirect=True)
def test_processes_that_race_for_the_first_start_share_one_server(
    child: Callable[..., Any], place: Path, ends: Callable[[int], bool]
) -> None:
    processes = [child() for _ in range(4)]
    for process in processes:
        process.tell("start", str(place / "data"))
    pids = {process.answer() for process in processes}
    assert len(pids) == 1
    processes[0].ask("sql", "CREATE TABLE kept AS SELECT 42 AS answer")
    for process in processes:
        assert process.ask("sql", "SELECT answer FROM kept") == [[42]]
        process.kill()
    assert ends(pids.pop())


@pytest.mark.parametrize("way", ["exit", "_exit", "kill", "stop"])
def test_the_server_stays_for_others_and_ends_with_the_last(
    child: Callable[..., Any], data: Path, ends: Callable[[int], bool], vanishes: Callable[[Path], bool], way: str
) -> None:
    def leave(process: Any) -> None:
        if way == "kill":
            process.kill()
        elif way == "stop":
            process.ask("stop")
        else:
            process.tell("leave", way)
            process.popen.wait()

    first, last = child(), child()
    pid = first.ask("start", str(data))
    assert last.ask("start", str(data)) == pid
    leave(first)
    with Server(data) as other:
        assert other.pid == pid
    assert last.ask("sql", "SELECT 1") == [[1]]
    leave(last)
    assert ends(pid)
    assert vanishes(data / "pgdata" / "postmaster.pid")


@pytest.mark.parametrize("account", ["this", "ordinary"], indirect=True)
def test_processes_killed_together_leave_no_server(child: Callable[..., Any], data: Path, ends: Callable[[int], bool]) -> None:
    processes = [child() for _ in range(4)]
    pids = {process.ask("start", str(data)) for process in processes}
    for process in processes:
        process.popen.kill()
    assert len(pids) == 1
    assert ends(pids.pop())


def test_a_process_killed_while_it_starts_leaves_nothing_in_the_way(
    child: Callable[..., Any], place: Path, vanishes: Callable[[Path], bool]
) -> None:
    appearing = [place / "data" / name for name in ("lock", "users", "pgdata", "pgdata/postmaster.pid")]
    for path in appearing:
        process = child()
        process.tell("start", str(place / "data"))
        while not path.exists() and process.popen.poll() is None:
            pass
        process.kill()
    assert vanishes(place / "data" / "pgdata" / "postmaster.pid")
    with Server(place / "data") as server, psycopg.connect(server.url(driver="")) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_a_server_that_one_process_started_again_is_the_others_too(
    child: Callable[..., Any], data: Path, ends: Callable[[int], bool]
) -> None:
    first, second = child(), child()
    pid = first.ask("start", str(data))
    second.ask("start", str(data))
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)
    again = first.ask("start_again")
    assert again != pid
    assert second.ask("start_again") == again
    first.ask("stop")
    assert second.ask("sql", "SELECT 1") == [[1]]


def test_two_servers_of_one_process_on_one_directory_count_as_two(data: Path) -> None:
    with Server(data) as first:
        with Server(data) as second:
            assert second.pid == first.pid
        with psycopg.connect(first.url(driver="")) as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_a_process_whose_watcher_was_killed_still_stops_the_server(data: Path, ends: Callable[[int], bool]) -> None:
    server = Server(data).start()
    pid = server.pid
    assert server._share is not None
    os.kill(server._share._watcher, signal.SIGKILL)
    server.stop()
    assert ends(pid)


@pytest.mark.parametrize("way", ["exit", "_exit"])
def test_a_forked_child_does_not_stop_the_server_of_its_parent(child: Callable[..., Any], data: Path, way: str) -> None:
    process = child()
    pid = process.ask("start", str(data))
    assert process.ask("fork")[0] == "child"
    process.ask("stop")
    process.tell("leave", way)
    assert process.answer()[0] == "parent"
    assert process.ask("pid") == pid
    assert process.ask("sql", "SELECT 1") == [[1]]


@pytest.mark.parametrize("account", ["this", "ordinary"], indirect=True)
def test_a_forked_child_that_uses_the_server_keeps_it(child: Callable[..., Any], data: Path, ends: Callable[[int], bool]) -> None:
    process = child()
    pid = process.ask("start", str(data))
    process.ask("fork")
    assert process.ask("sql", "SELECT 1") == [[1]]
    process.kill()
    assert process.ask("sql", "SELECT 1") == [[1]]
    assert process.ask("pid") == pid
    process.tell("leave", "_exit")
    assert ends(pid)


def test_a_forked_child_that_does_not_use_the_server_does_not_keep_it(
    child: Callable[..., Any], data: Path, ends: Callable[[int], bool]
) -> None:
    process = child()
    pid = process.ask("start", str(data))
    process.ask("fork")
    process.kill()
    assert ends(pid)
    assert process.ask("start_again") != pid


def test_a_forked_child_keeps_a_temporary_server(
    child: Callable[..., Any], ends: Callable[[int], bool], vanishes: Callable[[str], bool]
) -> None:
    process = child()
    pid = process.ask("start", "")
    data = process.ask("data")
    process.ask("fork")
    assert process.ask("pid") == pid
    process.kill()
    assert process.ask("sql", "SELECT 1") == [[1]]
    process.ask("stop")
    assert ends(pid)
    assert vanishes(data)


def test_a_start_that_another_process_holds_up_ends_and_names_that_process(
    child: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "HELD", 0.3)
    holder = child()
    pid = holder.ask("hold", str(data))
    server = Server(data)
    with pytest.raises(Unavailable, match=rf"{data} is held by process {pid} \(.*child\.py\), .* wait for it, or end it"):
        server.start()
    assert not server.started
    holder.kill()
    with server, psycopg.connect(server.url(driver="")) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_a_stop_that_another_process_holds_up_ends_and_leaves_the_server_to_its_next_user(
    child: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch, ends: Callable[[int], bool]
) -> None:
    monkeypatch.setattr(watcher, "HELD", 0.3)
    server, holder = Server(data).start(), child()
    pid, holding = server.pid, holder.ask("hold", str(data))
    with pytest.raises(Unavailable, match=rf"is held by process {holding} "):
        server.stop()
    assert not server.started
    holder.kill()
    with server:
        assert server.pid == pid
    assert ends(pid)


def test_a_lock_that_only_a_fork_still_holds_is_said_to_be_one(
    child: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "HELD", 0.3)
    holder = child()
    pid, forked = holder.ask("hold", str(data)), holder.ask("fork")[1]
    os.kill(pid, signal.SIGKILL)
    holder.popen.wait()
    with pytest.raises(Unavailable, match=rf"process {pid} \(which has ended, but not what it forked\)"):
        Server(data).start()
    os.kill(forked, signal.SIGKILL)


def test_a_server_that_recovers_is_waited_for(child: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than another process takes to join, which holds the lock meanwhile.
    monkeypatch.setattr(watcher, "HELD", 2.0)
    pidfile = data / "pgdata" / "postmaster.pid"
    with Server(data) as server:
        said, holder, second = pidfile.read_text(), child(), Server(data)
        pidfile.write_text(said.replace("ready", "starting"))
        holder.ask("hold", str(data))
        other = child()
        other.tell("start", str(data))
        waiting = threading.Thread(target=second.start)
        waiting.start()
        waiting.join(4.0)
        assert waiting.is_alive()
        holder.kill()
        # At once, since half a file is none.
        (data / "said").write_text(said)
        os.replace(data / "said", pidfile)
        waiting.join(20.0)
        with second:
            assert second.pid == server.pid
        assert other.answer() == server.pid
