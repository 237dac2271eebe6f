"""Where the microseconds of a warm turn go: `python -m benchmarks.profile`."""

from __future__ import annotations

import pkgutil
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any
from unittest import mock

from akter import Akter
from akter.store import turn as statements
from akter.store.flight import Compiled
from benchmarks import place
from benchmarks.measure import Comparison, in_threads, interleaved, save, table
from benchmarks.pgbench import BEGIN, COMMIT, KEY, THIS, TURN, Actors, Pgbench
from benchmarks.turns import KEYS, SCHEMA, Counter, Turns, prepare

SECTIONS = (
    ("the handle: app.actor(...)", ("akter.app.Akter.actor",)),
    ("arguments: bind and check", ("akter.command.Command.bind",)),
    ("access policy, asked twice", ("akter.app.Akter._authorize",)),
    ("command id, payload hash", ("akter.app.Akter._call",)),
    ("connection: check out", ("akter.store.wire.Wire.__init__",)),
    ("connection: give back", ("akter.store.wire.Wire.__exit__",)),
    ("rows and lines of admission", ("akter.turn.Turn.admit",)),
    ("state, handler, result", ("akter.member.Member.handle",)),
    ("rows and lines of the commit", ("akter.turn.Turn.commit",)),
    ("flights: parameters to libpq", ("akter.store.flight._send",)),
    ("flights: socket and server", ("psycopg.waiting.wait",)),
    ("flights: results to Python", ("akter.store.flight._receive", "akter.store.flight._read")),
    ("flights: the rest", ("akter.store.wire.Wire.fly",)),
)
"""What is timed, without what is timed inside of it. A name that is not there any more counts for what calls it."""

REST = "the rest: app, delivery, turn"


class Stopwatch:
    """Adds up the time of each section while a turn runs in one thread."""

    def __init__(self) -> None:
        self.turns: list[dict[str, float]] = []
        self._inner = [0]
        self._now: dict[str, int] = {}

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its own time added to a section."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0)
            began = perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                took = perf_counter_ns() - began
                self._now[label] = self._now.get(label, 0) + took - self._inner.pop()
                self._inner[-1] += took

        return call

    def turn(self, function: Callable[[], object]) -> None:
        """Run one turn and keep its sections."""
        self._now, self._inner = {}, [0]
        self.timed(REST, function)()
        self.turns.append({label: took / 1000 for label, took in self._now.items()})


@contextmanager
def installed(stopwatch: Stopwatch) -> Iterator[list[str]]:
    """Time the sections in this block; gives the names that were not found."""
    missing: list[str] = []
    with ExitStack() as stack:
        for label, names in SECTIONS:
            for name in names:
                try:
                    found = pkgutil.resolve_name(name)
                except (AttributeError, ImportError):
                    missing.append(name)
                else:
                    stack.enter_context(mock.patch(name, stopwatch.timed(label, found)))
        yield missing


def sections(app: Akter, turns: Turns, count: int) -> dict[str, Any]:
    """The median microseconds of each section over `count` turns."""
    operation, stopwatch = turns.turn(0), Stopwatch()
    for _ in range(200):
        operation()
    with installed(stopwatch) as missing:
        for _ in range(count):
            stopwatch.turn(operation)
    labels = [label for label, _ in SECTIONS] + [REST]
    medians = {label: statistics.median(turn.get(label, 0.0) for turn in stopwatch.turns) for label in labels}
    return {"microseconds": medians, "whole": statistics.median(sum(turn.values()) for turn in stopwatch.turns), "missing": missing}


def own_statements(app: Akter) -> Sequence[str]:
    """akter's own statements as a script of pgbench, in the same two flights: what a turn costs without Python."""
    get = app._statements.get
    limits = {
        "statement_timeout": "'10000ms'",
        "lock_timeout": "'2000ms'",
        "idle_in_transaction_session_timeout": "'11000ms'",
    }
    values = {
        **limits,
        **{"bucket": ":bucket", "routing_key": ":routing", "tenant_id": "'default'", "actor_type": ":kind", "actor_id": ":key::text"},
        **{"command_id": "('v1.1796000000000.1796086400000.' || :one::text || :two::text)", "ord": "0", "command": ":command"},
        **{"payload_hash": "'44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a'", "caller_key": "'system'"},
        **{
            "outcome": "'{}'",
            "expires_at_ms": "1796086400000",
            "started_at_ms": "1796000000000",
            "value": ":value",
            "payload_version": "0",
        },
        **{"transaction": "pg_current_xact_id()::text", "receipts": "1", "states": "1"},
        # pgbench cannot read an answer in the middle of a flight, so it looks the version up once more.
        "version": f"(SELECT version + 1 FROM :schema.actor_state WHERE ({KEY}) = ({THIS}))",
    }

    def written(statement: Compiled) -> str:
        def value(match: re.Match[str]) -> str:
            name = statement.parameters[int(match[1]) - 1]
            if name in statement.constants:
                return f"'{statement.constants[name]}'"
            return values.get(name) or values[name.partition("_")[2]]

        return re.sub(r"\$(\d+)", value, statement.sql.decode()).replace("\n", " ") + ";"

    settings = written(get(statements.settings))
    admission = [BEGIN, settings, written(get(statements.lock, False)), written(get(statements.read, False))]
    commit = [settings, written(get(statements.write, False, True, False)), COMMIT]
    return ["\\startpipeline", *admission, "\\endpipeline", "\\startpipeline", *commit, "\\endpipeline"]


def run(url: str, pairs: int, seconds: float, count: int) -> dict[str, Any]:
    """Measure on a new database and return the JSON's content."""
    warm = min(0.5, seconds / 2)
    with Akter(url, actors=[Counter], schema=SCHEMA) as app, place.connect(url) as plain:
        app.migrate()
        routing = prepare(url, Counter, ['{"count":0}'] * KEYS)
        pgbench, actors = Pgbench(url, SCHEMA, seconds, warm), Actors("Counter", "increment", routing)
        turns = Turns(app, url, plain, routing, seconds)
        found: dict[str, Any] = {"machine": place.machine(url, pgbench.version)}
        found["durable"] = sections(app, turns, count)
        own = own_statements(app)
        references = {
            "pgbench, akter's own statements in two flights": lambda: pgbench.run(own, actors, 1),
            "pgbench, five statements": lambda: pgbench.run(TURN, actors, 1),
        }
        found["results"] = interleaved([Comparison("turns, 1 thread", lambda: in_threads(1, turns.turn, seconds, warm), references)], pairs)
    return found


def main() -> None:
    parser = place.parser("Where the microseconds of a warm turn go.", pairs=7, seconds=2.0)
    parser.add_argument("--turns", type=int, default=3_000, help="how many turns are taken apart (default 3000)")
    options = parser.parse_args()
    with place.database(options) as url:
        result = run(url, options.pairs, options.seconds, options.turns)
    found = result["durable"]
    print("| section | median µs |\n|---|---|")
    for label, took in found["microseconds"].items():
        print(f"| {label} | {took:.0f} |")
    print(f"| the whole turn, with the stopwatch | {found['whole']:.0f} |")
    print()
    print(table(result["results"]))
    if found["missing"]:
        print(f"not found, and counted for what calls it: {', '.join(found['missing'])}")
    print()
    print(place.said(result["machine"]))
    print(f"written to {save('profile', options.json, result)}")


if __name__ == "__main__":
    main()
