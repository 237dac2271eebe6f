"""A work family's seats: how many rows it may hold, the threads that work on them, and what its last claim saw."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

logger = logging.getLogger("akter.runner")

MAX_WIDEN = 64
"""The widest probe, as a multiple of the narrowest."""

PATIENCE = 0.05
"""Seconds after a claim during which seats that are too few for a group are left free until there are more of them."""

_LEAST_EACH = 4
_LEAST_OF_MANY = 2
"""Rows that a claim looks at in each bucket, at least. In a backlog, a hundred of 256 buckets should not cost reading a thousand."""

Work: TypeAlias = "Callable[[], None]"

after_work: list[Work] = []
"""What a worker thread does before it waits for more: a framework, whose requests end otherwise, looks after what it keeps per thread."""


class Threads:
    """Worker threads that do not hold the interpreter at exit, as those of `ThreadPoolExecutor` would; they start when needed."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._lock, self._here = threading.Lock(), threading.local()
        self._started = self._busy = 0
        self._closed = False

    @property
    def inside(self) -> bool:
        """Whether one of these threads asks."""
        return getattr(self._here, "working", False)

    def run(self, work: Work) -> None:
        """Do something in one of the threads; raises `RuntimeError` after `close`, and when no thread can be started."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the lane is closed")
            if self._busy >= self._started < self._most:
                name = f"{self._name}-{self._started + 1}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
                self._started += 1
            self._busy += 1
            self._work.put(work)

    def here(self, work: Work) -> None:
        """Do something in the calling thread, as one of these threads would."""
        self._here.working = True
        try:
            self._do(work)
            for step in after_work:
                self._do(step)
        finally:
            self._here.working = False

    def close(self) -> None:
        """Take no more work; the threads end when what they do is done."""
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._work.put(None)

    def _run(self) -> None:
        self._here.working = True
        while (work := self._work.get()) is not None:
            self._do(work)
            del work
            for step in after_work:
                self._do(step)
            with self._lock:
                self._busy -= 1

    def _do(self, step: Work) -> None:
        try:
            step()
        except BaseException:
            logger.exception("runner.work_failed", extra={"akter_thread": threading.current_thread().name})


class Lane:
    """The seats of one family: `seats` rows at once, in `threads` units of work.

    A claim takes no more rows than can start at once, so a claimed row never waits while its lease runs. Rows that share a transaction
    share a thread, so while all that is found may share (`sharing`), a claim takes as many as there are seats, and waits until there is
    room for a whole group. It takes `most` of them at once: while one half of the seats is claimed for, the other one is worked on.

    A function that returns gives its seat to the next one before it is written how it ended: a row between the two is `ending`. There are
    no more of those than seats, so a runner holds twice as many rows at most.

    `more` says that due rows were left behind: then each freed seat wakes the relay. A claim that left seats empty although it saw more
    rows met rows that others hold locked, or one crowded bucket: what is due is `hidden` from it, and it widens the next probe. `anywhere`:
    something is known to be due, and not in which bucket.
    """

    def __init__(self, family: str, seats: int, threads: int, group: int, wake: Work, most: int | None = None) -> None:
        self.family, self.seats, self.threads, self._wake = family, seats, threads, wake
        self._least, self._most = min(group, max(1, seats // 2)), seats if most is None else max(1, most)
        self._pool = Threads(f"akter-{family}", threads)
        self._changed = threading.Condition()
        self._rows = self._units = self._ending = 0
        self._widen, self.more, self.hidden, self.anywhere, self.sharing = 1, False, False, False, False
        self.overdue = 0
        """Threads in something that should have returned by now, as of the last look."""
        self._claimed_at = 0.0

    @property
    def inside(self) -> bool:
        """Whether one of its threads asks, which must not wait for the lane."""
        return self._pool.inside

    @property
    def hung(self) -> bool:
        """Whether no thread is left that could work on anything."""
        return 0 < self.threads <= self.overdue

    @property
    def held(self) -> int:
        """Rows this runner holds."""
        with self._changed:
            return self._rows + self._ending

    def idle_threads(self) -> int:
        """Units of work that may start now."""
        with self._changed:
            return self.threads - self._units

    def free(self) -> int:
        """Rows a claim may take now."""
        with self._changed:
            seats, threads = min(self.seats, 2 * self.seats - self._ending) - self._rows, self.threads - self._units
        if not self.sharing or threads <= 0:
            return min(seats, threads)
        return min(seats, self._most) if seats >= self._least or time.monotonic() > self._claimed_at + PATIENCE else 0

    @property
    def gathering(self) -> bool:
        """Whether there are seats, left free for a moment because they are too few for a group."""
        return self.free() == 0 and self.seats > self.held

    def probe(self, free: int, buckets: int) -> tuple[int, int]:
        """Rows the next claim should look at, and how many of each of the buckets."""
        probe, least = 2 * free, _LEAST_OF_MANY if self.sharing else _LEAST_EACH
        return probe * self._widen, max(least, -(-probe // buckets)) * self._widen

    def claimed(self, free: int, taken: int, left: bool) -> bool:
        """Remember what a claim for `free` rows took, and whether it saw more; returns whether to claim again at once."""
        self._claimed_at = time.monotonic()
        self.more = taken > 0 and left
        self.hidden = taken < free and left and self._widen < MAX_WIDEN
        if not (taken < free and left):
            self._widen = max(1, self._widen // 2)
        elif self.hidden:
            self._widen *= 2
        return self.behind

    @property
    def behind(self) -> bool:
        """Whether its last claim left something, or saw more than it could take, or somebody knows of something since."""
        return self.more or self.hidden or self.anywhere

    def again(self) -> None:
        """Something is due: have the relay look for that, and for no other family."""
        self.anywhere = True
        self._wake()

    def start(self, rows: int, work: Work) -> None:
        """Work on `rows` claimed rows in a thread; whoever works calls `leave` as they are settled. Raises `RuntimeError` when closed."""
        run = self._unit(rows, work)
        try:
            self._pool.run(run)
        except BaseException:
            self.leave(rows, units=1)
            raise

    def start_here(self, rows: int, work: Work) -> Work:
        """The same for the calling thread, which has to call what is returned: the way to another one takes longer than many a row."""
        return partial(self._pool.here, self._unit(rows, work))

    def _unit(self, rows: int, work: Work) -> Work:
        with self._changed:
            self._rows += rows
            self._units += 1

        def run() -> None:
            try:
                work()
            finally:
                self.leave(0, units=1)

        return run

    def hold(self, rows: int) -> None:
        """Count rows as ending whose functions keep their seats: how they ended is work, too."""
        with self._changed:
            self._ending += rows

    def ended(self, rows: int) -> None:
        """Free the seats of rows whose functions have returned; `written` says that how they ended is known."""
        self._change(rows=-rows, ending=rows)

    def written(self, rows: int) -> None:
        """How these ended is written."""
        self._change(ending=-rows)

    def leave(self, rows: int, *, units: int = 0) -> None:
        """Free the seats of rows that are settled."""
        self._change(rows=-rows, units=-units)

    def _change(self, rows: int = 0, units: int = 0, ending: int = 0) -> None:
        with self._changed:
            self._rows += rows
            self._units += units
            self._ending += ending
            self._changed.notify_all()
        if self.more and self.free() > 0:
            self._wake()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing is held and nothing runs; returns whether that is so."""
        return self._wait(lambda: self._rows + self._ending == 0 and self._units == 0, seconds)

    def wait_for_the_rest(self, seconds: float) -> bool:
        """Wait until nothing runs but what should have returned by now, and all ends are written; returns whether that is so."""
        return self._wait(lambda: self._units <= self.overdue and self._ending == 0, seconds)

    def wait_free(self, seconds: float) -> bool:
        """Wait until a claim may take something; returns whether that is so."""
        return self._wait(lambda: self.free() > 0, seconds)

    def _wait(self, so: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        with self._changed:
            while not so():
                rest = end - time.monotonic()
                if rest <= 0:
                    return False
                self._changed.wait(min(rest, PATIENCE))
        return True

    def close(self) -> None:
        """Take no more work."""
        self._pool.close()
