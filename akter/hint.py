"""Wake whoever can carry out what was just committed: runners of this process at once, those of others by a hint.

A hint is a NOTIFY after the commit, from a connection of its own: within the turn's transaction it would queue all commits behind one
lock. Hints that come together are one; a lost one costs at most a poll.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence

import psycopg
from sqlalchemy import Engine

from akter.errors import AkterError
from akter.named import Gathered, Named, said
from akter.store.flight import Lost, StatementFailed
from akter.store.voice import Voice
from akter.store.wire import Statements

logger = logging.getLogger("akter.hint")

_TRY_AGAIN = 1.0
_A_MOMENT, _A_WHILE = 0.02, 0.25
"""Seconds that a commit may take between SQLAlchemy's event, which comes before it, and the wake-up; a slow one is met by a second."""
_NEVER = float("inf")


class Wakes:
    """What a commit wakes. The first one with something due starts the thread `akter-hint`."""

    def __init__(self, engine: Engine, statements: Statements, hint: bool) -> None:
        self._voice, self._hint = Voice(engine, statements.schema), hint
        self.me = str(uuid.uuid4())
        self._local: list[tuple[Callable[[], None], Callable[[Sequence[Named]], None] | None]] = []
        self._told: list[Callable[[Sequence[str]], None]] = []
        self._expecting: list[Callable[[float], None]] = []
        self._due, self._closed, self._pending = threading.Event(), False, Gathered()
        self._moment = self._last_moment = _NEVER
        self._thread: threading.Thread | None = None
        self._lock, self._rest = threading.Lock(), threading.Event()

    def add(self, wake: Callable[[], None], named: Callable[[Sequence[Named]], None] | None = None) -> None:
        """Wake a runner of this process too; `named` is called instead where the rows that are due are known."""
        with self._lock:
            self._local = [*self._local, (wake, named)]

    def expect(self, later: Callable[[float], None]) -> None:
        """Tell a runner of this process in how many seconds something is due."""
        with self._lock:
            self._expecting = [*self._expecting, later]

    def tell(self, cancelled: Callable[[Sequence[str]], None]) -> None:
        """Tell a runner of this process which jobs were cancelled while they run."""
        with self._lock:
            self._told = [*self._told, cancelled]

    def remove(self, *told: Callable[..., None]) -> None:
        """Wake that runner, or tell it, no more."""
        with self._lock:
            self._local = [known for known in self._local if known[0] not in told]
            self._told = [known for known in self._told if known not in told]
            self._expecting = [known for known in self._expecting if known not in told]

    def cancelled(self, ids: Sequence[str]) -> None:
        """Jobs that run, somewhere, were cancelled."""
        for told in self._told:
            told(ids)

    def __call__(self, after_ms: int = 0, rows: Sequence[Named] = ()) -> None:
        """Something is due now, these `rows` and nothing else if there are any; or `after_ms` milliseconds from now.

        The latter is of interest to the runners of this process only.
        """
        if after_ms > 0:
            for later in self._expecting:
                later(after_ms / 1000)
            return
        self._wake(rows)
        # In this thread, if that takes no time: the way through another one takes longer than the hint.
        if self._hint and (self._pending.some or not self._voice.at_once(said(self.me, rows))):
            self._pending.add(rows)
            self._due.set()
            if self._thread is None:
                self._start()

    def _wake(self, rows: Sequence[Named] = ()) -> None:
        for wake, named in self._local:
            if rows and named is not None:
                named(rows)
            else:
                wake()

    def soon(self) -> None:
        """Something will be due a moment from now: the application's transaction is about to commit."""
        now = time.monotonic()
        with self._lock:
            self._moment, self._last_moment = min(self._moment, now + _A_MOMENT), now + _A_WHILE
        self._due.set()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="akter-hint", daemon=True)
                self._thread.start()
                atexit.register(_close, weakref.ref(self))

    def close(self) -> None:
        """Send what is pending and end the thread."""
        with self._lock:
            thread, self._closed = self._thread, True
            if self._moment is not _NEVER:
                self._pending.add()
            self._moment = _NEVER
        self._due.set()
        self._rest.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def _run(self) -> None:
        while not self._closed or self._pending.some:
            self._due.wait(max(0.0, min(60.0, self._moment - time.monotonic())))
            self._due.clear()
            if self._moment_came():
                self._wake()
                self._pending.add()
            elif not self._pending.some:
                continue
            if (rest := self._voice.rest()) > 0.0:
                self._rest.wait(rest)
            rows = self._pending.take() or ()
            if not self._hint:
                continue
            try:
                self._voice.say(said(self.me, rows))
            except (AkterError, Lost, StatementFailed, psycopg.Error) as problem:
                logger.info("hint.failed", extra={"akter_reason": str(problem)[:200]})
                self._rest.wait(_TRY_AGAIN)
        self._voice.close()

    def _moment_came(self) -> bool:
        now = time.monotonic()
        with self._lock:
            if now < self._moment:
                return False
            self._moment = self._last_moment if now < self._last_moment else _NEVER
            return True


def _close(wakes: weakref.ref[Wakes]) -> None:
    if (found := wakes()) is not None:
        found.close()
