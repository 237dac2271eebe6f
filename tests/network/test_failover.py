"""Servers that restart, become read-only, or come back as a standby, under an app that lives on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from akter import Actor, Akter, AkterError, Unavailable, command, query
from akter.embedded import Server
from akter.embedded.watcher import lives, postmaster
from akter.testing import inspect, pause_next


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @query
    def total(self) -> int:
        return self.balance


@pytest.fixture
def app(private_database: str, make_engine: Callable[..., Any], akter_app: Callable[..., Akter]) -> Akter:
    app = akter_app(Account, engine=make_engine(private_database, pool_size=8, max_overflow=0))
    app.actor(Account, "a").add(1)
    return app


def name(url: str) -> str:
    found = make_url(url).database
    assert found is not None
    return found


def occupy(app: Akter) -> None:
    """Fill the pool with connections that turns have used."""
    wires = [app._wire() for _ in range(8)]
    for wire in wires:
        wire.__exit__(None, None, None)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restart", "crash"])
def test_an_app_lives_through_the_end_of_its_server(app: Akter, private: Server, halt: Callable[..., Path], how: signal.Signals) -> None:
    occupy(app)
    halt(how)
    private.start()
    assert app.actor(Account, "a").add(10) == 11
    occupy(app)
    halt(how)
    private.start()
    assert app.actor(Account, "a").total() == 11


def kill(private: Server, eventually: Any) -> None:
    """Kill the server, and start it on what is left."""
    found = postmaster(private.data)
    assert found is not None
    os.kill(found.pid, signal.SIGKILL)
    eventually(lambda: not lives(private.data, found))
    private.start()


@pytest.mark.conformance("KILL-31")
def test_a_call_whose_server_is_killed_before_its_commit_is_answered_by_the_next_one(
    app: Akter, private: Server, aside: Any, eventually: Any
) -> None:
    with pause_next(app, "before_commit", command_id="payment") as pause:
        call = aside(lambda: add(app, "payment"))
        pause.wait()
        kill(private, eventually)
        pause.release()
        assert call.answer() == 11
    assert add(app, "payment") == 11
    found = inspect(app, app.actor(Account, "a"))
    assert (found.state, len(found.receipts)) == ({"balance": 11}, 2)


@pytest.mark.conformance("KILL-31")
def test_a_call_whose_server_is_killed_after_its_commit_is_answered_from_the_receipt(
    private: Server, private_database: str, make_proxy: Any, make_engine: Any, akter_app: Callable[..., Akter], eventually: Any
) -> None:
    proxy = make_proxy(private_database)
    app = akter_app(Account, engine=make_engine(proxy.url, pool_size=8, max_overflow=0))
    app.actor(Account, "a").add(1)

    def vanish(line: Any) -> None:
        # The COMMIT is done, and its answer stands here.
        kill(private, eventually)
        line.close()

    fault = proxy.next("COMMIT", vanish, after=True)
    assert add(app, "payment") == 11
    assert fault.hits == 1
    app.engine.dispose()
    found = inspect(app, app.actor(Account, "a"))
    assert (found.state, found.version, len(found.receipts)) == ({"balance": 11}, 2, 2)


def add(app: Akter, id: str) -> int:
    with app.command_id(id):
        return app.actor(Account, "a").add(10)


def test_commands_given_while_the_server_is_away_run_when_it_is_back(
    app: Akter, private: Server, halt: Callable[..., Path], aside: Any
) -> None:
    occupy(app)
    halt()
    calls = [aside(lambda: app.actor(Account, "a").add(1)) for _ in range(4)]
    with pytest.raises(Unavailable):
        app.actor(Account, "a").total()
    private.start()
    assert sorted(call.answer() for call in calls) == [2, 3, 4, 5]


def test_restarts_under_load_lose_and_double_nothing(
    app: Akter, private: Server, halt: Callable[..., Path], aside: Any, eventually: Any
) -> None:
    stop = threading.Event()

    def work() -> list[int]:
        answers: list[int] = []
        while not stop.is_set():
            answers.append(app.actor(Account, "a").add(1))
        return answers

    workers = [aside(work) for _ in range(4)]
    for _ in range(2):
        halt()
        private.start()
        before = app.actor(Account, "a").add(1)
        eventually(lambda before=before: app.actor(Account, "a").total() > before + 20)
    stop.set()
    # A command's answer is the balance after it, so no two are alike.
    answers = [answer for worker in workers for answer in worker.answer()]
    app.engine.dispose()
    found = inspect(app, app.actor(Account, "a"))
    assert found.state == {"balance": len(found.receipts)}
    assert len(set(answers)) == len(answers) == len(found.receipts) - 3


def test_a_database_that_is_read_only_by_default_still_takes_turns(app: Akter, observe: Any, private_database: str) -> None:
    """A default is no more than that: a turn says that it writes."""
    observer = observe(private_database)
    observer.rows(f"ALTER DATABASE {name(private_database)} SET default_transaction_read_only = on")
    observer.terminate()
    assert app.actor(Account, "a").add(10) == 11
    assert app.actor(Account, "a").total() == 11


def test_after_a_failover_to_a_standby_calls_are_unavailable_and_work_again_once_it_is_promoted(
    app: Akter, private: Server, halt: Callable[..., Path], observe: Any, private_database: str, aside: Any
) -> None:
    occupy(app)
    files = halt()
    signal_file = files / "standby.signal"
    signal_file.touch()
    os.chown(signal_file, files.stat().st_uid, files.stat().st_gid)
    private.start()
    began = time.monotonic()
    app._turns._limits = type(app._turns._limits)(execution=0.3, delivery=0.6, lock=0.1)
    with app.command_id("failover"), pytest.raises(Unavailable) as refused:
        app.actor(Account, "a").add(10)
    assert refused.value.retryable
    assert "recovery" in str(refused.value)
    assert time.monotonic() - began < 8
    # What only reads may go on.
    assert app.actor(Account, "a").total() == 1
    app._turns._limits = type(app._turns._limits)()
    occupy(app)
    waits = aside(lambda: app.actor(Account, "a").add(100))
    observe(private_database).rows("SELECT pg_promote()")
    assert waits.answer() == 101
    with app.command_id("failover"):
        assert app.actor(Account, "a").add(10) == 111


def test_a_dropped_database_is_an_akter_error_and_not_a_hang(app: Akter, private: Server, private_database: str) -> None:
    with psycopg.connect(private.url(driver=""), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name(private_database)} WITH (FORCE)".encode())
    app._turns._limits = type(app._turns._limits)(execution=0.3, delivery=0.6, lock=0.1)
    with pytest.raises(AkterError, match="does not exist"):
        app.actor(Account, "a").add(10)
