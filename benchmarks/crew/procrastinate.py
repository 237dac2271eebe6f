"""procrastinate: psycopg, an asynchronous worker with so many jobs at once, LISTEN/NOTIFY."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import procrastinate
from psycopg_pool import AsyncConnectionPool

from benchmarks.crew.program import BATCH, Plan, added, each, main, sample, until_ended, values
from benchmarks.crew.ticks import Ticks


class Queue:
    """procrastinate's app, with its tasks."""

    def __init__(self, plan: Plan, connector: Any, slot: int = 0) -> None:
        self.app, ticks = procrastinate.App(connector=connector), Ticks(plan.ticks, slot)
        self.pool: Any = None

        @self.app.task(name="noop", queue="benchmark")
        async def noop(**job: Any) -> None:
            ticks.tick()

        @self.app.task(name="turn", queue="benchmark")
        async def turn(**job: Any) -> None:
            ticks.tick()
            given = values(job)
            async with self.pool.connection() as connection:
                await connection.execute(plan.lock, given)
                row = await (await connection.execute(plan.read, given)).fetchone()
                await connection.execute(plan.write, {**given, "value": added(row[3])})

        @self.app.task(name="read", queue="benchmark")
        async def read(**job: Any) -> None:
            given = values(job)
            async with self.pool.connection() as connection:
                await connection.execute(plan.lock, given)
                await (await connection.execute(plan.read, given)).fetchone()
                ticks.tick()

        self.noop, self.turn, self.read = noop, turn, read


def _client(plan: Plan) -> Queue:
    return Queue(plan, procrastinate.SyncPsycopgConnector(conninfo=plan.url))


def install(plan: Plan) -> None:
    with _client(plan).app.open() as app:
        app.schema_manager.apply_schema()


def fill(plan: Plan, count: int) -> float:
    queue = _client(plan)
    task = queue.turn if plan.work == "turn" else queue.noop
    with queue.app.open():
        began = time.perf_counter()
        for start in range(0, count, BATCH):
            task.batch_defer(*(plan.job(number) for number in range(start, min(count, start + BATCH))))
        return count / (time.perf_counter() - began)


def work(plan: Plan, slot: int) -> None:
    async def run() -> None:
        queue = Queue(plan, procrastinate.PsycopgConnector(conninfo=plan.url, min_size=2, max_size=plan.pool + 4), slot)
        queue.pool = AsyncConnectionPool(plan.url, min_size=2, max_size=plan.pool, open=False)
        await queue.pool.open()
        async with queue.app.open_async():
            worker = queue.app.run_worker_async(queues=["benchmark"], concurrency=plan.seats, install_signal_handlers=False)
            await until_ended(worker)

    asyncio.run(run())


def send(plan: Plan, samples: int, read: int = 0) -> list[float]:
    queue = _client(plan)
    task = queue.read if read else queue.noop
    with queue.app.open():
        return sample(Ticks(plan.ticks), samples, lambda: task.defer(**plan.job(1)))


def single(plan: Plan, count: int) -> float:
    queue = _client(plan)
    with queue.app.open():
        return each(count, queue.noop.defer)


if __name__ == "__main__":
    main({"install": install, "fill": fill, "work": work, "send": send, "single": single})
