"""A server that is killed while a claim of it is being worked on, and what is left of the claim."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from akter import Actor, Akter, AkterError, Attempt, DeadLetter, Job, Retry, command, query
from akter.embedded import Server
from akter.runner import Runner
from akter.testing import advance

crash: Callable[[], None] | None = None
calls: list[int] = []


def charge(attempt: Attempt, amount: int) -> int:
    """Charges, and loses the answer the first time."""
    calls.append(amount)
    if _crash_once():
        raise TimeoutError("no answer")
    return amount


def _crash_once() -> bool:
    global crash
    now, crash = crash, None
    if now is not None:
        now()
    return now is not None


class Till(Actor):
    """Charges once, whatever comes, and adds up."""

    total: int = 0
    log: list[str] = []  # noqa: RUF012 - a state field's default is copied
    charge = Job(charge, retry=Retry(attempts=1))

    @command
    def begin(self, amount: int) -> None:
        self.enqueue(self.charge, amount=amount)

    @charge.on_success
    def charged(self, amount: int) -> None:
        self.log = [*self.log, f"charged {amount}"]

    @charge.on_dead_letter
    def failed(self, letter: DeadLetter) -> None:
        self.log = [*self.log, f"dead after {letter.attempts}, {'perhaps' if letter.ambiguous else 'not'} charged"]

    @command
    def add(self, amount: int) -> None:
        self.total += amount
        _crash_once()

    @query
    def seen(self) -> tuple[int, list[str]]:
        return self.total, self.log


class Place:
    """An app with a runner on a server that crashes as the next function or handler begins, with what was not written to its log."""

    def __init__(self, server: Server) -> None:
        self.url = server.url(driver="")
        self.app = Akter(create_engine(server.url()), actors=[Till])
        self.app.migrate()
        self.till = self.app.actor(Till, "t")
        # It never starts: nothing but what a test does writes to the log.
        self.runner = Runner(self.app, listen=False)

    def crash_in_the_next(self) -> None:
        global crash
        # Asleep it writes nothing behind a commit that did not wait; killed, it takes the whole server with it, memory included.
        writer = self.rows("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")[0][0]
        os.kill(writer, signal.SIGSTOP)
        crash = lambda: os.kill(writer, signal.SIGKILL)  # noqa: E731

    def rows(self, statement: str) -> list[Any]:
        end = time.monotonic() + 60
        while True:
            try:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    return connection.execute(statement.encode()).fetchall()
            except psycopg.OperationalError:
                assert time.monotonic() < end, "the server does not come back"
                time.sleep(0.05)

    def crash_and_recover(self) -> None:
        """Work until the server crashes, and again when it is back and every lease is over."""
        with contextlib.suppress(AkterError):
            self.runner.drain(seconds=20)
        assert crash is None
        self.rows("SELECT 1")
        self.app.engine.dispose()
        # The job's end may still be on its way.
        end = time.monotonic() + 60
        while self.rows("SELECT count(*) FROM akter.actor_outbox") != [(0,)]:
            assert time.monotonic() < end, self.rows("SELECT * FROM akter.actor_outbox")
            with contextlib.suppress(AkterError):
                advance(self.app, timedelta(minutes=10), self.runner)


@pytest.fixture
def place() -> Iterator[Place]:
    global crash
    calls.clear()
    with Server.temporary({"synchronous_commit": "on", "restart_after_crash": "on", "autovacuum": "off"}) as server:
        found = Place(server)
        yield found
        crash = None
        found.runner.stop()
        found.app.close()
        found.app.engine.dispose()


@pytest.mark.conformance("KILL-34")
def test_an_attempt_is_on_disk_before_its_function_runs_so_a_crash_of_the_server_does_not_charge_twice(place: Place) -> None:
    place.till.begin(5)
    place.crash_in_the_next()
    place.crash_and_recover()
    assert calls == [5]
    assert place.till.seen() == (0, ["dead after 1, perhaps charged"])


@pytest.mark.conformance("KILL-34")
def test_a_messages_claim_need_not_be_on_disk_because_a_crash_takes_its_turn_back_with_it(place: Place) -> None:
    place.app.send(place.till.add, 7)
    place.crash_in_the_next()
    place.crash_and_recover()
    assert place.till.seen() == (7, [])
