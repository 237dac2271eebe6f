"""oban for Python: psycopg, uvloop, a queue with a limit."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import uvloop
from oban import Oban, worker
from oban.schema import install_sql
from psycopg_pool import AsyncConnectionPool

from benchmarks.crew.program import BATCH, Plan, added, each_async, main, sample_async, until_ended, values
from benchmarks.crew.ticks import Ticks

plan: Plan
ticks: Ticks
pool: Any


@worker(queue="benchmark")
class Noop:
    async def process(self, job: Any) -> None:
        ticks.tick()


@worker(queue="benchmark")
class Turn:
    async def process(self, job: Any) -> None:
        ticks.tick()
        given = values(job.args)
        async with pool.connection() as connection:
            await connection.execute(plan.lock, given)
            row = await (await connection.execute(plan.read, given)).fetchone()
            await connection.execute(plan.write, {**given, "value": added(row[3])})


@worker(queue="benchmark")
class Read:
    async def process(self, job: Any) -> None:
        given = values(job.args)
        async with pool.connection() as connection:
            await connection.execute(plan.lock, given)
            await (await connection.execute(plan.read, given)).fetchone()
            ticks.tick()


# The decorator adds to them.
_Noop: Any = Noop
_Turn: Any = Turn
_Read: Any = Read


def install(given: Plan) -> None:
    with psycopg.connect(given.url) as connection:
        connection.execute(install_sql())


def fill(given: Plan, count: int) -> float:
    async def run() -> float:
        pool = await Oban.create_pool(given.url)
        async with Oban(pool=pool) as client:
            began, made = time.perf_counter(), _Turn if given.work == "turn" else _Noop
            for start in range(0, count, BATCH):
                await client.enqueue_many([made.new(given.job(number)) for number in range(start, min(count, start + BATCH))])
            rate = count / (time.perf_counter() - began)
        await pool.close()
        return rate

    rate: float = uvloop.run(run())
    return rate


def work(given: Plan, slot: int) -> None:
    global plan, ticks, pool
    plan, ticks = given, Ticks(given.ticks, slot)

    async def serve(own: Any) -> None:
        async with own:
            await _forever()

    async def run() -> None:
        global pool
        pool = AsyncConnectionPool(given.url, min_size=2, max_size=given.pool, open=False)
        await pool.open()
        queue = await Oban.create_pool(given.url)
        await until_ended(serve(Oban(pool=queue, queues={"benchmark": given.seats}, node=f"benchmark-{slot}")))

    uvloop.run(run())


async def _forever() -> None:
    await asyncio.Event().wait()


def send(given: Plan, samples: int, read: int = 0) -> list[float]:
    async def run() -> list[float]:
        pool = await Oban.create_pool(given.url)
        made = _Read if read else _Noop
        async with Oban(pool=pool) as client:
            found = await sample_async(Ticks(given.ticks), samples, lambda: client.enqueue(made.new(given.job(1))))
        await pool.close()
        return found

    found: list[float] = uvloop.run(run())
    return found


def single(given: Plan, count: int) -> float:
    async def run() -> float:
        pool = await Oban.create_pool(given.url)
        async with Oban(pool=pool) as client:
            rate = await each_async(count, lambda: client.enqueue(_Noop.new({"key": 1})))
        await pool.close()
        return rate

    rate: float = uvloop.run(run())
    return rate


if __name__ == "__main__":
    main({"install": install, "fill": fill, "work": work, "send": send, "single": single})
