"""How fast messages become turns, and how soon: beside queues that run the same transaction, and pgbench doing it by hand."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.measure import ratio, rounds, rows, said, spread
from benchmarks.pgbench import TURN, Actors, Pgbench
from benchmarks.queues import OURS, PEERS, Queue, opened
from benchmarks.turns import SCHEMA

YARDSTICK = "pgbench, five statements, 8 clients"


def turns(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Intents delivered as turns per second, and the queued turns of the peers."""
    programs = [OURS, *(peer for peer in PEERS if peer.name in options.peers)]
    with opened(url, directory, programs, options.jobs, options.keys) as (queues, missing):
        subjects: dict[str, Callable[[], float]] = {
            f"{name}, {_many(processes)}": partial(queue.drain, processes, options.seconds)
            for name, queue in queues.items()
            for processes in (1, 2)
        }
        subjects[YARDSTICK] = partial(_by_hand, queues["akter"], options.seconds)
        for queue in queues.values():
            queue.find_count(options.seconds)
        found = rounds(subjects, options.pairs)
    return {"rates": found, "missing": missing, "results": {name: _compared(name, found) for name in found}}


def _many(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _by_hand(queue: Queue, seconds: float) -> float:
    pgbench = Pgbench(queue.url, SCHEMA, seconds, min(0.5, seconds / 2))
    return pgbench.run(TURN, Actors("Sink", "add", queue.routing), 8).rate


def _compared(name: str, found: Mapping[str, list[float]]) -> dict[str, Any]:
    # akter with as many processes as this one.
    ours = found[f"akter, {name.partition(', ')[2]}"] if name != YARDSTICK else found["akter, 1 process"]
    return {"rate": spread(found[name]), "akter to this": ratio(ours, found[name])}


def turns_table(result: dict[str, Any]) -> str:
    """Its table."""
    lines = [(name, said(one["rate"], 0), said(one["akter to this"])) for name, one in result["results"].items()]
    absent = [(name, f"left out: {reason}", "") for name, reason in result["missing"].items()]
    return rows(("queued turns", "per s", "akter's rate to this one's"), [*lines, *absent])


def latency(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """From a commit to the start of the handler, with nothing else to do.

    akter's begins with its actor locked and read, a peer's before. So a peer is measured twice: when its job begins, and when it has come
    as far as akter's handler is then.
    """
    programs = [OURS, *(peer for peer in PEERS if peer.name in options.peers)]
    with opened(url, directory, programs, min(20, options.jobs), min(100, options.keys)) as (queues, missing):
        subjects: dict[str, Callable[[], list[float]]] = {
            f"{name}, two processes": partial(queue.sampled, options.seconds) for name, queue in queues.items()
        }
        subjects |= {
            f"{name}, two processes, its actor locked and read": partial(queue.sampled, options.seconds, read=True)
            for name, queue in queues.items()
            if not queue.ours
        }
        subjects["akter, one process"] = partial(queues["akter"].sampled, options.seconds, together=True)
        found = rounds(subjects, options.pairs)
    medians = {name: [statistics.median(seconds) * 1000 for seconds in runs] for name, runs in found.items()}
    ours = medians["akter, two processes"]
    results = {
        name: {
            "p50_ms": spread(medians[name]),
            "p99_ms": _percentile(list(chain.from_iterable(runs)), 0.99),
            "samples": sum(map(len, runs)),
            "akter to this": ratio(ours, medians[name]),
        }
        for name, runs in found.items()
    }
    return {"seconds": found, "missing": missing, "results": results}


def _percentile(seconds: list[float], part: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * part))] * 1000


def latency_table(result: dict[str, Any]) -> str:
    """Its table."""
    lines = [
        (name, said(one["p50_ms"]), f"{one['p99_ms']:.2f}", one["samples"], said(one["akter to this"]))
        for name, one in result["results"].items()
    ]
    absent = [(name, f"left out: {reason}", "", "", "") for name, reason in result["missing"].items()]
    head = ("commit to handler", "p50 ms", "p99 ms of all", "samples", "p50 of akter in two processes to this one's")
    return rows(head, [*lines, *absent])
