"""An embedded database whose server and client are killed, and one that is copied and carried on elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from akter import Actor, Akter, Attempt, CommandExpired, CommandId, Job, command, query
from akter.embedded import Server, engine_server, stop
from akter.runner import Runner
from akter.testing import advance, child


class Counter(Actor):
    """Counts."""

    count: int = 0

    @command
    def increment(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @query
    def value(self) -> int:
        return self.count


def call(attempt: Attempt, journal: str) -> str:
    """A job's function: every call leaves a line in a file that knows nothing of transactions."""
    with open(journal, "a", encoding="utf-8") as file:
        file.write(f"call {attempt.number}\n")
    return attempt.job_id


class Desk(Actor):
    """Asks for a message and for a job in one turn, and keeps what comes of them."""

    heard: list[str] = []  # noqa: RUF012 - a state field's default is copied
    calling = Job(call)

    @command
    def ask(self, journal: str) -> None:
        self.send(self.actor(Desk, "other").note, journal)
        self.enqueue(self.calling, journal=journal)

    @command
    def note(self, journal: str) -> None:
        with open(journal, "a", encoding="utf-8") as file:
            file.write("note\n")
        self.heard = [*self.heard, "note"]

    @calling.on_success
    def called(self, job: str) -> None:
        self.heard = [*self.heard, "called"]


def ask(target: str, journal: str) -> None:
    """Commit a message and a job that nobody carries out yet."""
    with Akter(target, actors=[Desk]) as app:
        app.migrate()
        with app.command_id("ask"):
            app.actor(Desk, "one").ask(journal)


def carry_out(target: str) -> None:
    """Do what is due, in a database that a killed server left."""
    with Akter(target, actors=[Desk]) as app:
        runner = Runner(app, listen=False)
        runner.drain()
        # What a dead process held waits for the end of its lease.
        advance(app, timedelta(minutes=5), runner)
        runner.stop()


def increment(target: str, id: str, by: int) -> tuple[int, int]:
    """Increment once under this id; the answer, and the pid of the server it ran on."""
    with Akter(target, actors=[Counter]) as app:
        app.migrate()
        with app.command_id(id):
            return app.actor(Counter, "visits").increment(by), engine_server(app.engine).pid


def stored(data: Path) -> list[Any]:
    """What is in the database, read by nothing of akter's actors."""
    with Server(data) as server, psycopg.connect(server.url("akter", driver="")) as connection:
        rows = connection.execute("SELECT value->>'count', (SELECT count(*) FROM akter.actor_receipts) FROM akter.actor_state")
        return rows.fetchall()


@pytest.mark.conformance("KILL-33")
@pytest.mark.parametrize("order", ["server first", "client first"])
def test_the_last_commit_is_recovered_and_answered(place: Path, order: str) -> None:
    target = f"embedded:{place / 'data'}"
    with child(increment, target, "first", 2, stop_at="after_commit") as process:
        process.wait_reached()
        server = _postmaster(place / "data")
        if order == "client first":
            process.kill()
        # A server without clients ends by itself, perhaps before it is killed.
        with contextlib.suppress(ProcessLookupError):
            _kill(server)
        process.kill()
    assert stored(place / "data") == [("2", 1)]
    with child(increment, target, "first", 2) as process:
        assert process.wait()[0] == 2
    with child(increment, target, "second", 5) as process:
        assert process.wait()[0] == 7
    assert stored(place / "data") == [("7", 2)]


@pytest.mark.conformance("KILL-33")
def test_a_turn_goes_on_under_its_id_when_the_server_was_killed_in_its_middle(place: Path) -> None:
    with child(increment, f"embedded:{place / 'data'}", "first", 2, stop_at="before_commit") as process:
        process.wait_reached()
        _kill(killed := _postmaster(place / "data"))
        process.release()
        answer, server = process.wait()
    assert answer == 2
    assert server != killed
    assert stored(place / "data") == [("2", 1)]


@pytest.mark.conformance("KILL-34")
@pytest.mark.parametrize("point", [None, "after_claim", "before_commit", "after_commit"])
def test_what_the_outbox_holds_when_the_server_is_killed_is_carried_out_once(place: Path, tmp_path: Path, point: Any) -> None:
    target, journal = f"embedded:{place / 'data'}", tmp_path / "journal"
    with child(ask, target, str(journal), stop_at="after_commit") as process:
        process.wait_reached()
        _kill(_postmaster(place / "data"))
        process.kill()
    assert not journal.exists()
    if point is not None:
        with Server(place / "data") as server, psycopg.connect(server.url("akter", driver="")) as connection:
            ((message,),) = connection.execute("SELECT intent_id FROM akter.actor_outbox WHERE kind = 'intent'").fetchall()
        with child(carry_out, target, stop_at=point, command_id=message) as process:
            process.wait_reached()
            # The job has a thread of its own, whose first call must not be lost to the kill.
            end = time.monotonic() + 60
            while "call 1\n" not in (journal.read_text() if journal.exists() else ""):
                assert time.monotonic() < end, "the job was not called"
                time.sleep(0.01)
            _kill(_postmaster(place / "data"))
            process.kill()
    with child(carry_out, target) as process:
        process.wait(60)
    with Server(place / "data") as server, psycopg.connect(server.url("akter", driver="")) as connection:
        heard = connection.execute("SELECT actor_id, value->>'heard' FROM akter.actor_state ORDER BY actor_id").fetchall()
        assert heard == [("one", '["called"]'), ("other", '["note"]')]
        assert connection.execute("SELECT count(*) FROM akter.actor_outbox").fetchall() == [(0,)]
    lines = journal.read_text().splitlines()
    # A function, or a handler, whose process died before its commit runs again; nothing of it is kept twice.
    assert sorted(lines) == ["call 1", "note"] if point is None else {"call 1", "note"} <= set(lines)


@pytest.fixture
def original(place: Path) -> Iterator[Akter]:
    with Akter(f"embedded:{place / 'data'}", actors=[Counter], retry_window=timedelta(hours=1)) as app:
        app.migrate()
        yield app
        stop(app.engine)


@pytest.mark.conformance("KILL-36")
def test_a_stopped_copy_goes_on_elsewhere_and_refuses_ids_that_expired_meanwhile(place: Path, original: Akter) -> None:
    last, unused = original.mint_command_id(), original.mint_command_id()
    with original.command_id(last):
        assert original.actor(Counter, "visits").increment(by=2) == 2
    stop(original.engine)
    shutil.copytree(place / "data", place / "restored")
    assert original.actor(Counter, "visits").increment(by=40) == 42
    with Akter(f"embedded:{place / 'restored'}", actors=[Counter], retry_window=timedelta(hours=1)) as restored:
        visits = restored.actor(Counter, "visits")
        assert visits.value() == 2
        assert _again(restored, last) == 2
        advance(restored, timedelta(hours=1))
        for expired in (last, unused):
            with pytest.raises(CommandExpired):
                _again(restored, expired)
        assert visits.increment(by=3) == 5
        stop(restored.engine)
    assert original.actor(Counter, "visits").value() == 42


def _again(app: Akter, id: CommandId) -> int:
    with app.command_id(id):
        return app.actor(Counter, "visits").increment(by=2)


def _postmaster(data: Path) -> int:
    return int((data / "pgdata" / "postmaster.pid").read_text().split()[0])


def _kill(server: int) -> None:
    """Kill it, and wait until it is gone: a process that starts a server meanwhile would take it for one that runs."""
    os.kill(server, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        end = time.monotonic() + 30
        while psutil.Process(server).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end, "it does not die"
            time.sleep(0.005)
