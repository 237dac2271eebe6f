"""Turns, replays and queries against pgbench on the same tables: `python -m benchmarks.turns`."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import psycopg
from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text, bindparam, insert, update

from akter import Actor, Akter, command, query
from akter.identity import address
from benchmarks import environments, place
from benchmarks.measure import Comparison, Measured, Run, in_threads, interleaved, save, table
from benchmarks.pgbench import BEGIN, COMMIT, LOCK, READ, STATE, TURN, WRITE, Actors, Pgbench
from benchmarks.together import Processes, answer

KEYS = 10_000
SCHEMA = "akter"

ours = MetaData()
accounts = Table(
    "accounts", ours, Column("id", BigInteger, primary_key=True, autoincrement=False), Column("balance", Integer, nullable=False)
)
entries = Table(
    "entries",
    ours,
    Column("id", BigInteger, primary_key=True),
    Column("account", BigInteger, nullable=False),
    Column("amount", Integer, nullable=False),
    Column("note", Text, nullable=False),
)
book = insert(entries).values(account=bindparam("account"), amount=bindparam("amount"), note=bindparam("note")).inline()
move = update(accounts).where(accounts.c.id == bindparam("account")).values(balance=accounts.c.balance + bindparam("amount"))

OWN_SQL = (
    "INSERT INTO entries (account, amount, note) VALUES (:key, 1, 'a benchmark');",
    "UPDATE accounts SET balance = balance + 1 WHERE id = :key;",
)


class Counter(Actor):
    """An actor that does nearly nothing, so that what is measured is the turn."""

    count: int = 0

    @command
    def increment(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @command(sql=True)
    def book(self, amount: int) -> int:
        self.connection.execute(book, {"account": int(self.id), "amount": amount, "note": "a benchmark"})
        self.connection.execute(move, {"account": int(self.id), "amount": amount})
        self.count += amount
        return self.count

    @query
    def value(self) -> int:
        return self.count


def prepare(url: str, kind: type[Actor], values: Sequence[str]) -> list[int]:
    """Make actors that have been used before, with these states and the ids "0", "1" and so on; returns their routing keys."""
    name = kind.__akter__.name
    found = [address("actor", "default", name, str(id)) for id in range(len(values))]
    key = "bucket, routing_key, tenant_id, actor_type, actor_id"
    with place.connect(url) as connection, connection.cursor() as cursor:
        with cursor.copy(f"COPY {SCHEMA}.actor_generations ({key}) FROM STDIN") as copy:
            for one in found:
                copy.write_row(one)
        with cursor.copy(f"COPY {SCHEMA}.actor_state ({key}, value, version) FROM STDIN") as copy:
            for one, value in zip(found, values, strict=True):
                copy.write_row((*one, value, 1))
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
    return [one.routing_key for one in found]


DBOS = ("dbos==3.4.0", "psycopg[binary]")


class Turns:
    """The comparisons, on one prepared database."""

    def __init__(self, app: Akter, url: str, plain: psycopg.Connection[Any], routing: list[int], seconds: float) -> None:
        self._app, self._plain = app, plain
        self._seconds, self._warm, self._url = seconds, min(0.5, seconds / 2), url
        self._open: list[Processes] = []
        self.missing: dict[str, str] = {}
        self.pgbench = Pgbench(url, SCHEMA, seconds, self._warm)
        self._all, self._hot = Actors("Counter", "increment", routing), Actors("Counter", "increment", routing[:1])

    def comparisons(self) -> list[Comparison]:
        """Everything that is measured, each beside its references."""
        turn = self._threads(self.turn)
        seven = (BEGIN, LOCK, READ, *OWN_SQL, WRITE, COMMIT)
        return [
            Comparison("turns, 1 thread", self._threads(self.turn), {"pgbench, 1 client": self._pgbench(TURN, 1)}),
            Comparison("turns, 8 threads", self._threads(self.turn, 8), {"pgbench, 8 clients": self._pgbench(TURN, 8)}),
            Comparison(
                "turns, 32 threads",
                self._threads(self.turn, 32),
                {"pgbench, 8 clients": self._pgbench(TURN, 8), "pgbench, 32 clients": self._pgbench(TURN, 32)},
            ),
            Comparison("turns, 32 threads, the process on one core", self._on_one_core(32), {"pgbench, 8 clients": self._pgbench(TURN, 8)}),
            Comparison(
                "turns of one actor, 8 threads",
                self._threads(self._hot_turn, 8),
                {"pgbench, 1 client": self._pgbench(TURN, 1), "pgbench, one actor, 8 clients": self._pgbench(TURN, 8, hot=True)},
            ),
            Comparison("turns with 2 own statements", self._threads(self._own_sql), {"pgbench, 1 client": self._pgbench(seven, 1)}),
            Comparison("replays of a receipt", self._threads(self._replay), {"akter, turns, 1 thread": turn}),
            Comparison(
                "queries, 1 thread",
                self._threads(self._query),
                {"psycopg, SELECT 1": self._threads(self._select_1), "pgbench, one SELECT": self._pgbench((STATE,), 1)},
            ),
        ]

    def beside(self, url: str, peers: Sequence[str]) -> list[Comparison]:
        """akter in two processes, and DBOS, whose rows are in a database of its own, `url`; in processes of their own."""
        child = [sys.executable, "-m", "benchmarks.turns", "--url", self._url, "--seconds", str(self._seconds), "--process"]
        two = self._processes(child, 2)
        eight = {"pgbench, 8 clients": self._pgbench(TURN, 8)}
        found = [Comparison("turns, 2 processes of 16 threads", two, eight)]
        apart = self._processes([*child[:-1], "--one-core", "--process"], 2)
        found.append(Comparison("turns, 2 processes of 16 threads, each on a core of its own", apart, eight))
        if "dbos" not in peers:
            return found
        try:
            python = environments.python_of("dbos", DBOS, (3, 10))
        except environments.NotInstalled as problem:
            self.missing["dbos"] = str(problem)
            return found
        for threads in (1, 32):
            program = [python, "-m", "benchmarks.crew.dbos_turns", url, str(threads), str(self._seconds), str(self._warm)]
            dbos = {"DBOS, workflow with a transaction step": self._processes(program, 1)}
            name = f"turns, {threads} {'thread' if threads == 1 else 'threads'}, beside DBOS"
            found.append(Comparison(name, self._threads(self.turn, threads), dbos))
        return found

    def _processes(self, command: list[str], count: int) -> Measured:
        self._open.append(processes := Processes(command, count))
        return processes.measure

    def close(self) -> None:
        """End the processes."""
        for processes in self._open:
            processes.close()

    def _threads(self, make: Callable[[int], Callable[[], object]], threads: int = 1) -> Measured:
        return lambda: in_threads(threads, make, self._seconds, self._warm)

    def _on_one_core(self, threads: int) -> Measured:
        """As many threads, none of which the system may move to another core: what `taskset --cpu-list 0` does to a process."""
        measure = self._threads(self.turn, threads)

        def measured() -> Run:
            with place.one_core(0):
                return measure()

        return measured

    def _pgbench(self, statements: tuple[str, ...], clients: int, hot: bool = False) -> Measured:
        return lambda: self.pgbench.run(statements, self._hot if hot else self._all, clients)

    def turn(self, thread: int) -> Callable[[], object]:
        """What a thread repeats: a turn of an actor chosen at random."""
        app, choose = self._app, random.Random(thread).randrange
        return lambda: app.actor(Counter, str(choose(KEYS))).increment()

    def _hot_turn(self, thread: int) -> Callable[[], object]:
        return lambda: self._app.actor(Counter, "0").increment()

    def _own_sql(self, thread: int) -> Callable[[], object]:
        app, choose = self._app, random.Random(thread).randrange
        return lambda: app.actor(Counter, str(choose(KEYS))).book(1)

    def _query(self, thread: int) -> Callable[[], object]:
        app, choose = self._app, random.Random(thread).randrange
        return lambda: app.actor(Counter, str(choose(KEYS))).value()

    def _replay(self, thread: int) -> Callable[[], object]:
        app, number = self._app, count()

        def once() -> None:
            id = str(next(number) % 500)
            with app.command_id(f"kept-{id}"):
                app.actor(Counter, id).increment()

        for _ in range(500):
            once()
        return once

    def _select_1(self, thread: int) -> Callable[[], object]:
        cursor = self._plain.cursor()

        def once() -> None:
            cursor.execute("SELECT 1")
            cursor.fetchone()

        return once


def run(url: str, pairs: int, seconds: float, only: Sequence[str] = (), peers: Sequence[str] = ("dbos",)) -> dict[str, Any]:
    """Measure on a new database and return the JSON's content; `only` what has one of these in its name."""
    with Akter(url, actors=[Counter], schema=SCHEMA) as app, place.fresh(url) as other:
        app.migrate()
        routing = prepare(url, Counter, ['{"count":0}'] * KEYS)
        ours.create_all(app.engine)
        with app.engine.begin() as connection:
            connection.execute(insert(accounts), [{"id": id, "balance": 0} for id in range(KEYS)])
        with place.connect(url) as plain:
            turns = Turns(app, url, plain, routing, seconds)
            try:
                comparisons = turns.comparisons()
                if peers and (not only or any(word in one for word in ("process", "DBOS") for one in only)):
                    comparisons += turns.beside(other, peers if not only or any("DBOS" in one for one in only) else ())
                machine = place.machine(url, turns.pgbench.version)
                wanted = [one for one in comparisons if not only or any(words in one.name for words in only)]
                results = interleaved(wanted, pairs)
            finally:
                turns.close()
    return {"machine": machine, "pairs": pairs, "seconds": seconds, "keys": KEYS, "results": results, "missing": turns.missing}


