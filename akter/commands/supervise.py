"""Several processes of one command: each that dies is started again, until one keeps dying."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from akter.commands.ending import LEFT_SOMETHING, UNDER_SUPERVISION, Ending, asked_to_end, say

RESTARTS = 5
"""Restarts of one process within a minute; after one more death the whole command fails."""

_WITHIN = 60.0
_CALLED_WRONGLY = 2
_NOTHING_RAN = {-signal.SIGTERM, -signal.SIGINT, -1}
"""How a child dies of a signal (-1 is a HUP) while it starts, before it handles any; asked to end, that is as good as having ended."""


class Child:
    """One process, and when it died."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._deaths: list[float] = []
        self._start()

    def _start(self) -> None:
        # It is asked to end through its standard input: signals may reach it from a terminal or systemd as well, and would count twice.
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env={**os.environ, UNDER_SUPERVISION: "1"})

    @property
    def code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self.process.poll()

    def restart(self) -> bool:
        """Start it again after a death; returns whether it did, because it may die too often."""
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < _WITHIN] + [now]
        if self.code == _CALLED_WRONGLY or len(self._deaths) > RESTARTS:
            return False
        self._hang_up()
        self._start()
        return True

    def ask(self, level: int) -> None:
        """Ask it to end."""
        if self.code is None and self.process.stdin is not None:
            with suppress(OSError):
                os.write(self.process.stdin.fileno(), bytes([level]))

    def kill(self) -> None:
        """End it now."""
        if self.code is None:
            self.process.kill()
            self.process.wait()
        self._hang_up()

    def _hang_up(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def supervise(processes: int, arguments: Sequence[str], grace: float) -> int:
    """Keep processes of `python ARGUMENTS` alive until a signal comes; returns the exit code.

    It is 0 when all ended well, 75 when one left work to its lease, and otherwise that of the one that kept dying.
    """
    command = [sys.executable, *arguments]
    with asked_to_end() as ending:
        ending.deaf = True
        children = [Child(command) for _ in range(processes)]

        def end_at_once() -> None:
            for child in children:
                child.ask(3)

        ending.last_words = end_at_once
        try:
            failed = _watch(children, ending)
            _end(children, ending, grace)
        finally:
            for child in children:
                child.kill()
    if failed is not None:
        return failed if failed > 0 else 1
    codes = [child.code or 0 for child in children if child.code not in _NOTHING_RAN]
    if any(code in (LEFT_SOMETHING, -signal.SIGKILL) for code in codes):
        return LEFT_SOMETHING
    return 1 if any(codes) else 0


def _watch(children: Sequence[Child], ending: Ending) -> int | None:
    """Restart those that die; returns the exit code of one that keeps dying."""
    while not ending.stop.wait(0.2):
        for child in children:
            if (code := child.code) is None or ending.stop.is_set():
                continue
            say(f"akter: runner process {child.process.pid} ended with {_said(code)}")
            if not child.restart():
                say("akter: it cannot be kept alive, so all end")
                return code
    return None


def _end(children: Sequence[Child], ending: Ending, grace: float) -> None:
    end, asked = time.monotonic() + grace + 10.0, 0
    while any(child.code is None for child in children) and time.monotonic() < end:
        level = 2 if ending.now.is_set() else 1
        if level > asked:
            asked = level
            for child in children:
                child.ask(level)
        time.sleep(0.05)


def _said(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
