"""Jobs in figures, beside other queues for PostgreSQL: `python -m benchmarks.jobs [drain] [enqueue] [latency] [future] [crowd]`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import place
from benchmarks.measure import ratio, rounds, rows, said, save, spread
from benchmarks.queues import PEERS, Program, Queue, opened
from benchmarks.turns import SCHEMA

OURS = Program("ours_jobs", (f"{SCHEMA}.actor_outbox",), left="command = 'noop'")
"""akter's jobs; its requests from outside are `benchmarks.relay`'s subject."""

ALL = (
    *PEERS,
    Program(
        "absurd",
        ("absurd.t_benchmark", "absurd.r_benchmark"),
        (),
        ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]"),
        left="state NOT IN ('completed')",
    ),
    Program(
        "dbos",
        ("dbos.workflow_status",),
        ("dbos.operation_outputs",),
        ("dbos==3.4.0", "psycopg[binary]"),
        left="status IN ('ENQUEUED', 'PENDING')",
    ),
)

SEATS = 256
FEW = 16
BATCH = 500
"""Jobs that pgqueuer takes at once: its best."""


def _programs(options: argparse.Namespace, seats: int) -> list[Program]:
    peers = [replace(peer, seats=BATCH if peer.name == "pgqueuer" else seats) for peer in ALL if peer.name in options.peers]
    return [replace(OURS, seats=seats), *peers]


@contextmanager
def _opened(
    url: str, directory: Path, options: argparse.Namespace, seats: int = SEATS, work: str = "noop"
) -> Iterator[tuple[dict[str, Queue], dict[str, str]]]:
    with opened(url, directory, _programs(options, seats), options.jobs, 10, work) as (queues, missing):
        yield queues, missing


def _drain(queue: Queue, processes: int, count: int) -> float:
    queue.count = count
    return queue.drain(processes, 1.0)


def drain(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Jobs per second until all are settled, in one and in two processes; akter's with few seats, too."""
    few = directory / "few"
    few.mkdir()
    alone = argparse.Namespace(**{**vars(options), "peers": []})
    with _opened(url, directory, options) as (queues, missing), _opened(url, few, alone, FEW) as (others, _):
        subjects: dict[str, Callable[[], float]] = {}
        for processes, many in ((1, "1 process"), (2, "2 processes")):
            for name, queue in queues.items():
                subjects[f"{name}, {many}"] = partial(_drain, queue, processes, options.jobs)
            subjects[f"akter with {FEW} seats, {many}"] = partial(_drain, others["akter"], processes, options.jobs)
        found = rounds(subjects, options.pairs)
    results = {
        name: {"rate": spread(runs), "akter to this": ratio(found[f"akter, {name.partition(', ')[2]}"], runs)}
        for name, runs in found.items()
    }
    return {"rates": found, "missing": missing, "results": results}


def drain_table(result: dict[str, Any]) -> str:
    """Its table."""
    lines = [(name, said(one["rate"], 0), said(one["akter to this"])) for name, one in result["results"].items()]
    return rows(("jobs that do nothing", "per s", "akter's rate to this one's"), [*lines, *_absent(result, 1)])


def _absent(result: Mapping[str, Any], blank: int) -> list[tuple[str, ...]]:
    return [(name, f"left out: {reason}", *[""] * blank) for name, reason in result["missing"].items()]


