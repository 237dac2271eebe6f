"""Jobs whose last attempt left no word. One of them may have ended its process, and all that ran there look alike.

They are begun one after the other: beside each other, all of them would lose an attempt each time that one kills its process. One that has
run for a while makes room for the next, unless one of the two has no attempt left after this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from akter.runner.attempt import Run
from akter.runner.attempts import Attempts

APART = 1.0
"""Seconds that a suspect has run when the next one may begin beside it: what kills its process does so soon, as a rule."""


class Suspects:
    """Those of one runner, for its relay's thread. `expect` lets the relay look for due work after some seconds."""

    def __init__(self, attempts: Attempts, expect: Callable[[float], None]) -> None:
        self._attempts, self._expect = attempts, expect
        self._begun: list[Run] = []
        self._begun_at = 0.0
        self._last_waits = False

    def room(self) -> bool:
        """Whether a claim may take one."""
        self._begun = [run for run in self._begun if self._attempts.holds(run)]
        if not self._begun:
            self._last_waits = False
            return True
        if self._last_waits or any(run.is_last for run in self._begun):
            return False
        return time.monotonic() >= self._begun_at + APART

    def admit(self, run: Run) -> bool:
        """Whether a claimed one may begin now; otherwise it has to be given back."""
        if not self.room():
            return False
        if run.is_last and self._begun:
            # Nothing else of its kind is claimed until it can have its turn.
            self._last_waits = True
            return False
        self._begun.append(run)
        self._begun_at = time.monotonic()
        if not run.is_last:
            self._expect(APART)
        return True
