"""The application whose jobs the field cases mistreat; what was called is told by `effects`, lines in a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta

from yard import note

from akter import Actor, Akter, Attempt, Cancellation, DeadLetter, Job, Retry, command
from akter.runner import Runner

QUICK = Retry(attempts=3, base=0.05, cap=0.05)
on: dict[str, Callable[[Attempt], str]] = {}
"""What a call does in this process; without a word it says its name."""


class Unmade(Exception):
    """Cannot be made again from what it was made of, and takes a socket's place: something that no other process can have."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.inside = lambda: code


def call(attempt: Attempt, what: str, effects: str = "") -> str:
    note(effects, f"{what}-{attempt.number}")
    if what == "poison":
        os._exit(137)
    if what == "endless":
        time.sleep(3600)
    if what == "unmade":
        raise Unmade(code=7)
    if what == "nul":
        raise ValueError("a\0b")
    if what == "huge":
        raise ValueError("x" * 50_000_000)
    return on.get(what, lambda _: what)(attempt)


class Chores(Actor):
    """Asks for things to be done, and keeps what it hears."""

    heard: list[str] = []  # noqa: RUF012 - a state field's default is copied
    do = Job(call, retry=QUICK, timeout=3600.0, lease=3.0)
    brief = Job(call, retry=Retry(attempts=1), timeout=0.1, lease=3.0)
    apart = Job(call, retry=QUICK, timeout=60.0, isolation="process")
    often = Job(call, retry=Retry(attempts=101, base=1.0, cap=60.0))

    @command
    def begin(self, what: str, effects: str = "", job: str = "do", key: str | None = None) -> str:
        wanted: Job[[str, str], str] = getattr(self, job)
        return self.after(timedelta(0), key=key).enqueue(wanted, what, effects) if key else self.enqueue(wanted, what, effects)

    @do.on_success
    def done(self, result: str) -> None:
        self.heard = [*self.heard, result]

    @do.on_dead_letter
    def dead(self, letter: DeadLetter) -> None:
        self.heard = [*self.heard, f"dead: {letter.cause}"]

    @do.on_cancelled
    def cancelled(self, told: Cancellation) -> None:
        self.heard = [*self.heard, f"cancelled: {told.outcome}"]

    @apart.on_success
    def apart_done(self, result: str) -> None:
        self.heard = [*self.heard, result]


def made(url: str, schema: str) -> Akter:
    return Akter(url, actors=[Chores], schema=schema)


def runner(app: Akter, **options: float) -> Runner:
    """A runner that needs nobody to wake it."""
    return Runner(app, poll=0.05, listen=False, **options)  # type: ignore[arg-type]


def serve(url: str, schema: str) -> None:
    """Work until the process is killed."""
    with made(url, schema) as app, runner(app) as one:
        one.wait(120)


app = made(os.environ.get("AKTER_DATABASE_URL", "postgresql://nowhere.invalid/db"), os.environ.get("AKTER_SCHEMA", "akter"))
