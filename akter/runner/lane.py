"""A work family's seats: how many rows it may hold, the threads that work on them, and what its last claim saw."""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

MAX_WIDEN = 64
"""The widest probe, as a multiple of twice the free seats."""


class DaemonExecutor(Executor):
    """Worker threads that do not hold the interpreter at exit, as those of `ThreadPoolExecutor` would."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._most = name, threads
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle, self._closed = 0, False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run `fn` in a worker thread, with the caller's context variables."""
        future: Future[R] = Future()
        context = contextvars.copy_context()
        with self._lock:
            if self._closed:
                raise RuntimeError("the executor is shut down")
            self._work.put((future, lambda: context.run(fn, *args, **kwargs)))
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; the threads end when what they do is done."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._work.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as problem:  # noqa: BLE001 - a worker thread outlives whatever its work raises
                    future.set_exception(problem)
            del item, future, work
            with self._lock:
                self._idle += 1


class Lane:
    """The seats of one family. A claim takes no more rows than are free, so a claimed row never waits while its lease runs.

    `more` says that due rows were left behind: then each freed seat wakes the relay. A claim that left seats empty although it saw more
    rows met rows that others hold locked, and widens the next probe.
    """

    def __init__(self, family: str, seats: int, wake: Callable[[], None]) -> None:
        self.family, self.seats, self._wake = family, seats, wake
        self._executor = DaemonExecutor(f"akter-{family}", seats)
        self._changed = threading.Condition()
        self._held = 0
        self._widen, self.more = 1, False

    @property
    def held(self) -> int:
        """Rows this runner holds."""
        with self._changed:
            return self._held

    def free(self) -> int:
        """Rows a claim may take now."""
        return self.seats - self.held

    def probe(self, free: int) -> int:
        """Rows the next claim should look at."""
        return 2 * free * self._widen

    def claimed(self, free: int, taken: int, found: int) -> None:
        """Remember what a claim for `free` seats took, and how many due rows it saw."""
        self.more = taken > 0 and found > taken
        self._widen = min(self._widen * 2, MAX_WIDEN) if taken < free and found > taken else 1

    def start(self, rows: int, work: Callable[[], None]) -> None:
        """Work on `rows` claimed rows in a thread of the family; their seats are free again when it ends."""
        with self._changed:
            self._held += rows

        def run() -> None:
            try:
                work()
            finally:
                self.leave(rows)

        try:
            self._executor.submit(run)
        except BaseException:
            self.leave(rows)
            raise

    def leave(self, rows: int) -> None:
        """Free the seats of rows that are settled."""
        with self._changed:
            self._held -= rows
            self._changed.notify_all()
        if self.more:
            self._wake()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no row is held; returns whether that is so."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._held > 0:
                rest = end - time.monotonic()
                if rest <= 0:
                    return False
                self._changed.wait(min(rest, 1.0))
        return True

    def close(self) -> None:
        """Take no more work."""
        self._executor.shutdown(wait=False)
