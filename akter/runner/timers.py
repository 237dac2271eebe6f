"""When the relay has to look next: at the earliest due time it knows of, instead of at its next poll.

It knows what this process committed, and what a claim reads off the front of the due index about once a poll. It may be wrong: the row may
be moved, cancelled, another runner's, or of a type that nobody serves here. So a look that finds nothing makes the next such look wait
longer, and none ever waits longer than the poll.
"""

from __future__ import annotations

import threading
import time

_NEVER = float("inf")
_LEAST = 0.005
"""Seconds between two looks because of timers: those that are due within share one."""

_LATER = 0.001
"""The database's clock counts milliseconds, so a row is due up to one of them after its time."""


class Timers:
    """The earliest due time that one relay knows; moments are `time.monotonic()` values, `poll` is in seconds."""

    def __init__(self, poll: float) -> None:
        self._poll, self._lock = poll, threading.Lock()
        self._due, self._asked_at, self._rest = _NEVER, -_NEVER, _LEAST

    def expect(self, moment: float) -> None:
        """Something is due then."""
        with self._lock:
            self._due = min(self._due, moment)

    def came(self) -> bool:
        """Whether something that was expected is due by now."""
        return time.monotonic() >= self._due

    def ask(self) -> bool:
        """Whether the claim that is about to be sent should ask what is due next."""
        now = time.monotonic()
        with self._lock:
            if now < self._due and now < self._asked_at + 0.9 * self._poll:
                return False
            # What is committed and expected from now on, the claim may not see.
            self._asked_at, self._due = now, _NEVER
            return True

    def answered(self, due_in_ms: int | None) -> None:
        """What the claim found."""
        if due_in_ms is not None:
            self.expect(time.monotonic() + due_in_ms / 1000 + _LATER)

    def unanswered(self) -> None:
        """The claim failed: the next one asks."""
        self._asked_at = -_NEVER

    def looked(self, found: bool) -> None:
        """A look because of a timer found something, or nothing."""
        self._rest = _LEAST if found else min(self._poll, 2 * self._rest)

    def wait(self, poll: float) -> float:
        """Seconds until the next look, at most `poll`."""
        return min(poll, max(self._rest, self._due - time.monotonic()))
