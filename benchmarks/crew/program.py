"""What the programs share: the plan they are given, their commands, and the transaction of a queued turn.

Commands: `install` the queue's tables; `fill N`; `work SLOT` until SIGTERM; `send SAMPLES`, one by one, to an idle worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.crew.ticks import Ticks

BATCH = 1_000
"""Jobs that `fill` hands over at once."""


@dataclass(frozen=True)
class Plan:
    """What a program has to know: the database, where to count, and a turn's five statements in its driver's spelling.

    `work`: whether its jobs are turns, "turn", or do nothing, "noop", or that beside others that wait, "crowded". `seats`: how many of
    them a worker takes at once.
    """

    url: str
    schema: str
    ticks: str
    pool: int
    keys: int
    routing: list[int]
    lock: str
    read: str
    write: str
    work: str = "turn"
    seats: int = 100

    def job(self, number: int) -> dict[str, Any]:
        """The arguments of one queued turn, or of a job that does nothing."""
        if self.work != "turn":
            return {"key": str(number)}
        key = number % self.keys
        return {"key": str(key), "routing": self.routing[key], "id": f"u:benchmark:{uuid.uuid4()}"}


def values(job: dict[str, Any]) -> dict[str, Any]:
    """What the statements of a job's turn ask for, by name."""
    return {"bucket": job["routing"] >> 56, "routing": job["routing"], "kind": "Sink", "key": job["key"], "id": job["id"], "command": "add"}


def added(state: str) -> str:
    """What the turn does: one more."""
    return json.dumps({"count": json.loads(state)["count"] + 1})


def plan_of(path: str) -> Plan:
    """Read a plan."""
    return Plan(**json.loads(Path(path).read_text()))


async def until_ended(running: Awaitable[Any]) -> None:
    """Run a worker until SIGTERM."""
    task = asyncio.ensure_future(running)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    ready()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def ready() -> None:
    """Tell whoever started this process that it is at work."""
    print("ready", flush=True)


def freeze() -> None:
    """Leave what was imported out of collections, as `akter run` does."""
    gc.collect()
    gc.freeze()


def each(count: int, send: Callable[[], object]) -> float:
    """How many a second can be sent, one after another."""
    for _ in range(3):
        send()
    began = time.perf_counter()
    for _ in range(count):
        send()
    return count / (time.perf_counter() - began)


async def each_async(count: int, send: Callable[[], Awaitable[object]]) -> float:
    """How many a second can be sent, one after another."""
    for _ in range(3):
        await send()
    began = time.perf_counter()
    for _ in range(count):
        await send()
    return count / (time.perf_counter() - began)


class Sampler:
    """Latencies from a committed job to its start in an idle worker."""

    def __init__(self, ticks: Ticks, samples: int) -> None:
        self._ticks, self._left = ticks, samples + 3
        self._expected = 0
        self.found: list[float] = []

    def pause(self) -> bool:
        """Rest a moment; whether there is another one to be sent."""
        time.sleep(random.uniform(0.02, 0.06))
        self._expected = self._ticks.count + 1
        self._left -= 1
        return self._left >= 0

    def sent(self, committed: float) -> None:
        """One was sent: wait for it. What starts before the sender knows of its own commit took no time."""
        self._ticks.wait(self._expected)
        self.found.append(max(0.0, self._ticks.last - committed))

    def seconds(self) -> list[float]:
        """What was found, without the first ones."""
        return self.found[3:]


def sample(ticks: Ticks, samples: int, send: Callable[[], object]) -> list[float]:
    """Send one after another; returns the seconds that each took to start."""
    sampler = Sampler(ticks, samples)
    while sampler.pause():
        send()
        sampler.sent(time.perf_counter())
    return sampler.seconds()


async def sample_async(ticks: Ticks, samples: int, send: Callable[[], Awaitable[object]]) -> list[float]:
    """Send one after another, as `sample` does; nothing else runs in this loop."""
    sampler = Sampler(ticks, samples)
    while sampler.pause():
        await send()
        sampler.sent(time.perf_counter())
    return sampler.seconds()


def main(commands: dict[str, Callable[..., Any]]) -> None:
    """Carry out `PLAN COMMAND [NUMBER]`, and print what it returns: jobs per second for `fill`, seconds for `send`."""
    path, name, *numbers = sys.argv[1:]
    print(json.dumps(commands[name](plan_of(path), *map(int, numbers))), flush=True)
