"""What happens after the commit, in figures: `python -m benchmarks.relay [turns] [latency] [timers] [idle] [staging]`."""

from __future__ import annotations

from typing import Any

from benchmarks import backlog, delivery, place, requests
from benchmarks.measure import save
from benchmarks.pgbench import Pgbench
from benchmarks.queues import PEERS
from benchmarks.turns import SCHEMA

PARTS = {
    "turns": (delivery.turns, delivery.turns_table),
    "latency": (delivery.latency, delivery.latency_table),
    "timers": (backlog.timers, backlog.timers_table),
    "idle": (backlog.idle, backlog.idle_table),
    "staging": (requests.staging, requests.staging_table),
}


def main() -> None:
    parser = place.parser("Messages delivered as turns, latency, timers, an idle runner, staging.", pairs=7, seconds=2.0)
    parser.add_argument("parts", nargs="*", metavar="TABLE", help=f"some of {', '.join(PARTS)} (default: all)")
    peers = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="*", default=peers, help=f"what to compare with, out of {', '.join(peers)} (default: all)")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of one run at most (default 10000)")
    parser.add_argument("--keys", type=int, default=10_000, help="how many actors there are (default 10000)")
    parser.add_argument("--timers", type=int, default=500_000, help="timers in the future (default 500000)")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds to be idle (default 60)")
    parser.add_argument("--most", type=int, default=1_000, help="messages of one turn at most (default 1000)")
    options = parser.parse_args()
    if unknown := sorted({*options.parts} - {*PARTS} | {*options.peers} - {*peers}):
        parser.error(f"there is no {unknown[0]}")
    found: dict[str, Any] = {"pairs": options.pairs, "seconds": options.seconds}
    with place.server(options, {"shared_preload_libraries": "pg_stat_statements"}) as url:
        found["machine"] = place.machine(url, Pgbench(url, SCHEMA, 1.0, 0.0).version)
        found |= place.tables(PARTS, url, options)
    print(place.said(found["machine"]))
    print(f"{options.pairs} interleaved runs of about {options.seconds} s each; medians (quartiles), also of the ratios")
    print(f"written to {save('relay', options.json, found)}")


if __name__ == "__main__":
    main()
