"""What a handler's thread shows of it while it runs: which thread, and when it must have returned."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Handling:
    """Something that a handler works on.

    While it runs, `limit` is when it must have returned, a `time.monotonic()` value, and `thread` where it runs. `told` and `explained`
    keep that a late one was logged, and that its row says so.
    """

    limit: float | None = field(init=False, default=None)
    thread: str = field(init=False, default="")
    told: bool = field(init=False, default=False)
    explained: bool = field(init=False, default=False)

    @contextmanager
    def handling(self, limit: float) -> Iterator[None]:
        """The handler runs in this block, in this thread."""
        self.thread, self.limit = threading.current_thread().name, limit
        try:
            yield
        finally:
            self.limit = None

    @property
    def late(self) -> bool:
        """Whether the handler should have returned by now; such a turn saves nothing any more."""
        limit = self.limit
        return limit is not None and limit < time.monotonic()
