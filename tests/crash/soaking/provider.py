"""The outside world of the soak: a provider of charges that knows nothing of transactions, and a ledger of every call for the judge.

A file per job holds a line for each call that began and one for how it ended, in their order. Writing the line is the act, so a process
that is killed has acted or has not. As a real provider, it acts once for one idempotency key, and gives the same answer afterwards.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from akter import Attempt, NotApplied, Payload

LEDGER = "AKTER_SOAK_LEDGER"
"""The environment variable that names the directory."""

TIMEOUT = 1.0
ACTED = ("charged", "lost")
PAID = ("charged", "again")
"""Answers that are a success: it acts now, or it acted in an earlier call."""
REFUSED = ("refused", "declined")
"""Answers that promise that it did not act."""


class Charge(Payload):
    """What a call returns: the attempt that was answered, and the one that acted."""

    job_id: str
    attempt: int
    acted_in: int


class Call(NamedTuple):
    """A line of the ledger. `outcome`: began, or how it ended."""

    outcome: str
    attempt: int
    pid: int


def charge(attempt: Attempt, tag: str) -> Charge:
    """Answer as the tag and the attempt say, unless it has acted for this job before."""
    wanted, before, after = drawn(tag, attempt.number)
    with _ledger(attempt.job_id) as file:
        _write(file, "began", attempt)
    time.sleep(before)
    with _ledger(attempt.job_id) as file:
        acted = [call.attempt for call in _read(Path(os.environ[LEDGER]) / attempt.job_id) if call.outcome in ACTED]
        outcome = "again" if acted else wanted
        _write(file, outcome, attempt)
    time.sleep(after)
    if outcome in REFUSED:
        raise NotApplied(outcome, final=outcome == "declined")
    if outcome not in PAID:
        raise ConnectionError(outcome)
    return Charge(job_id=attempt.job_id, attempt=attempt.number, acted_in=acted[0] if acted else attempt.number)


def drawn(tag: str, number: int) -> tuple[str, float, float]:
    """What it is to answer, and the seconds before and after it acts. Few wait longer than their time limit, and do not stop."""
    always = Random(tag).choices(("", "broken", "refused"), (91, 6, 3))[0]
    random = Random(f"{tag} {number}")
    outcome = random.choices(("charged", "lost", "broken", "refused", "declined"), (68, 10, 8, 10, 4))[0]
    before, after = (random.choices((0.0, random.uniform(0.02, 0.3), TIMEOUT + 0.5), (60, 37, 3))[0] for _ in range(2))
    return always or outcome, before, after


def read(directory: Path) -> dict[str, list[Call]]:
    """Every call, by its job."""
    return {file.name: _read(file) for file in directory.iterdir()}


def _read(file: Path) -> list[Call]:
    lines = [line.split() for line in file.read_text().splitlines()]
    return [Call(outcome, int(attempt), int(pid)) for outcome, attempt, pid in lines]


def _write(file: int, outcome: str, attempt: Attempt) -> None:
    os.write(file, f"{outcome} {attempt.number} {os.getpid()}\n".encode())


@contextmanager
def _ledger(job_id: str) -> Iterator[int]:
    file = os.open(Path(os.environ[LEDGER]) / job_id, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)