def enqueue(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Jobs per second that are asked for one by one, each in a commit of its own, and many at once."""
    with _opened(url, directory, options) as (queues, missing):
        bulk = {name: queue.bulk for name, queue in queues.items() if queue.program.name not in ("absurd", "dbos")}
        count = max(20, int(options.seconds * 200))
        found = rounds({name: partial(_single, queue, count) for name, queue in queues.items()}, options.pairs)
    results = {
        name: {"rate": spread(runs), "akter to this": ratio(found["akter"], runs), "bulk": bulk.get(name)} for name, runs in found.items()
    }
    return {"rates": found, "missing": missing, "results": results}


def _single(queue: Queue, count: int) -> float:
    with place.connect(queue.url) as connection:
        queue.clear(connection)
    return float(queue.run("single", count))


def enqueue_table(result: dict[str, Any]) -> str:
    """Its table."""
    lines = [
        (name, said(one["rate"], 0), said(one["akter to this"]), f"{one['bulk']:.0f}" if one["bulk"] else "it has none")
        for name, one in result["results"].items()
    ]
    return rows(
        ("asking for a job", "one by one, per s", "akter's rate to this one's", "in bulk, once, per s"), [*lines, *_absent(result, 2)]
    )


def latency(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """From the commit that asks for a job to its start in another process, which is idle."""
    small = argparse.Namespace(**{**vars(options), "jobs": min(20, options.jobs)})
    with _opened(url, directory, small) as (queues, missing):
        found = rounds({name: partial(queue.sampled, options.seconds) for name, queue in queues.items()}, options.pairs)
    middle = {name: [statistics.median(samples) * 1000 for samples in runs] for name, runs in found.items()}
    results = {}
    for name, runs in found.items():
        together = sorted(chain.from_iterable(runs))
        results[name] = {
            "p50_ms": spread(middle[name]),
            "p99_ms": together[min(len(together) - 1, int(len(together) * 0.99))] * 1000,
            "akter to this": ratio(middle["akter"], middle[name]),
        }
    return {"seconds": found, "missing": missing, "results": results}


def latency_table(result: dict[str, Any]) -> str:
    """Its table."""
    lines = [(name, said(one["p50_ms"]), f"{one['p99_ms']:.2f}", said(one["akter to this"])) for name, one in result["results"].items()]
    head = ("commit to a job's start", "p50 ms", "p99 ms of all", "p50 of akter to this one's")
    return rows(head, [*lines, *_absent(result, 2)])


def future(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The rate of a drain beside jobs that are due in a month, and without any."""
    return _beside(url, directory, options, f"{options.future} future jobs", lambda queue: _add_future(queue, options.future))


def crowd(url: str, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The rate of a drain beside jobs of one actor that may only run one at a time."""
    return _beside(url, directory, options, f"{options.crowd} waiting jobs of one actor", None)


def _beside(url: str, directory: Path, options: argparse.Namespace, what: str, add: Callable[[Queue], None] | None) -> dict[str, Any]:
    alone, other = argparse.Namespace(**{**vars(options), "peers": []}), directory / "beside"
    other.mkdir()
    work = "noop" if add is not None else "crowded"
    with _opened(url, directory, alone, work=work) as (plain, _), _opened(url, other, alone, work=work) as (crowded, _):
        subjects = {"none": plain["akter"], what: crowded["akter"]}
        # Looking through half a million rows for what is left would take longer than what is measured.
        for queue in subjects.values():
            queue.program = replace(queue.program, left="")
        if add is not None:
            for queue in subjects.values():
                queue.lasting = True
            add(crowded["akter"])
        else:
            crowded["akter"].beside = lambda queue: queue.run("crowd", options.crowd)
        found = rounds({name: partial(_drain, queue, 1, options.jobs) for name, queue in subjects.items()}, options.pairs)
    return {"rates": found, "results": {name: {"rate": spread(runs), "ratio": ratio(runs, found["none"])} for name, runs in found.items()}}


def _add_future(queue: Queue, count: int) -> None:
    """Jobs that are due in a month and later, of actors all over the buckets: each like one that is put aside."""
    later = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 2592000000 + number"
    replaced = {"intent_id": "'later-' || number", "due_at_ms": later, "scheduled_at_ms": later, "ready_at_ms": later}
    with place.connect(queue.url) as connection:
        listed = "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'actor_outbox'"
        names = [name for (name,) in connection.execute(listed, [SCHEMA])]
        chosen = ", ".join(replaced.get(name, f'"{name}"') for name in names)
        columns = ", ".join(f'"{name}"' for name in names)
        connection.execute(
            f"INSERT INTO {queue.program.table} ({columns}) SELECT {chosen} FROM generate_series(1, {count}) AS number "
            f"JOIN (SELECT *, row_number() OVER () AS ord FROM aside_0) AS known ON known.ord = 1 + number % {queue.most}".encode()
        )
        connection.execute(f"VACUUM ANALYZE {queue.program.table}".encode())
    queue.future = count


def beside_table(result: dict[str, Any]) -> str:
    """Their table."""
    return rows(
        ("beside", "jobs per s", "ratio"), [(name, said(one["rate"], 0), said(one["ratio"])) for name, one in result["results"].items()]
    )


PARTS: dict[str, place.Part] = {
    "drain": (drain, drain_table),
    "enqueue": (enqueue, enqueue_table),
    "latency": (latency, latency_table),
    "future": (future, beside_table),
    "crowd": (crowd, beside_table),
}


def main() -> None:
    parser = place.parser("Jobs: how fast they run, are asked for and start.", pairs=7, seconds=2.0)
    parser.add_argument("parts", nargs="*", metavar="TABLE", help=f"some of {', '.join(PARTS)} (default: all)")
    peers = [peer.name for peer in ALL]
    parser.add_argument("--peers", nargs="*", default=peers, help=f"what to compare with, out of {', '.join(peers)} (default: all)")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of one drain (default 10000)")
    parser.add_argument("--future", type=int, default=500_000, help="jobs in the future (default 500000)")
    parser.add_argument("--crowd", type=int, default=1_000, help="waiting jobs of one actor (default 1000)")
    options = parser.parse_args()
    if unknown := sorted({*options.parts} - {*PARTS} | {*options.peers} - {*peers}):
        parser.error(f"there is no {unknown[0]}")
    found: dict[str, Any] = {"pairs": options.pairs, "seconds": options.seconds, "jobs": options.jobs}
    with place.server(options, {}) as url:
        found["machine"] = place.machine(url)
        found |= place.tables(PARTS, url, options)
    print(place.said(found["machine"]))
    print(f"{options.pairs} interleaved runs of {options.jobs} jobs each; medians (quartiles), also of the ratios")
    print(f"written to {save('jobs', options.json, found)}")


if __name__ == "__main__":
    main()
