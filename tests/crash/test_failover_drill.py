"""A primary that is killed while a standby follows it, and a copy that is made while turns run: what was answered is there, once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
import sqlalchemy

from akter import Actor, Akter, Event, Rejection, command
from akter.embedded import Server
from akter.embedded.watcher import lives, postmaster
from akter.runner import Runner
from akter.testing import inspect

SEED = 11
WORKERS = 4
ACCOUNTS = 3
SETTINGS = {"wal_level": "replica", "max_wal_senders": "4", "max_connections": "60", "wal_retrieve_retry_interval": "200ms"}


ran: list[str] = []
"""What handlers were called for, whether it was committed or not."""


class Overdrawn(Rejection):
    """There is not enough in the account."""


class Moved(Event):
    """Money moved."""

    amount: int


class Account(Actor):
    """Money; `runs` has the ids of the handlers that committed."""

    balance: int = 0
    moves: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def move(self, name: str, amount: int) -> int:
        if self.balance + amount < 0:
            raise Overdrawn
        ran.append(name)
        self.balance += amount
        self.moves = [*self.moves, name]
        self.emit(Moved(amount=amount))
        self.send(self.actor(Account, f"copy of {self.id}").mirror, name)
        return self.balance

    @command
    def mirror(self, name: str) -> None:
        self.moves = [*self.moves, name]


class Pair:
    """A primary and a standby that every commit waits for, and the application's engine, which finds the one that takes writes."""

    def __init__(self, place: Path, ended: list[Callable[[], object]]) -> None:
        self.primary = Server(place / "one", settings=SETTINGS)
        with self.primary as server, Akter(sqlalchemy.create_engine(_created(server)), actors=[Account]) as app:
            app.migrate()
            app.engine.dispose()
        shutil.copytree(place / "one", place / "two")
        self.standby = Server(place / "two", settings={**SETTINGS, "hot_standby_feedback": "on"})
        files = place / "two" / "pgdata"
        (files / "standby.signal").touch()
        with (files / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = 'host={place / 'one'} port=5432 user=postgres application_name=two'\n")
        ended += [self.standby.stop, self.primary.stop]
        self.primary = Server(place / "one", settings={**SETTINGS, "synchronous_standby_names": "two"}).start()
        self.standby.start()
        hosts = f"host={place / 'one'}:5432&host={place / 'two'}:5432"
        self.engine = sqlalchemy.create_engine(f"postgresql+psycopg://postgres@/akter?{hosts}&target_session_attrs=read-write")
        ended.insert(0, self.engine.dispose)
        _until(lambda: self.at_primary("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1)

    def at_primary(self, statement: str) -> Any:
        return _one(self.primary, statement)

    def at_standby(self, statement: str) -> Any:
        return _one(self.standby, statement)

    def fail_over(self) -> None:
        """Kill the primary, and let the standby take its place."""
        found = postmaster(self.primary.data)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        _until(lambda: not lives(self.primary.data, found))
        self.standby.start()
        assert self.at_standby("SELECT pg_promote(true, 60)")


def _created(server: Server) -> str:
    with psycopg.connect(server.url(driver=""), autocommit=True) as connection:
        connection.execute("CREATE DATABASE akter")
    return server.url("akter")


def _one(server: Server, statement: str) -> Any:
    with psycopg.connect(server.url("akter", driver=""), autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def _until(so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not so():
        assert time.monotonic() < end, "not within a minute"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@pytest.fixture
def ended() -> Iterator[list[Callable[[], object]]]:
    """What is to be done at the end."""
    found: list[Callable[[], object]] = []
    yield found
    for each in found:
        each()


@pytest.fixture
def pair(place: Path, ended: list[Callable[[], object]]) -> Pair:
    return Pair(place, ended)


@pytest.fixture
def app(pair: Pair) -> Iterator[Akter]:
    with Akter(pair.engine, actors=[Account], delivery=90.0) as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(WORKERS + 1) as threads:
        yield threads.submit


def move(app: Akter, id: str, account: str = "a", amount: int = 10) -> Any:
    with app.command_id(id):
        try:
            return app.actor(Account, account).move(id, amount)
        except Overdrawn:
            return "overdrawn"


WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.mark.conformance("KILL-41")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("arrived", [True, False], ids=["the standby has the commit", "the standby has it not"])
def test_a_turn_whose_primary_is_killed_in_its_commit_is_resolved_by_the_receipt_at_its_successor(
    pair: Pair, app: Akter, start: Callable[..., Future[Any]], arrived: bool
) -> None:
    assert move(app, "first") == 10
    if arrived:
        # It has what it is sent on disk, and says so, but the commit waits for it to be seen there, too.
        with psycopg.connect(pair.primary.url(driver=""), autocommit=True) as connection:
            connection.execute("ALTER DATABASE akter SET synchronous_commit = remote_apply")
        pair.engine.dispose()
        pair.at_standby("SELECT pg_wal_replay_pause()")
    else:
        pair.standby.stop()
    call = start(move, app, "second")
    _until(lambda: pair.at_primary(WAITS) == 1)
    if arrived:
        sent = pair.at_primary("SELECT pg_current_wal_flush_lsn()")
        _until(lambda: pair.at_standby(f"SELECT pg_last_wal_receive_lsn() >= '{sent}'"))
    assert not call.done()
    pair.fail_over()
    assert call.result(90) == 20
    pair.engine.dispose()
    found = inspect(app, app.actor(Account, "a"))
    assert found.state == {"balance": 20, "moves": ["first", "second"]}
    assert len(found.receipts) == len(found.events) == len(found.outbox) == found.version == 2
    assert ran == ["first", "second"] if arrived else ["first", "second", "second"]


@pytest.mark.conformance("KILL-42")
@pytest.mark.timeout(300)
def test_seeded_commands_that_meet_a_failover_happen_once_and_answers_that_were_given_hold(
    pair: Pair, app: Akter, start: Callable[..., Future[Any]]
) -> None:
    random = Random(SEED)
    wanted = [(f"move {number}", f"a{random.randrange(ACCOUNTS)}", random.randint(-60, 100)) for number in range(400)]
    answers: dict[str, Any] = {}
    asked = iter(wanted)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                one = next(asked, None)
            if one is None:
                return
            answers[one[0]] = move(app, *one)

    workers = [start(work) for _ in range(WORKERS)]
    _until(lambda: len(answers) > 40)
    before = len(answers)
    pair.fail_over()
    for worker in workers:
        worker.result(120)
    assert before < len(wanted) - WORKERS, "the failover came too late to meet anything"
    pair.engine.dispose()
    runner = Runner(app, listen=False)
    runner.drain()
    runner.stop()
    judge(app, wanted, answers)


def judge(app: Akter, wanted: list[tuple[str, str, int]], answers: dict[str, Any]) -> None:
    """Every command has one receipt, which says what was answered; states, events and messages are those of the receipts."""
    kept: dict[str, Any] = {}
    for account in {account for _, account, _ in wanted}:
        found = inspect(app, app.actor(Account, account))
        mine = [(name, amount) for name, of, amount in wanted if of == account]
        told = {receipt.command_id.rsplit(":", 1)[-1]: receipt.outcome for receipt in found.receipts}
        assert told.keys() == {name for name, _ in mine}
        moved = {name: amount for name, amount in mine if "ok" in told[name]}
        state = found.state or {"moves": [], "balance": 0}
        assert sorted(state["moves"]) == sorted(moved)
        assert state["balance"] == sum(moved.values())
        balances = [sum(moved[name] for name in state["moves"][: number + 1]) for number in range(len(moved))]
        assert balances == [told[name]["ok"] for name in state["moves"]]
        assert [event["sequence"] for event in found.events] == list(range(1, len(moved) + 1))
        mirrored = inspect(app, app.actor(Account, f"copy of {account}"))
        assert sorted((mirrored.state or {"moves": []})["moves"]) == sorted(moved)
        assert found.outbox == ()
        kept |= {name: outcome.get("ok", "overdrawn") for name, outcome in told.items()}
    assert answers == {name: kept[name] for name in answers}
    assert "overdrawn" in answers.values()


@pytest.mark.conformance("KILL-43")
@pytest.mark.timeout(300)
def test_a_copy_made_while_turns_run_is_restored_whole_and_answers_what_it_has(
    place: Path, ended: list[Callable[[], object]], start: Callable[..., Future[Any]]
) -> None:
    with Server(place / "live", settings=SETTINGS) as live:
        engine = sqlalchemy.create_engine(_created(live))
        ended.append(engine.dispose)
        with Akter(engine, actors=[Account]) as app:
            app.migrate()
            copied, wanted, answers = threading.Event(), list[tuple[str, str, int]](), dict[str, Any]()

            def work() -> None:
                random = Random(SEED)
                # It goes on for a while after the copy, so that the copy lacks what was answered last.
                after = 0
                while after < 20:
                    after += copied.is_set()
                    wanted.append((f"move {len(wanted)}", f"a{random.randrange(ACCOUNTS)}", random.randint(-60, 100)))
                    answers[wanted[-1][0]] = move(app, *wanted[-1])

            worker = start(work)
            _until(lambda: len(answers) > 40)
            _copy(live, place / "restored")
            copied.set()
            worker.result(90)
    restored = Server(place / "restored").start()
    ended.append(restored.stop)
    engine = sqlalchemy.create_engine(restored.url("akter"))
    ended.insert(0, engine.dispose)
    with Akter(engine, actors=[Account]) as app:
        there = _one(restored, "SELECT count(*) FROM akter.actor_receipts WHERE command = 'move'")
        assert 40 < there <= len(wanted) - 19
        runner = Runner(app, listen=False)
        runner.drain()
        judge(app, wanted[:there], {name: answers[name] for name, _, _ in wanted[:there]})
        before = list(ran)
        # Asked again, what it has is answered, and what it lacks happens now.
        assert [move(app, *one) for one in wanted] == [answers[name] for name, _, _ in wanted]
        assert set(ran[len(before) :]) == {name for name, _, _ in wanted[there:] if answers[name] != "overdrawn"}
        runner.drain()
        runner.stop()
        judge(app, wanted, answers)


def _copy(server: Server, to: Path) -> None:
    """Copy a server that runs, in the way that PostgreSQL's own backup does."""
    shutil.rmtree(to, ignore_errors=True)
    files = server.data / "pgdata"
    with psycopg.connect(server.url(driver=""), autocommit=True) as connection:
        connection.execute("SELECT pg_backup_start('copy', true)")
        to.mkdir()
        passing = shutil.ignore_patterns("postmaster.*", "pg_wal", "pgsql_tmp*")
        shutil.copytree(files, to / "pgdata", ignore=passing, copy_function=_copy_file)
        row = connection.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
        assert row is not None
        shutil.copytree(files / "pg_wal", to / "pgdata" / "pg_wal", copy_function=_copy_file)
        (to / "pgdata" / "backup_label").write_text(row[0])


def _copy_file(source: str, target: str) -> None:
    # What goes meanwhile is not needed: the log has it.
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)
