"""A small shared file in which every worker process counts its jobs and notes when the first and the last of them started."""

from __future__ import annotations

import mmap
import struct
import threading
import time
from pathlib import Path

SLOTS = 8
_SLOT = struct.Struct("qdd")


class Ticks:
    """The file; `time.perf_counter` is the machine's monotonic clock, so what one process notes, another can compare."""

    def __init__(self, path: str, slot: int = 0) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SLOT.size * SLOTS)
        self._at, self._lock = _SLOT.size * slot, threading.Lock()

    @staticmethod
    def make(path: Path) -> Ticks:
        """Make the file."""
        path.write_bytes(bytes(_SLOT.size * SLOTS))
        return Ticks(str(path))

    def clear(self) -> None:
        """Begin again; no worker may be at work."""
        self._map[:] = bytes(_SLOT.size * SLOTS)

    def tick(self) -> None:
        """A job starts now."""
        now = time.perf_counter()
        with self._lock:
            count, first, _ = _SLOT.unpack_from(self._map, self._at)
            _SLOT.pack_into(self._map, self._at, count + 1, first or now, now)

    def _slots(self) -> list[tuple[int, float, float]]:
        return [_SLOT.unpack_from(self._map, _SLOT.size * slot) for slot in range(SLOTS)]

    @property
    def count(self) -> int:
        """Jobs that started."""
        return sum(count for count, _, _ in self._slots())

    @property
    def first(self) -> float:
        """When the first one started."""
        return min(first for count, first, _ in self._slots() if count)

    @property
    def last(self) -> float:
        """When the last one started."""
        return max(last for _, _, last in self._slots())

    def wait(self, count: int, seconds: float = 30.0, every: float = 0.0005) -> None:
        """Wait until so many have started; raises `TimeoutError`."""
        end = time.perf_counter() + seconds
        while self.count < count:
            if time.perf_counter() > end:
                raise TimeoutError(f"{self.count} of {count} jobs started within {seconds} seconds")
            time.sleep(every)
