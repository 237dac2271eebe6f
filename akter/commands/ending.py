"""How a running command is asked to end: by signals, or by the process that started it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LEFT_SOMETHING = 75
"""The exit code when work still ran at the end; its leases bring it back."""

UNDER_SUPERVISION = "AKTER_SUPERVISED"
"""Set for a process whose standard input is the pipe of the process that restarts it."""


class Ending:
    """Asked once: stop, and finish what runs. Asked twice: do not wait for it. Asked a third time, the process is gone."""

    def __init__(self) -> None:
        self.stop, self.now = threading.Event(), threading.Event()
        self._asked = 0

    def ask(self, level: int) -> None:
        """Be asked for the `level`-th time; the same level twice is once."""
        self._asked = max(self._asked, level)
        self.stop.set()
        if self._asked > 1:
            self.now.set()
        if self._asked > 2:
            os._exit(LEFT_SOMETHING)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.ask(self._asked + 1)

    def _follow(self) -> None:
        # The bare descriptor: a thread that waits in `sys.stdin` would hold its lock when the interpreter ends.
        while said := os.read(0, 1):
            self.ask(said[0])
        # Whoever started this process is gone, and another one may start the same again.
        self.ask(1)


@contextmanager
def asked_to_end() -> Iterator[Ending]:
    """Let TERM and INT, and the supervisor if there is one, ask for the end; afterwards signals are handled as before."""
    ending = Ending()
    before = {number: signal.signal(number, ending._received) for number in (signal.SIGTERM, signal.SIGINT)}
    if os.environ.pop(UNDER_SUPERVISION, None):
        threading.Thread(target=ending._follow, name="akter-supervised", daemon=True).start()
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
