"""The one loop that every background part runs: a named daemon thread that does a pass, waits, and never dies silently."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("akter.runner")

_LONGEST_WAIT = 30.0
_NEVER = float("inf")


class Loop:
    """Runs `work` again and again. `work` returns the seconds to wait; `wake` ends a wait at once, `wake_by` at a moment.

    An exception of `work` is logged, and the next try waits longer, up to 30 seconds. `stop` may be called twice, and before `start`.
    """

    def __init__(self, name: str, work: Callable[[], float]) -> None:
        self.name, self._work = name, work
        lock = threading.Lock()
        self._changed, self._spares, self._stopping = threading.Condition(lock), threading.Condition(lock), threading.Event()
        self._woken, self._by, self._until = False, _NEVER, 0.0
        self._thread: threading.Thread | None = None
        self._spare: threading.Thread | None = None
        self._then: Callable[[], None] | None = None
        self.failures = 0
        self.passed_at: float | None = None

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None and not self._stopping.is_set():
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Do the next pass now; wakes that come together count once."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def wake_by(self, moment: float) -> None:
        """Do a pass then, a `time.monotonic()` value, if none is done before; only the earliest moment is remembered."""
        with self._changed:
            if moment < self._by:
                self._by = moment
                self._changed.notify_all()

    def afterwards(self, then: Callable[[], None]) -> None:
        """Called in a pass: when it is over, its thread does this, and another one goes on with the loop."""
        self._then = then

    def stop(self) -> None:
        """Ask the thread to end after the pass it is in."""
        self._stopping.set()
        with self._spares:
            self._spares.notify_all()
        self.wake()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; returns whether it did. One that does what came afterwards is not waited for."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, seconds))
        return not thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._sleep()
            if self._stopping.is_set():
                return
            self._pass()
            if (then := self._then) is not None:
                self._then = None
                self._hand_over()
                then()
                del then
                if not self._take_over():
                    return

    def _pass(self) -> None:
        # Cleared before the pass: what comes while it runs must be seen by the next one.
        with self._changed:
            self._woken = False
            if self._by <= time.monotonic():
                self._by = _NEVER
        try:
            wait = self._work()
            self.failures, self.passed_at = 0, time.monotonic()
        except Exception:
            self.failures += 1
            wait = min(_LONGEST_WAIT, 0.1 * 2 ** min(self.failures, 10))
            logger.exception("runner.loop_failed", extra={"akter_loop": self.name, "akter_failures": self.failures})
        except BaseException:
            logger.critical("runner.thread_died", exc_info=True, extra={"akter_loop": self.name})
            raise
        self._until = time.monotonic() + wait

    def _hand_over(self) -> None:
        with self._changed:
            if (spare := self._spare) is not None:
                self._spare, self._thread = None, spare
                self._spares.notify_all()
                return
        try:
            self._start()
        except RuntimeError:
            # No thread can be had: this one goes on when it has done the rest.
            self._thread = threading.current_thread()

    def _take_over(self) -> bool:
        """Wait until the loop is this thread's again; returns whether it is."""
        me = threading.current_thread()
        with self._spares:
            if self._thread is me:
                return True
            if self._spare is not None:
                return False
            self._spare = me
            while self._spare is me and not self._stopping.is_set():
                self._spares.wait()
            return self._thread is me

    def _sleep(self) -> None:
        with self._changed:
            while not self._woken and (rest := min(self._until, self._by) - time.monotonic()) > 0:
                self._changed.wait(rest)
