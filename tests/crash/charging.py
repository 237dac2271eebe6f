"""A payment provider for the tests of killed processes, in a module that a child process can import."""

from __future__ import annotations

import os
import signal

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
