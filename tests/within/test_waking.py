"""A commit wakes the runners, those of other processes too; a rollback wakes nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from akter import Akter, Runner

LONG = 20.0
"""Seconds between polls; whatever comes well before was woken."""


@pytest.fixture
def elsewhere(akter_database: str, akter_schema: str, shared: Any) -> Iterator[Callable[[], None]]:
    """A runner of another app with an engine of its own; waits until it has taken one message more."""
    taken = threading.Semaphore(0)
    engine = sqlalchemy.create_engine(akter_database, pool_size=8)
    app = Akter(engine, actors=[shared.Inbox], schema=akter_schema)
    app.faults.watch(lambda point, _: taken.release() if point == "after_commit" else None)
    with Runner(app, poll=LONG, lanes={"intents": 2}) as runner:
        # Its first passes are over when it found this one, and its listener listens when the second one comes early.
        for _ in range(2):
            app.send(app.actor(shared.Inbox, "first").take, "x")
            runner.wake()
            assert taken.acquire(timeout=10)

        def wait() -> None:
            started = time.monotonic()
            assert taken.acquire(timeout=LONG / 2), "nobody woke it"
            assert time.monotonic() - started < LONG / 2

        yield wait
    app.close()
    engine.dispose()


def test_a_commit_of_sqlalchemy_wakes(app: Akter, akter_engine: Engine, shared: Any, elsewhere: Callable[[], None]) -> None:
    handle = app.actor(shared.Inbox, "a")
    with akter_engine.connect() as connection:
        for _ in range(3):
            app.within(connection).send(handle.take, "x")
            app.within(connection).send(handle.take, "y")
            connection.commit()
            elsewhere()
            elsewhere()
    with Session(akter_engine) as session:
        with session.begin_nested():
            app.within(session).send(handle.take, "x")
        session.commit()
        elsewhere()
    with akter_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        app.within(connection).send(handle.take, "x")
        elsewhere()


def test_a_slow_commit_wakes_too(app: Akter, akter_engine: Engine, shared: Any, elsewhere: Callable[[], None]) -> None:
    with akter_engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE slow (n int)")
        connection.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END $$"
        )
        connection.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()"
        )
    with akter_engine.begin() as connection:
        app.within(connection).send(app.actor(shared.Inbox, "a").take, "x")
        connection.exec_driver_sql("INSERT INTO slow VALUES (1)")
    elsewhere()


def test_raw_psycopg_in_autocommit_wakes(app: Akter, akter_database: str, shared: Any, elsewhere: Callable[[], None]) -> None:
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as raw:
        app.within(raw).send(app.actor(shared.Inbox, "a").take, "x")
        elsewhere()


def test_two_apps_in_one_transaction_are_both_woken(akter_app: Any, akter_engine: Engine, shared: Any) -> None:
    woken = [threading.Event(), threading.Event()]
    apps = [akter_app(shared.Inbox, hint=False) for _ in woken]
    for app, event in zip(apps, woken, strict=True):
        app.wakes.add(event.set)
    with akter_engine.begin() as connection:
        for app in apps:
            app.within(connection).send(app.actor(shared.Inbox, "a").take, "x")
        assert not any(event.is_set() for event in woken)
    assert all(event.wait(10) for event in woken)


def test_a_rollback_wakes_nobody(akter_app: Any, akter_engine: Engine, shared: Any, akter_database: str) -> None:
    app, woken = akter_app(shared.Inbox), list[str]()
    app.wakes.add(lambda: woken.append("x"))
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as listening:
        listening.execute(f'LISTEN "akter_{app.schema}"')
        with akter_engine.connect() as connection:
            app.within(connection).send(app.actor(shared.Inbox, "a").take, "x")
            connection.rollback()
            connection.execute(text("SELECT 1"))
            connection.commit()
            app.within(connection).send(app.actor(shared.Inbox, "a").take, "x")
        with Session(akter_engine) as session:
            app.within(session).send(app.actor(shared.Inbox, "a").take, "x")
        app.close()
        assert list(listening.notifies(timeout=0.5)) == []
    assert woken == []


def test_ten_thousand_messages_are_a_hint_or_two(app: Akter, akter_engine: Engine, akter_database: str, shared: Any) -> None:
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as listening:
        listening.execute(f'LISTEN "akter_{app.schema}"')
        with akter_engine.begin() as connection:
            staging = app.within(connection)
            staging.send_many((app.actor(shared.Inbox, "a").take, {"text": "x"}) for _ in range(9_900))
            for _ in range(100):
                staging.send(app.actor(shared.Inbox, "a").take, "x" * 10_000)
        heard = list(listening.notifies(timeout=10, stop_after=1))
        assert [hint.payload for hint in heard] == [app.wakes.me], "who says it; this many are not named"
        app.close()
        assert len(list(listening.notifies(timeout=0.5))) <= 2


def test_a_process_that_ends_right_after_its_commit_has_told(
    akter_database: str, akter_schema: str, elsewhere: Callable[[], None], tmp_path: Any
) -> None:
    program = tmp_path / "sends.py"
    program.write_text(
        "import sys\n"
        "from sqlalchemy import create_engine\n"
        "from akter import Actor, Akter, command\n"
        "class Inbox(Actor, name='Inbox'):\n"
        "    @command\n"
        "    def take(self, text: str, times: int = 1) -> int: ...\n"
        "engine = create_engine(sys.argv[1])\n"
        "app = Akter(engine, actors=[Inbox], schema=sys.argv[2])\n"
        "with engine.begin() as connection:\n"
        "    app.within(connection).send(app.actor(Inbox, 'a').take, 'x')\n"
    )
    done = subprocess.run([sys.executable, str(program), akter_database, akter_schema], env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    elsewhere()
