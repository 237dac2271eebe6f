"""Through pgbouncer in transaction mode: right, or a clear error that may be retried; never a wrong answer, never stuck."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url

from akter import Actor, Akter, Rejection, Unavailable, command, query
from akter.schema_state import views_schema
from akter.store.wire import Wire
from akter.testing import inspect, pause_next

BINARY = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"

pytestmark = pytest.mark.skipif(not os.path.exists(BINARY), reason="pgbouncer is not installed: apt-get install pgbouncer")

CONFIGURATION = """
[databases]
* = {target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
query_wait_timeout = 20
logfile = {folder}/log
"""


class Refused(Rejection):
    """It was refused."""


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @command
    def refuse(self) -> None:
        raise Refused

    @command(sql=True)
    def note(self, word: str) -> int:
        for _ in range(3):
            self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        self.balance += 1
        return self.balance

    @query
    def total(self) -> int:
        return self.balance

    @query(sql=True)
    def notes(self) -> int:
        return int(self.connection.execute(text("SELECT count(*) FROM notes")).scalar_one())


@pytest.fixture(scope="module")
def bouncer(akter_server: Callable[[str], str]) -> Iterator[Callable[[str], str]]:
    """A pgbouncer of two server connections, as a function from a database's URL to the one through it."""
    target = make_url(akter_server("postgres"))
    host = str(target.query.get("host") or target.host or "127.0.0.1")
    given = {"host": host, "port": target.query.get("port") or target.port or 5432, "user": target.username, "password": target.password}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="akter-bouncer-"))
    configuration = folder / "ini"
    parts = " ".join(f"{name}={value}" for name, value in given.items() if value)
    configuration.write_text(CONFIGURATION.format(target=parts, port=port, folder=folder))
    options: dict[str, Any] = {}
    if os.geteuid() == 0:
        # It refuses to be root, and the server's socket is for the server's account alone.
        owner = os.stat(host).st_uid if host.startswith("/") else 0
        account = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
        os.chown(folder, account.pw_uid, account.pw_gid)
        os.chown(configuration, account.pw_uid, account.pw_gid)
        options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    process = subprocess.Popen([BINARY, "-q", str(configuration)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)

    def through(url: str) -> str:
        made = URL.create("postgresql+psycopg", target.username, None, "127.0.0.1", port, make_url(url).database)
        return made.render_as_string(hide_password=False)

    try:
        for _ in range(400):
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(through("x:///postgres").replace("+psycopg", "")):
                break
            assert process.poll() is None, (folder / "log").read_text()
        yield through
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def app(
    bouncer: Callable[[str], str], akter_database: str, make_engine: Callable[..., Any], akter_app: Callable[..., Akter], observer: Any
) -> Akter:
    observer.rows("CREATE TABLE notes (word text)")
    return akter_app(Account, engine=make_engine(bouncer(akter_database), pool_size=8, max_overflow=0))


def test_a_pooler_is_noticed_when_a_connection_is_first_used(app: Akter, akter_app: Callable[..., Akter]) -> None:
    app.verify()
    with Wire(app.engine, app._statements) as wire:
        assert wire.pooled
    direct = akter_app(Account)
    with Wire(direct.engine, direct._statements) as wire:
        assert not wire.pooled


def test_turns_replays_rejections_own_sql_and_queries_work(app: Akter, observer: Any) -> None:
    account = app.actor(Account, "a")
    for number in range(1, 13):
        assert account.add(1) == number
    for _ in range(2):
        with app.command_id("once"):
            assert account.note("x") == 13
    with pytest.raises(Refused):
        account.refuse()
    for number in range(14, 24):
        assert account.note("y") == number
    assert (account.total(), account.notes()) == (23, 33)
    assert observer.one("SELECT count(*) FROM notes") == 33
    assert inspect(app, account).version == 23


def test_eight_threads_on_two_server_connections_count_every_command_once(app: Akter, observer: Any) -> None:
    answers: list[int] = []
    problems: list[BaseException] = []

    def work(thread: int) -> None:
        for number in range(25):
            for _ in range(2):
                try:
                    with app.command_id(f"{thread}-{number}"):
                        answer = app.actor(Account, "hot").add(1)
                except BaseException as problem:
                    problems.append(problem)
                    return
            answers.append(answer)
            app.actor(Account, f"own-{thread}").note("n")
            app.actor(Account, f"own-{thread}").total()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it is stuck"
    assert problems == []
    assert sorted(answers) == list(range(1, 201))
    assert app.actor(Account, "hot").total() == 200
    assert observer.one("SELECT count(*) FROM notes") == 600
    assert len(observer.sessions()) <= 2


def test_nothing_is_prepared_on_the_server_connections(app: Akter, akter_database: str, bouncer: Callable[[str], str]) -> None:
    account = app.actor(Account, "a")
    for _ in range(10):
        account.add(1)
        account.note("x")
        account.total()
        account.notes()
    raw = bouncer(akter_database).replace("+psycopg", "")
    # Two at once are the two server connections there are.
    with psycopg.connect(raw, prepare_threshold=None) as first, psycopg.connect(raw, prepare_threshold=None) as second:
        assert first.info.backend_pid != second.info.backend_pid
        for connection in (first, second):
            assert connection.execute("SELECT name, statement FROM pg_prepared_statements").fetchall() == []


def test_server_connections_that_are_all_in_turns_make_others_wait_or_say_so(
    bouncer: Callable[[str], str], akter_database: str, make_engine: Callable[..., Any], akter_app: Callable[..., Akter], aside: Any
) -> None:
    engine = make_engine(bouncer(akter_database), pool_size=8, max_overflow=0)
    app = akter_app(Account, engine=engine)
    app.actor(Account, "warm").add(1)
    with pause_next(app, "before_commit") as first, pause_next(app, "before_commit") as second:
        held = [aside(lambda name=name: app.actor(Account, name).add(1)) for name in ("a", "b")]
        first.wait()
        second.wait()
        third = aside(lambda: app.actor(Account, "c").add(1))
        first.release()
        second.release()
        assert [turn.answer() for turn in (*held, third)] == [1, 1, 1]


def test_a_pooler_that_restarts_in_the_middle_of_a_turn_costs_a_retry(app: Akter, observer: Any, aside: Any) -> None:
    app.actor(Account, "a").add(1)
    with pause_next(app, "before_commit") as pause:
        turn = aside(lambda: app.actor(Account, "a").add(10))
        pause.wait()
        observer.terminate(*observer.sessions("state = 'idle in transaction'"))
        pause.release()
        assert turn.answer() == 11
    app.engine.dispose()
    assert len(inspect(app, app.actor(Account, "a")).receipts) == 2


def test_discarded_statements_behind_our_back_heal_by_themselves(akter_app: Callable[..., Akter], observer: Any) -> None:
    """What an unnoticed pooler does: statements prepared on a connection are gone, or another client's are there."""
    observer.rows("CREATE TABLE notes (word text)")
    app = akter_app(Account)
    account = app.actor(Account, "a")
    account.note("warm")
    account.total()
    for sql in (b"DISCARD ALL", b"DEALLOCATE ALL"):
        for ask, change in ((lambda: account.add(1), 1), (account.total, 0), (lambda: account.note("x"), 1)):
            right = account.total() + change
            with Wire(app.engine, app._statements) as wire:
                wire._driver.pgconn.exec_(sql)
            assert ask() == right


def test_statements_that_another_client_left_on_the_connection_heal_by_themselves(akter_app: Callable[..., Akter]) -> None:
    app = akter_app(Account)
    app.actor(Account, "a").add(1)
    with Wire(app.engine, app._statements) as wire:
        wire._link.prepared.clear()
    assert app.actor(Account, "a").add(1) == 2


def test_plans_that_a_migration_made_stale_heal_by_themselves(akter_app: Callable[..., Akter], observer: Any, akter_schema: str) -> None:
    observer.rows("CREATE TABLE notes (word text)")
    observer.rows("INSERT INTO notes VALUES ('x')")
    app = akter_app(Reader)
    reader = app.actor(Reader, "r")
    for _ in range(8):
        # From the sixth time on, the driver has it prepared.
        assert reader.read() == 1
        assert reader.look() == 1
    observer.rows("ALTER TABLE notes ADD COLUMN more text")
    assert reader.read() == 2
    observer.rows("ALTER TABLE notes ADD COLUMN still_more text")
    assert reader.look() == 3
    # A column that a view shows keeps its type.
    observer.rows(f'DROP SCHEMA "{views_schema(akter_schema)}" CASCADE')
    observer.rows("ALTER TABLE actor_state ALTER COLUMN payload_version TYPE bigint")
    observer.rows("ALTER TABLE actor_generations ALTER COLUMN event_sequence TYPE numeric")
    assert reader.read() == 3


class Reader(Actor):
    """Reads all columns there are."""

    @command(sql=True)
    def read(self) -> int:
        return len(self.connection.execute(text("SELECT * FROM notes")).one())

    @query(sql=True)
    def look(self) -> int:
        return len(self.connection.execute(text("SELECT * FROM notes")).one())


def test_a_pooler_without_a_free_server_connection_in_time_is_unavailable(
    impatient: None, bouncer: Callable[[str], str], akter_database: str, make_engine: Callable[..., Any], akter_app: Callable[..., Akter]
) -> None:
    app = akter_app(Account, engine=make_engine(bouncer(akter_database), pool_size=4), execution=0.3, delivery=0.5, lock=0.1)
    app.actor(Account, "a").add(1)
    raw = bouncer(akter_database).replace("+psycopg", "")
    with psycopg.connect(raw, prepare_threshold=None) as first, psycopg.connect(raw, prepare_threshold=None) as second:
        first.execute("SELECT 1")
        second.execute("SELECT 1")
        with app.command_id("waits"), pytest.raises(Unavailable):
            app.actor(Account, "a").add(1)
    with app.command_id("waits"):
        assert app.actor(Account, "a").add(1) == 2