def process(url: str, seconds: float, core: int | None) -> None:
    """One of several processes that call the same actors, 16 threads each; `core`: the only one that it uses."""
    alone = contextlib.nullcontext() if core is None else place.one_core(core)
    with alone, Akter(url, actors=[Counter], schema=SCHEMA) as app, place.connect(url) as plain:
        turns = Turns(app, url, plain, [0], seconds)

        def measure() -> Run:
            found = in_threads(16, turns.turn, seconds, min(0.5, seconds / 2))
            # Its connections would count against what the others may have.
            app.engine.dispose()
            return found

        answer(measure)


def main() -> None:
    parser = place.parser("Turns, replays and queries of akter against pgbench on the same tables, and beside DBOS.", pairs=7, seconds=2.0)
    parser.add_argument("--only", nargs="*", default=[], help="only what has one of these in its name, such as '32 threads' or 'DBOS'")
    parser.add_argument(
        "--peers",
        nargs="*",
        default=["dbos"],
        choices=["dbos"],
        help="beside which it is measured; --peers alone: none, and no second process",
    )
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--one-core", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        process(options.url, options.seconds, options.process if options.one_core else None)
        return
    with place.database(options) as url:
        result = run(url, options.pairs, options.seconds, options.only, options.peers)
    print(table(result["results"]))
    print()
    for name, why in result["missing"].items():
        print(f"{name} was left out: {why}")
    print(place.said(result["machine"]))
    print(f"{options.pairs} interleaved pairs of {options.seconds} s; ratios are akter's to the reference's: median (quartiles)")
    print(f"written to {save('turns', options.json, result)}")


if __name__ == "__main__":
    main()
