"""DBOS: a workflow with one transaction step that locks, reads and writes a row, `dbos_turns URL THREADS SECONDS WARM`."""

from __future__ import annotations

import json
import random
import sys
import threading
import time

import sqlalchemy
from dbos import DBOS, SQLAlchemyDatasource

KEYS = 10_000
url, threads, seconds, warm = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
tables = SQLAlchemyDatasource.create(url, engine_kwargs={"pool_size": threads + 2})


def step(key: int) -> int:
    session = tables.sql_session()
    version = session.execute(sqlalchemy.text("SELECT version FROM counters WHERE key = :key FOR UPDATE"), {"key": key}).scalar_one()
    session.execute(sqlalchemy.text("UPDATE counters SET version = version + 1 WHERE key = :key"), {"key": key})
    return int(version)


@DBOS.workflow()
def turn(key: int) -> int:
    return int(tables.run_tx_step({"isolation_level": "READ COMMITTED"}, step, key))


def measure() -> dict[str, float]:
    """As `measure.in_threads` does it, which is not to be had in this environment."""
    ended: list[tuple[float, float]] = []
    stop = threading.Event()

    def repeat(number: int) -> None:
        choose, now = random.Random(number).randrange, time.perf_counter
        while not stop.is_set():
            began = now()
            turn(choose(KEYS))
            ended.append((now(), now() - began))

    running = [threading.Thread(target=repeat, args=(number,)) for number in range(threads)]
    first = time.perf_counter() + warm
    for thread in running:
        thread.start()
    stop.wait(warm + seconds)
    stop.set()
    for thread in running:
        thread.join()
    took = sorted(took for end, took in ended if first <= end <= first + seconds)
    return {
        "rate": len(took) / seconds,
        "p50_ms": took[len(took) // 2] * 1000,
        "p99_ms": took[min(len(took) - 1, int(len(took) * 0.99))] * 1000,
        "count": len(took),
    }


def main() -> None:
    with sqlalchemy.create_engine(url).begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS counters (key bigint PRIMARY KEY, version bigint NOT NULL)"))
        connection.execute(
            sqlalchemy.text(f"INSERT INTO counters SELECT key, 0 FROM generate_series(0, {KEYS - 1}) key ON CONFLICT DO NOTHING")
        )
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "application_version": "1",
            "log_level": "ERROR",
            "sys_db_pool_size": threads + 2,
        }
    )
    DBOS.launch()
    turn(0)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(measure()), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
