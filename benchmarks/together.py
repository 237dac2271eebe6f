"""Processes that measure when they are told to, and what they saw together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.measure import Run


class Processes:
    """`count` processes of one program. It prints `ready`, and for each line it reads one run as JSON; see `answer`."""

    def __init__(self, command: Sequence[str], count: int) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._running = [subprocess.Popen([*command, str(number)], **pipes) for number in range(count)]
        for process in self._running:
            if (said := self._line(process)) != "ready":
                raise RuntimeError(f"{command[-1]} did not start: {said or 'it said nothing'}")

    def measure(self) -> Run:
        """Let all measure at once: rates add up, of the percentiles the worst counts."""
        for process in self._running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        runs = [Run(**json.loads(self._line(process))) for process in self._running]
        return Run(
            rate=sum(run.rate for run in runs),
            p50_ms=max(run.p50_ms for run in runs),
            p99_ms=max(run.p99_ms for run in runs),
            count=sum(run.count for run in runs),
        )

    def close(self) -> None:
        """End them."""
        for process in self._running:
            process.communicate(timeout=60)

    @staticmethod
    def _line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()


def answer(measured: Callable[[], Run]) -> None:
    """What such a program does once it is ready."""
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(asdict(measured())), flush=True)
