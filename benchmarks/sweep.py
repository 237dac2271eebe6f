"""One sweep of old rows while turns run, against the same turns with nothing beside them: `python -m benchmarks.sweep`."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from akter import Akter
from akter.runner.retention import Sweeper
from benchmarks import place
from benchmarks.measure import Run, ratio, rows, run_of, said, save, spread
from benchmarks.turns import SCHEMA, Counter, prepare

EVERY = 0.02
"""Seconds from one turn of a thread to the next: a load that the machine carries easily, so that what is added shows."""

WHO = "bucket, routing_key, tenant_id, actor_type, actor_id"

FILL = (
    f"""INSERT INTO {SCHEMA}.actor_receipts ({WHO}, command_id, command, payload_hash, caller_key, outcome, expires_at_ms, started_at_ms,
          committed_at_ms)
        SELECT {WHO}, 'old-' || gen_random_uuid(), 'increment', repeat('x', 64), '["System","process",null,null]', '{{"ok":1}}', n, n, n
          FROM generate_series(1, %(each)s) n, {SCHEMA}.actor_generations WHERE actor_type = 'Counter'""",
    f"""INSERT INTO {SCHEMA}.actor_events ({WHO}, sequence, event, command_id, value, emitted_at_ms)
        SELECT {WHO}, event_sequence + n, 'Counted', gen_random_uuid(), '{{"to":1}}', n
          FROM generate_series(1, %(each)s) n, {SCHEMA}.actor_generations WHERE actor_type = 'Counter'""",
    f"UPDATE {SCHEMA}.actor_generations SET event_sequence = event_sequence + %(each)s",
)
"""Half of the rows are receipts, half events; those of one actor lie among those of all others, as time leaves them."""


def fill(url: str, each: int) -> None:
    """Give every actor `each` old receipts and events."""
    with place.connect(url) as connection:
        for statement in FILL:
            connection.execute(statement.encode(), {"each": each})
        connection.execute(b"VACUUM ANALYZE")
        connection.execute(b"CHECKPOINT")


def turns(app: Akter, keys: int, threads: int, over: Callable[[], bool]) -> Run:
    """Turns of random actors, a thread every so often, until it is over; each latency is that of the call alone."""
    latencies: list[list[float]] = [[] for _ in range(threads)]
    problems: list[BaseException] = []

    def repeat(number: int) -> None:
        chosen = random.Random(number)
        try:
            while not over():
                counter = app.actor(Counter, str(chosen.randrange(keys)))
                began = time.perf_counter()
                counter.increment()
                took = time.perf_counter() - began
                latencies[number].append(took)
                time.sleep(max(0.0, EVERY - took))
        except BaseException as problem:  # noqa: BLE001 - a benchmark whose work fails has no result
            problems.append(problem)

    began = time.perf_counter()
    running = [threading.Thread(target=repeat, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if problems:
        raise problems[0]
    return run_of((took for mine in latencies for took in mine), time.perf_counter() - began)


def alone(app: Akter, options: argparse.Namespace) -> Run:
    """Turns with nothing beside them."""
    end = time.perf_counter() + options.seconds
    return turns(app, options.keys, options.threads, lambda: time.perf_counter() > end)


def beside(app: Akter, url: str, options: argparse.Namespace) -> tuple[Run, int, float]:
    """Turns while a process of its own sweeps; also how many rows it pruned, and its seconds."""
    command = [sys.executable, "-m", "benchmarks.sweep", "--swept-url", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        # Starting a process costs more than a small sweep.
        if child.stdout.readline() != "ready\n":
            raise RuntimeError("the sweep did not start")
        child.stdin.write("go\n")
        child.stdin.flush()
        run = turns(app, options.keys, options.threads, lambda: child.poll() is not None)
        pruned, seconds = child.stdout.read().split()
    return run, int(pruned), float(seconds)


def sweep_alone(url: str) -> None:
    """What the other process does."""
    with Akter(url, actors=[Counter], schema=SCHEMA) as app:
        app.verify()
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        swept = Sweeper(app).sweep()
        print(sum(found.receipts + found.events for found in swept), time.perf_counter() - began)


def main() -> None:
    parser = place.parser("One sweep of old rows while turns run.", pairs=3, seconds=10.0)
    parser.add_argument("--rows", type=int, default=200_000, help="old rows of one sweep, half receipts, half events (default 200000)")
    parser.add_argument("--keys", type=int, default=10_000, help="how many actors there are (default 10000)")
    parser.add_argument("--threads", type=int, default=2, help="threads that run turns (default 2)")
    parser.add_argument("--swept-url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.swept_url:
        return sweep_alone(options.swept_url)
    each = max(1, options.rows // 2 // options.keys)
    found: dict[str, Any] = {"pairs": options.pairs, "seconds": options.seconds, "rows": 2 * each * options.keys, "runs": []}
    with place.database(options) as url, Akter(url, actors=[Counter], schema=SCHEMA) as app:
        found["machine"] = place.machine(url)
        app.migrate()
        app.verify()
        prepare(url, Counter, ['{"count":0}'] * options.keys)
        for _ in range(options.pairs):
            fill(url, each)
            alone(app, argparse.Namespace(**{**vars(options), "seconds": min(1.0, options.seconds)}))
            idle = alone(app, options)
            run, pruned, seconds = beside(app, url, options)
            found["runs"].append({"idle": vars_of(idle), "beside": vars_of(run), "pruned": pruned, "seconds": seconds})
    found["result"] = result(found["runs"])
    print(table(found["result"]))
    print(place.said(found["machine"]))
    print(f"{options.pairs} sweeps of {found['rows']} rows; medians (quartiles), also of the ratios")
    print(f"written to {save('sweep', options.json, found)}")


def vars_of(run: Run) -> dict[str, float]:
    """A run as JSON has it."""
    return {"rate": run.rate, "p50_ms": run.p50_ms, "p99_ms": run.p99_ms, "count": run.count}


def result(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the runs, and the ratios of turns beside a sweep to turns alone."""
    made: dict[str, Any] = {"rows per s": spread([run["pruned"] / run["seconds"] for run in runs])}
    for quantity in ("p50_ms", "p99_ms"):
        idle, beside_it = ([run[what][quantity] for run in runs] for what in ("idle", "beside"))
        made[quantity] = {"idle": spread(idle), "beside": spread(beside_it), "ratio": ratio(beside_it, idle)}
    return made


def table(found: dict[str, Any]) -> str:
    """Its table."""
    lines = [
        (name, said(found[quantity]["idle"]), said(found[quantity]["beside"]), said(found[quantity]["ratio"]))
        for name, quantity in (("p50 ms", "p50_ms"), ("p99 ms", "p99_ms"))
    ]
    head = ("turns", "alone", f"beside a sweep of {said(found['rows per s'], 0)} rows per s", "ratio")
    return rows(head, lines)


if __name__ == "__main__":
    main()
