"""A payment provider for the tests of killed processes, in a module that a child process can import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from akter import Attempt, NotApplied


def charge_card(attempt: Attempt, journal: str, how: str) -> str:
    """Every call leaves a line in the provider's journal, which knows nothing of transactions."""
    with open(journal, "a", encoding="utf-8") as file:
        file.write(f"{attempt.number} {attempt.job_id}\n")
    if how == "declined":
        raise NotApplied("declined", final=True)
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"charge {how}"


def meet(attempt: Attempt, journal: str, how: str, guests: int) -> str:
    """In their first attempt all wait for each other; then one ends the process while the others are still there."""
    with open(journal, "a", encoding="utf-8") as file:
        file.write(f"{attempt.number} {attempt.job_id}\n")
    if attempt.number == 1:
        wait_for(journal, guests)
    if how == "exit":
        os._exit(7)
    if attempt.number == 1:
        time.sleep(60)
    return f"met {how}"


HOLD = "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, 2); open(sys.argv[2], 'a').write('1 held\\n'); time.sleep(600)"


def found(attempt: Attempt, journal: str, lock: str, how: str) -> str:
    """Start a process that holds a lock for as long as it lives."""
    subprocess.Popen([sys.executable, "-c", HOLD, lock, journal])
    wait_for(journal, 1)
    if how == "returns":
        return "founded"
    if how == "dies":
        os._exit(7)
    time.sleep(600)
    return "too late"


def never_ready(*_: object) -> None:
    """What a process of its own does that never gets as far as its function."""
    time.sleep(600)


def wait_for(journal: str, lines: int) -> None:
    """Wait until so many calls have left their line."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with open(journal, encoding="utf-8") as file:
            if len(file.readlines()) >= lines:
                return
        time.sleep(0.01)
