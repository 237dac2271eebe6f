"""An estimate of the database's clock, good enough to stamp a new command id and never ahead of the database."""

from __future__ import annotations

import time


class Clock:
    """The database's time as last read, carried on by the local monotonic clock."""

    __slots__ = ("_base_ms", "_monotonic", "_wall")

    def __init__(self, now_ms: int) -> None:
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        """Remember what the database's clock just said. The answer took a while, so the estimate is behind it, never ahead."""
        self._base_ms, self._monotonic, self._wall = now_ms, time.monotonic(), time.time()

    def now_ms(self) -> int | None:
        """The estimate in epoch milliseconds, or None when this machine slept since and the database must be asked."""
        passed = time.monotonic() - self._monotonic
        if abs(time.time() - self._wall - passed) > 5.0:
            return None
        return self._base_ms + int(passed * 1000)
