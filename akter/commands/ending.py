"""How a running command is asked to end: by signals, or by the process that started it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click

LEFT_SOMETHING = 75
"""The exit code when work still ran at the end; its leases bring it back."""

UNDER_SUPERVISION = "AKTER_SUPERVISED"
"""Set for a process whose standard input is the pipe of the process that restarts it."""

_HANG_UP = getattr(signal, "SIGHUP", None)
"""The terminal is gone; Windows has no such signal."""


class Ending:
    """Asked once: stop, and finish what runs. Asked twice: do not wait for it. Asked a third time, the process is gone.

    Under a supervisor the level comes through its pipe, and signals of its own, which a terminal sends to all of them, count once.
    """

    def __init__(self, supervised: bool = False) -> None:
        self.stop, self.now = threading.Event(), threading.Event()
        self.deaf = supervised
        """Whether signals after the end are ignored, so that they do not change the exit code."""
        self.last_words: Callable[[], None] = lambda: None
        """What is done when it is asked for the third time; it runs in a signal handler, so it must not wait."""
        self._asked, self._supervised = 0, supervised

    def ask(self, level: int) -> None:
        """Be asked for the `level`-th time; the same level twice is once."""
        self._asked = max(self._asked, level)
        self.stop.set()
        if self._asked > 1:
            self.now.set()
        if self._asked > 2:
            self.last_words()
            os._exit(LEFT_SOMETHING)

    def received(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal. A terminal that closes may say so twice, itself and through its shell, so that one never counts further."""
        self.ask(1 if self._supervised or number == _HANG_UP else self._asked + 1)

    def follow(self, pipe: int) -> None:
        """Be asked through a pipe, until whoever holds its other end is gone."""
        # The bare descriptor: a thread that waits in `sys.stdin` would hold its lock when the interpreter ends.
        while said := os.read(pipe, 1):
            self.ask(said[0])
        # Another one may start the same again; what is said to this process from now on is meant for it.
        self._supervised = self.deaf = False
        self.ask(1)


@contextmanager
def asked_to_end() -> Iterator[Ending]:
    """Let TERM, INT and HUP, and the supervisor if there is one, ask for the end; afterwards signals are handled as before.

    A HUP that was ignored before, as under `nohup`, stays ignored.
    """
    ending = Ending(bool(os.environ.pop(UNDER_SUPERVISION, None)))
    numbers = [signal.SIGTERM, signal.SIGINT]
    if _HANG_UP is not None and signal.getsignal(_HANG_UP) is not signal.SIG_IGN:
        numbers.append(_HANG_UP)
    before = {number: signal.signal(number, ending.received) for number in numbers}
    if ending.deaf:
        threading.Thread(target=ending.follow, args=(0,), name="akter-supervised", daemon=True).start()
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if ending.deaf and ending.stop.is_set() else handler)


def say(line: str) -> None:
    """Tell the operator; a terminal that is gone must not keep the process from ending well."""
    with suppress(OSError):
        click.echo(line, err=True)
