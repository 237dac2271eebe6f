"""pgqueuer: asyncpg, uvloop, LISTEN/NOTIFY, a batch as large as the seats."""

from __future__ import annotations

import json
import time
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

from benchmarks.crew.program import BATCH, Plan, added, each_async, main, sample_async, until_ended, values
from benchmarks.crew.ticks import Ticks


def install(plan: Plan) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(plan.url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    uvloop.run(run())


def fill(plan: Plan, count: int) -> float:
    async def run() -> float:
        connection = await asyncpg.connect(plan.url)
        queries, began = Queries.from_asyncpg_connection(connection), time.perf_counter()
        for start in range(0, count, BATCH):
            jobs = [json.dumps(plan.job(number)).encode() for number in range(start, min(count, start + BATCH))]
            await queries.enqueue(["turn" if plan.work == "turn" else "noop"] * len(jobs), jobs, [0] * len(jobs))
        rate = count / (time.perf_counter() - began)
        await connection.close()
        return rate

    rate: float = uvloop.run(run())
    return rate


def work(plan: Plan, slot: int) -> None:
    ticks = Ticks(plan.ticks, slot)

    async def run() -> None:
        connection = await asyncpg.connect(plan.url)
        pool = await asyncpg.create_pool(plan.url, min_size=2, max_size=plan.pool)
        queue = PgQueuer.from_asyncpg_connection(connection)

        @queue.entrypoint("noop")
        async def noop(job: Any) -> None:
            ticks.tick()

        @queue.entrypoint("turn")
        async def turn(job: Any) -> None:
            ticks.tick()
            given = values(json.loads(job.payload))
            who = (given["bucket"], given["routing"], given["kind"], given["key"])
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(plan.lock, *who)
                row = await connection.fetchrow(plan.read, *who, given["id"])
                await connection.execute(plan.write, *who, given["id"], given["command"], added(row[3]))

        @queue.entrypoint("read")
        async def read(job: Any) -> None:
            given = values(json.loads(job.payload))
            who = (given["bucket"], given["routing"], given["kind"], given["key"])
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(plan.lock, *who)
                await connection.fetchrow(plan.read, *who, given["id"])
                ticks.tick()

        await until_ended(queue.run(batch_size=plan.seats))

    uvloop.run(run())


def send(plan: Plan, samples: int, read: int = 0) -> list[float]:
    async def run() -> list[float]:
        connection = await asyncpg.connect(plan.url)
        queries = Queries.from_asyncpg_connection(connection)
        name = "read" if read else "noop"
        found = await sample_async(Ticks(plan.ticks), samples, lambda: queries.enqueue(name, json.dumps(plan.job(1)).encode()))
        await connection.close()
        return found

    found: list[float] = uvloop.run(run())
    return found


def single(plan: Plan, count: int) -> float:
    async def run() -> float:
        connection = await asyncpg.connect(plan.url)
        queries = Queries.from_asyncpg_connection(connection)
        rate = await each_async(count, lambda: queries.enqueue("noop", b"1"))
        await connection.close()
        return rate

    rate: float = uvloop.run(run())
    return rate


if __name__ == "__main__":
    main({"install": install, "fill": fill, "work": work, "send": send, "single": single})
