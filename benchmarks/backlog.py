"""What waiting costs: draining beside many timers that are not due, and a runner with nothing to do."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from akter.store import claim
from akter.store.flight import compile_core
from benchmarks import place
from benchmarks.measure import ratio, rounds, rows, said, spread
from benchmarks.queues import OURS, PEERS, Queue, opened, processor_seconds, statements, transactions
from benchmarks.turns import SCHEMA

CLAIM = {
    "first": -128,
    "last": 127,
    "served": ["Sink"],
    "limit": 64,
    "probe": 128,
    "each": 4,
    "lease_ms": 37_000,
    "max_backoff_ms": 256_000,
}
"""A claim of a runner with all its seats free."""


PLANS = ("custom", "generic")


def timers(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The rate of a drain beside future timers and without any, and the rows and pages that a claim reads."""
    with opened(url, directory, [OURS], options.jobs, options.keys) as (alone, _):
        beside = directory / "beside"
        beside.mkdir()
        with opened(url, beside, [OURS], options.jobs, options.keys) as (future, _):
            names = ("none", f"{options.timers} future timers")
            queues = dict(zip(names, (alone["akter"], future["akter"]), strict=True))
            for queue in queues.values():
                queue.lasting = True
            future["akter"].add_future(options.timers)
            for queue in queues.values():
                queue.find_count(options.seconds)
            least = min(queue.count for queue in queues.values())
            for queue in queues.values():
                queue.count = least
            found = rounds({name: partial(queue.drain, 1, options.seconds) for name, queue in queues.items()}, options.pairs)
            for queue in queues.values():
                queue.count = least
            claims = {name: {plan: explained(queue, plan) for plan in PLANS} for name, queue in queues.items()}
    results = {name: {"rate": spread(runs), "ratio": ratio(runs, found["none"]), "claims": claims[name]} for name, runs in found.items()}
    return {"rates": found, "results": results}


def timers_table(result: dict[str, Any]) -> str:
    """Its table."""
    lines = [
        (name, said(one["rate"], 0), said(one["ratio"]), plan, claim["due"], claim["rows"], claim["pages"], f"{claim['ms']:.2f}")
        for name, one in result["results"].items()
        for plan, claim in one["claims"].items()
    ]
    return rows(("beside", "turns per s", "ratio", "a claim's plan", "rows due", "rows it reads", "pages", "ms"), lines)


def explained(queue: Queue, plan: str) -> dict[str, Any]:
    """What one claim reads while jobs are due, by EXPLAIN ANALYZE; it is rolled back."""
    with place.connect(queue.url) as connection:
        queue.clear(connection)
        with connection.transaction(force_rollback=True):
            queue.give(connection)
            connection.execute(f"SET LOCAL plan_cache_mode = force_{plan}_plan".encode())
            statement = compile_core(claim.intents(), SCHEMA)
            connection.execute(b"PREPARE claim AS " + statement.sql)
            given = {**statement.constants, **CLAIM}
            values = ", ".join(_literal(given[name]) for name in statement.parameters)
            asked = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim({values})".encode()
            # The first one reads the catalogue too.
            with connection.transaction(force_rollback=True):
                connection.execute(asked)
            ((found,),) = connection.execute(asked).fetchall()
            connection.execute("DEALLOCATE claim")
    whole = found[0] if not isinstance(found, str) else json.loads(found)[0]
    scans = [node for node in _nodes(whole["Plan"]) if node.get("Relation Name") == "actor_outbox" and "Scan" in node["Node Type"]]
    read = sum((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in scans)
    pages = whole["Plan"]["Shared Hit Blocks"] + whole["Plan"]["Shared Read Blocks"]
    return {"due": queue.count, "rows": round(read), "pages": pages, "ms": whole["Execution Time"], "plan": whole}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _literal(value: object) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(_literal, value))}]"
    return str(value) if isinstance(value, int) else f"'{value}'"


def idle(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What a worker does in a minute in which there is nothing to do. All are idle at the same time."""
    programs = [OURS, *(peer for peer in PEERS if peer.name in options.peers)]
    with opened(url, directory, programs, min(20, options.jobs), min(100, options.keys)) as (queues, missing), ExitStack() as stack:
        pids = {name: stack.enter_context(queue.workers(1))[0] for name, queue in queues.items()}
        time.sleep(min(8.0, options.idle))
        before, began = {name: _used(queue, pids[name]) for name, queue in queues.items()}, time.perf_counter()
        time.sleep(options.idle)
        after, minutes = {name: _used(queue, pids[name]) for name, queue in queues.items()}, (time.perf_counter() - began) / 60
    results = {
        name: {
            what: None if after[name][what] is None or before[name][what] is None else (after[name][what] - before[name][what]) / minutes
            for what in after[name]
        }
        for name in queues
    }
    return {"missing": missing, "results": results}


def _used(queue: Queue, pid: int) -> dict[str, Any]:
    return {
        "statements": statements(queue.url),
        "transactions": transactions(queue.url),
        "processor seconds": processor_seconds(pid),
    }


def idle_table(result: dict[str, Any]) -> str:
    """Its table."""
    lines = [
        (name, *("not counted" if one[what] is None else f"{one[what]:.2f}" for what in one)) for name, one in result["results"].items()
    ]
    absent = [(name, f"left out: {reason}", "", "") for name, reason in result["missing"].items()]
    return rows(("an idle worker, per minute", "statements", "transactions", "processor seconds"), [*lines, *absent])
