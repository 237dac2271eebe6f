"""The actors of the tests of jobs, and what their function does when it is called."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from nodes import NEVER as NEVER
from nodes import Node as Node
from nodes import eventually as eventually
from nodes import in_thread as in_thread

from akter import Actor, Akter, Attempt, Cancellation, DeadLetter, Job, NotApplied, Rejection, Retry, command
from akter.testing import inspect

LEASE = timedelta(seconds=30)
"""As long as no stall of a busy machine: what ends a lease is `advance`."""
BACKOFF = timedelta(seconds=1)


class Provider:
    """Who was called, in which attempt, and what is to happen then; without a word, the call's text comes back in capitals."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.now = self.most = 0
        self.on: dict[str, Callable[[Attempt], Any]] = {}
        self.lock = threading.Lock()

    def call(self, attempt: Attempt, what: str) -> Any:
        with self.lock:
            self.calls.append((what, attempt.number))
            self.attempts[what, attempt.number] = attempt
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            return self.on.get(what, lambda _: what.upper())(attempt)
        finally:
            with self.lock:
                self.now -= 1

    def fail(self, what: str, problem: BaseException, until: int = 100) -> None:
        """Let the first attempts of this call fail."""

        def failing(attempt: Attempt) -> str:
            if attempt.number <= until:
                raise problem
            return what.upper()

        self.on[what] = failing

    def hold(self, what: str, result: object = "HELD", heed: bool = False) -> threading.Event:
        """Let this call wait for the event; `heed` lets it stop when it is told to."""
        let_go = threading.Event()

        def holding(attempt: Attempt) -> Any:
            end = time.monotonic() + 30
            while not let_go.wait(0.005) and time.monotonic() < end:
                if heed:
                    attempt.raise_if_cancelled()
            if isinstance(result, BaseException):
                raise result
            return result

        self.on[what] = holding
        return let_go


provider = Provider()


def do(attempt: Attempt, what: str) -> str:
    return cast(str, provider.call(attempt, what))


class Refused(Rejection):
    """The turn was refused."""


class Shop(Actor):
    """Asks for calls and keeps what it hears of them."""

    log: list[str] = []  # noqa: RUF012 - a state field's default is copied
    work = Job(do, retry=Retry(attempts=2, base=1.0, cap=1.0), timeout=100.0, lease=LEASE.total_seconds())
    bare = Job(do, retry=Retry(attempts=2, base=1.0, cap=1.0), timeout=100.0, lease=LEASE.total_seconds())
    single = Job(do, retry=Retry(attempts=3, base=1.0, cap=1.0), timeout=100.0, lease=LEASE.total_seconds(), concurrency=1)
    pair = Job(do, retry=Retry(attempts=3, base=1.0, cap=1.0), timeout=100.0, lease=LEASE.total_seconds(), concurrency=2)
    brief = Job(do, retry=Retry(attempts=1), timeout=0.1, lease=LEASE.total_seconds())
    fleeting = Job(do, retry=Retry(attempts=3, base=1.0, cap=1.0), timeout=100.0, lease=3.0, concurrency=1)

    @command
    def start(self, what: str, key: str | None = None, job: str = "work") -> str:
        wanted: Job[[str], str] = getattr(self, job)
        return self.after(timedelta(0), key=key).enqueue(wanted, what) if key else self.enqueue(wanted, what)

    @command
    def later(self, what: str, key: str, seconds: float = 60.0) -> str:
        return self.after(timedelta(seconds=seconds), key=key).enqueue(self.work, what)

    @command
    def start_all(self, names: list[str], job: str = "single") -> list[str]:
        return [self.enqueue(getattr(self, job), name) for name in names]

    @command
    def start_and_cancel(self, what: str, key: str) -> None:
        self.after(timedelta(0), key=key).enqueue(self.work, what)
        self.cancel(key)

    @command
    def stop(self, key: str, how: str = "") -> None:
        self.cancel(key)
        if how == "refuse":
            raise Refused
        if how == "break":
            raise ValueError("broken")

    @command
    def start_and(self, what: str, how: str) -> None:
        self.enqueue(self.work, what)
        if how == "refuse":
            raise Refused
        raise ValueError("broken")

    @work.on_success
    def done(self, result: str) -> None:
        self.log = [*self.log, f"done {result}"]

    @work.on_dead_letter
    def dead(self, letter: DeadLetter) -> None:
        self.log = [*self.log, f"dead after {letter.attempts}, {'unknown' if letter.ambiguous else 'not applied'}: {letter.cause}"]

    @work.on_cancelled
    def cancelled(self, told: Cancellation) -> None:
        self.log = [*self.log, f"cancelled after {told.attempts}: {told.outcome}{' (ambiguous)' if told.ambiguous else ''}"]

    @single.on_success
    def one_done(self, result: str) -> None:
        self.log = [*self.log, f"one {result}"]

    @fleeting.on_success
    def fleeting_done(self, result: str) -> None:
        self.log = [*self.log, f"fleeting {result}"]

    @pair.on_success
    def pair_done(self, result: str) -> None:
        self.log = [*self.log, f"pair {result}"]


def log(app: Akter, id: str = "s") -> list[str]:
    """What a shop has heard."""
    return list((inspect(app, app.actor(Shop, id)).state or {"log": []})["log"])


def jobs(app: Akter, id: str = "s") -> list[dict[str, Any]]:
    """A shop's rows in the outbox."""
    return list(inspect(app, app.actor(Shop, id)).outbox)


def letters(app: Akter, id: str = "s") -> list[tuple[str, int, bool]]:
    """A shop's dead letters: cause, attempts, ambiguous."""
    return [(row["cause"], row["attempts"], row["ambiguous"]) for row in inspect(app, app.actor(Shop, id)).dead_letters]


def declined(final: bool = False) -> NotApplied:
    return NotApplied("declined", final=final)
