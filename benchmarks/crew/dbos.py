"""DBOS: a queue of workflows that do nothing, so many at once in each process, looked for every tenth of a second."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from dbos import DBOS

from benchmarks.crew.program import Plan, each, main, ready, sample
from benchmarks.crew.ticks import Ticks

QUEUE = "benchmark"

_ticks: Any = None


@DBOS.workflow()
def noop(key: str) -> None:
    _ticks.tick()


def _launch(plan: Plan, slot: int = 0, *, listens: bool = False) -> None:
    global _ticks
    _ticks = Ticks(plan.ticks, slot)
    url = plan.url.replace("postgresql://", "postgresql+psycopg://")
    DBOS(
        config={
            "name": "benchmark",
            "system_database_url": url,
            "executor_id": f"benchmark-{slot}",
            "application_version": "1",
            "log_level": "ERROR",
            "sys_db_pool_size": plan.pool + 4,
        }
    )
    if not listens:
        # Whoever only asks for work must not do it.
        DBOS.listen_queues([])
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=plan.seats, polling_interval_sec=0.1)


def install(plan: Plan) -> None:
    _launch(plan)
    DBOS.destroy()


def fill(plan: Plan, count: int) -> float:
    """It has no bulk call; what it makes one by one is said by `single`."""
    _launch(plan)
    rate = each(count - 3, lambda: DBOS.enqueue_workflow(QUEUE, noop, "1"))
    DBOS.destroy()
    return rate


def work(plan: Plan, slot: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    _launch(plan, slot, listens=True)
    ready()
    ended.wait()
    os._exit(0)


def send(plan: Plan, samples: int) -> list[float]:
    _launch(plan)
    found = sample(Ticks(plan.ticks), samples, lambda: DBOS.enqueue_workflow(QUEUE, noop, "1"))
    DBOS.destroy()
    return found


def single(plan: Plan, count: int) -> float:
    _launch(plan)
    rate = each(count, lambda: DBOS.enqueue_workflow(QUEUE, noop, "1"))
    DBOS.destroy()
    return rate


if __name__ == "__main__":
    main({"install": install, "fill": fill, "work": work, "send": send, "single": single})
