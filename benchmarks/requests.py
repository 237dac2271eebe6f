"""What it costs to ask: messages of a turn, and many from outside in a transaction of one's own."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection

from akter import Akter
from benchmarks import place
from benchmarks.crew.ours import Sink
from benchmarks.measure import ratio, rounds, rows, said, spread
from benchmarks.queues import PEERS, opened
from benchmarks.turns import SCHEMA, prepare

MANY = (0, 1, 10, 100, 1000)
BULK = 1_000
WRITTEN = (
    "bucket, routing_key, tenant_id, actor_type, actor_id, intent_id, target_type, target_id, command, payload, caller, "
    "due_at_ms, scheduled_at_ms"
)


class Requests:
    """Turns that send, and bulk staging, on one prepared database; the outbox is emptied before each measurement."""

    def __init__(self, app: Akter, outside: Connection, plain: psycopg.Connection[Any], routing: list[int], seconds: float) -> None:
        self._app, self._outside, self._plain, self._routing, self._seconds = app, outside, plain, routing, seconds

    def turns(self, many: int) -> float:
        """The median milliseconds of a turn that sends so many messages."""
        handle, took = self._app.actor(Sink, "0"), list[float]()
        for operation in self._repeated():
            operation(lambda: handle.ask(many), took)
        return statistics.median(took) * 1000

    def bulk(self, size: int) -> float:
        """Messages per second that `send_many` writes, so many in a transaction."""
        targets, took = [self._app.actor(Sink, str(number)) for number in range(100)], list[float]()

        def once() -> None:
            with self._outside.begin():
                self._app.within(self._outside).send_many([(targets[number % 100].add, {}) for number in range(size)])

        for operation in self._repeated():
            operation(once, took)
        return size / statistics.median(took)

    def by_hand(self, size: int, copy: bool) -> float:
        """Rows per second that psycopg writes into the same table, with `executemany` or COPY; the rows are ready before."""
        took, number = list[float](), 0
        insert = f"INSERT INTO {SCHEMA}.actor_outbox ({WRITTEN}) VALUES ({', '.join(['%s'] * 13)})"
        for operation in self._repeated():
            lines = [self._row(number + each) for each in range(size)]
            number += size

            def once(lines: list[tuple[Any, ...]] = lines) -> None:
                with self._plain.transaction(), self._plain.cursor() as cursor:
                    if not copy:
                        cursor.executemany(insert.encode(), lines)
                        return
                    with cursor.copy(f"COPY {SCHEMA}.actor_outbox ({WRITTEN}) FROM STDIN".encode()) as into:
                        for line in lines:
                            into.write_row(line)

            operation(once, took)
        return size / statistics.median(took)

    def _row(self, number: int) -> tuple[Any, ...]:
        key = number % len(self._routing)
        routing, id = self._routing[key], f"v1.1796000000000.1796086400000.{number:036}"
        who = (routing >> 56, routing, "default", "$outside", "$outside", id, "Sink", str(key), "add", "{}")
        return (*who, '{"source":"process"}', 1796000000000, 1796000000000)

    def _repeated(self) -> Any:
        self._plain.execute(f"TRUNCATE {SCHEMA}.actor_outbox".encode())
        end, round = time.perf_counter() + self._seconds, 0
        while time.perf_counter() < end or round < 3:
            warm, round = round == 0, round + 1

            def timed(operation: Callable[[], None], took: list[float], warm: bool = warm) -> None:
                began = time.perf_counter()
                operation()
                if not warm:
                    took.append(time.perf_counter() - began)

            yield timed


def staging(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What messages cost their turn, and how many can be staged in bulk; the peers' own bulk calls beside it."""
    with place.fresh(url) as ours, Akter(ours, actors=[Sink], schema=SCHEMA) as app:
        app.migrate()
        routing = prepare(ours, Sink, ['{"count":0}'] * options.keys)
        with app.engine.connect() as outside, place.connect(ours) as plain:
            requests = Requests(app, outside, plain, routing, options.seconds)
            many = [number for number in MANY if number <= options.most]
            size = min(BULK, options.most)
            found = rounds({f"{number}": partial(requests.turns, number) for number in many}, options.pairs)
            bulk = rounds(
                {
                    f"send_many of {size}": partial(requests.bulk, size),
                    f"psycopg, executemany of {size}": partial(requests.by_hand, size, False),
                    f"psycopg, COPY of {size}": partial(requests.by_hand, size, True),
                },
                options.pairs,
            )
    peers = [peer for peer in PEERS if peer.name in options.peers]
    with opened(url, directory, peers, options.jobs, options.keys) as (queues, missing):
        once = {name: queue.bulk for name, queue in queues.items()}
    none, (ours_bulk, *_) = found["0"], bulk.values()
    turns = {
        name: {
            "ms": spread(took),
            "each_us": spread([(one - other) * 1000 / int(name) for one, other in zip(took, none, strict=True)]) if name != "0" else None,
        }
        for name, took in found.items()
    }
    rates = {name: {"rate": spread(runs), "send_many to this": ratio(ours_bulk, runs)} for name, runs in bulk.items()}
    return {"turns": turns, "bulk": rates, "processes": once, "missing": missing, "raw": {"ms": found, "rates": bulk}}


def staging_table(result: dict[str, Any]) -> str:
    """Its tables."""
    turns = [(name, said(one["ms"]), said(one["each_us"], 0) if one["each_us"] else "") for name, one in result["turns"].items()]
    bulk = [(name, said(one["rate"], 0), said(one["send_many to this"])) for name, one in result["bulk"].items()]
    once = [(f"{name}, its own bulk call, once", f"{rate:.0f}", "") for name, rate in result["processes"].items()]
    return "\n\n".join(
        (
            rows(("messages sent by a turn", "the turn, ms", "per message, µs"), turns),
            rows(("rows from outside, a transaction each", "per s", "send_many to this"), [*bulk, *once]),
        )
    )
