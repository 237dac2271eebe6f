"""absurd for Python: its synchronous worker, so many tasks at once in threads, polling."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.crew.program import Plan, each, main, ready, sample
from benchmarks.crew.ticks import Ticks

QUEUE = "benchmark"


def _client(plan: Plan, slot: int = 0) -> Any:
    client, ticks = Absurd(plan.url, queue_name=QUEUE), Ticks(plan.ticks, slot)

    @client.register_task("noop")
    def noop(params: Any, context: Any) -> None:
        ticks.tick()

    return client


def install(plan: Plan) -> None:
    with psycopg.connect(plan.url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    _client(plan).create_queue()


def fill(plan: Plan, count: int) -> float:
    """It has no bulk call; what it makes one by one is said by `single`."""
    client = _client(plan)
    return each(count - 3, lambda: client.spawn("noop", {}))


def work(plan: Plan, slot: int) -> None:
    client = _client(plan, slot)
    # Its worker has no other end that the polling loop would notice at once.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ready()
    client.start_worker(worker_id=f"benchmark-{slot}", concurrency=plan.seats, poll_interval=0.05)


def send(plan: Plan, samples: int) -> list[float]:
    client = _client(plan)
    return sample(Ticks(plan.ticks), samples, lambda: client.spawn("noop", {}))


def single(plan: Plan, count: int) -> float:
    client = _client(plan)
    return each(count, lambda: client.spawn("noop", {}))


if __name__ == "__main__":
    main({"install": install, "fill": fill, "work": work, "send": send, "single": single})
