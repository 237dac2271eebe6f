"""The command `akter` as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PATIENCE = 60.0


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Started:
    """A command that runs, with everything it says in one file."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str], log: Path, **how: Any) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "akter", *arguments],
                cwd=HERE,
                env=environment,
                **{"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **how},
            )

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def until_said(self, what: str, times: int = 1) -> None:
        until(lambda: self.said.count(what) >= times, lambda: f"{what!r} was not said:\n{self.said}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ask(self, level: int) -> None:
        """Ask it to end as its supervisor would."""
        assert self.process.stdin is not None
        self.process.stdin.write(bytes([level]))
        self.process.stdin.flush()

    def ended(self, seconds: float = PATIENCE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs:\n{self.said}") from None


def until(found: Callable[[], Any], complaint: Callable[[], str] = lambda: "it did not come about", seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end, complaint()
        time.sleep(0.02)
