"""Queues in databases and processes of their own: akter's outbox and its peers, filled, drained and timed in the same way."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from psycopg import sql
from sqlalchemy.engine import make_url

from akter import Akter
from akter.store import apart
from benchmarks import environments, place
from benchmarks.crew import ours
from benchmarks.crew.ours import Sink
from benchmarks.crew.program import plan_of
from benchmarks.crew.ticks import Ticks
from benchmarks.pgbench import COMMAND, LOCK, READ, WRITE
from benchmarks.turns import SCHEMA, prepare

SETTLING = 0.5
"""Seconds that workers get from when they say that they are ready until there is work."""

POOL = 16
"""Connections for turns in a worker of a peer: as many as akter's pool has."""


@dataclass(frozen=True)
class Program:
    """A queue: its program in `benchmarks.crew`, the tables that its jobs are in, others to be emptied, and what it needs.

    `seats`: jobs that a worker takes at once. `left`: what is true of the rows of jobs that are not settled yet.
    """

    name: str
    tables: tuple[str, ...]
    clear: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    least: tuple[int, int] = (3, 11)
    positional: bool = False
    seats: int = 100
    left: str = ""

    @property
    def table(self) -> str:
        """The table that says which jobs are due."""
        return self.tables[0]


OURS = Program("ours", (f"{SCHEMA}.actor_outbox",))
PEERS = (
    Program("pgqueuer", ("pgqueuer",), ("pgqueuer_log",), ("pgqueuer[asyncpg]==1.6.0", "uvloop"), positional=True, left="true"),
    Program("oban", ("oban_jobs",), (), ("oban==0.7.0", "psycopg[binary,pool]", "uvloop"), (3, 12), left="state NOT IN ('completed')"),
    Program(
        "procrastinate",
        ("procrastinate_jobs",),
        (),
        ("procrastinate==3.10.0", "psycopg[binary,pool]"),
        seats=20,
        left="status IN ('todo', 'doing')",
    ),
)


class Queue:
    """A queue in a database of its own, with `most` jobs put aside: every run is given the same ones, on tables as empty as at first."""

    def __init__(self, program: Program, url: str, directory: Path, most: int, keys: int, work: str = "turn") -> None:
        self.program, self.url, self.most, self.keys, self.work = program, url, most, keys, work
        self.python = environments.python_of(program.name, program.requirements, program.least) if program.requirements else sys.executable
        self._directory, self.count = directory / str(make_url(url).database), min(200, most)
        self._directory.mkdir()
        self.future, self.lasting = 0, False
        self.beside: Callable[[Queue], object] | None = None
        self.ticks = Ticks.make(self._directory / "ticks")
        with Akter(url, actors=[Sink], schema=SCHEMA) as app:
            app.migrate()
            app.verify()
            self.routing = prepare(url, Sink, ['{"count":0}'] * keys)
        self._plan()
        if program is OURS:
            self.bulk = ours.fill(plan_of(str(self._directory / "plan")), most)
        else:
            self.run("install")
            self.bulk = self.run("fill", most)
        self._put_aside()

    def find_count(self, seconds: float) -> None:
        """Find out how many jobs a run of `seconds` has to have."""
        if self.count < self.most:
            self.drain(1, seconds)

    def _plan(self) -> None:
        plain = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        spelled = {"lock": _spelled(LOCK, self.program), "read": _spelled(READ, self.program), "write": _spelled(WRITE, self.program)}
        known = {"schema": SCHEMA, "ticks": str(self._directory / "ticks"), "pool": POOL, "keys": self.keys, "routing": self.routing}
        known |= {"work": self.work, "seats": self.program.seats}
        url = self.url if self.ours else plain
        (self._directory / "plan").write_text(json.dumps({"url": url, **known, **spelled}))

    @property
    def ours(self) -> bool:
        """Whether it is akter's own."""
        return not self.program.requirements

    def _put_aside(self) -> None:
        with place.connect(self.url) as connection:
            for number, table in enumerate(self.program.tables):
                connection.execute(f"CREATE TABLE aside_{number} AS SELECT * FROM {table}".encode())
            self.clear(connection)

    def add_future(self, count: int) -> None:
        """Put jobs of akter's beside the others that are due in a month and later, for actors all over the buckets."""
        later = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 2592000000 + number"
        columns = "intent_id, target_type, target_id, command, payload, caller, due_at_ms, scheduled_at_ms"
        with place.connect(self.url) as connection:
            connection.execute(
                f"INSERT INTO {self.program.table} (bucket, routing_key, tenant_id, actor_type, actor_id, {columns}) "
                "SELECT bucket, routing_key, tenant_id, '$outside', '$outside', 'later-' || number, actor_type, actor_id, 'add', '{}', "
                f"""'{{"source":"process"}}', {later}, {later} FROM generate_series(1, {count}) AS number """
                f"JOIN {SCHEMA}.actor_generations ON actor_id = (number % {self.keys})::text".encode()
            )
            connection.execute(f"VACUUM ANALYZE {self.program.table}".encode())
        self.future = count

    def clear(self, connection: Any) -> None:
        """Empty the tables, but for what is to last."""
        if self.future or self.lasting:
            connection.execute(f"TRUNCATE {SCHEMA}.actor_receipts".encode())
            connection.execute(f"VACUUM {self.program.table}".encode())
            return
        tables = ", ".join((f"{SCHEMA}.actor_receipts", *self.program.tables, *self.program.clear))
        connection.execute(f"TRUNCATE {tables} CASCADE".encode())

    def command(self, *arguments: object) -> list[str]:
        """How a process of it is started."""
        return [self.python, "-m", f"benchmarks.crew.{self.program.name}", str(self._directory / "plan"), *map(str, arguments)]

    def run(self, *arguments: object) -> Any:
        """Run a command of its program to its end; returns what it prints."""
        done = subprocess.run(self.command(*arguments), cwd=_root(), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.program.name}: {' '.join(map(str, arguments))} failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout)

    @contextmanager
    def workers(self, count: int) -> Iterator[list[int]]:
        """Worker processes, at work and idle; their pids."""
        with open(self._directory / "log", "ab") as log, ExitStack() as stack:
            made = [stack.enter_context(_worker(self.command("work", slot), log)) for slot in range(count)]
            for child in made:
                assert child.stdout is not None
                if child.stdout.readline().strip() != b"ready":
                    raise RuntimeError(f"{self.program.name}: the worker did not start:\n{(self._directory / 'log').read_text()[-2000:]}")
            time.sleep(SETTLING)
            yield [child.pid for child in made]

    def drain(self, processes: int, seconds: float) -> float:
        """Jobs per second, from the first one's start until nothing is left; about as many as `seconds` are for."""
        with place.connect(self.url) as connection:
            self.clear(connection)
            self.ticks.clear()
            if self.beside is not None:
                self.beside(self)
            with self.workers(processes):
                with connection.transaction():
                    self.give(connection)
                rate = self._emptied(connection)
        self.count = max(20, min(self.most, int(rate * seconds)))
        return rate

    def give(self, connection: Any) -> None:
        """Make jobs due, all at once; a worker that waits for a hint gets one."""
        for number, table in enumerate(self.program.tables):
            # In the order in which they were put aside: rows of several tables belong together.
            chosen = f"SELECT * FROM aside_{number} LIMIT {self.count}"
            connection.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE {chosen}".encode())
            connection.execute(f"ANALYZE {table}".encode())
        if self.ours:
            connection.execute("SELECT pg_notify(%s, '')", [apart.channel(SCHEMA)])

    def _emptied(self, connection: Any) -> float:
        self.ticks.wait(self.count, 120.0, 0.005)
        if self.work != "turn" and not self.program.left:
            return self.count / (self.ticks.last - self.ticks.first)
        if self.work != "turn":
            left = f"SELECT EXISTS (SELECT FROM {self.program.table} WHERE {self.program.left})".encode()
            while connection.execute(left).fetchone()[0]:
                time.sleep(0.002)
            return self.count / (time.perf_counter() - self.ticks.first)
        receipts = f"SELECT count(*) FROM {SCHEMA}.actor_receipts".encode()
        while connection.execute(receipts).fetchone()[0] < self.count:
            time.sleep(0.002)
        return self.count / (time.perf_counter() - self.ticks.first)

    def sampled(self, seconds: float, *, together: bool = False, read: bool = False) -> list[float]:
        """Seconds from a commit to the job's start in an idle worker, one after another; `read`: until it has locked and read its actor."""
        samples = max(3, int(seconds / 0.05))
        with place.connect(self.url) as connection:
            self.clear(connection)
        self.ticks.clear()
        if together:
            return list(self.run("both", samples))
        with self.workers(1):
            return list(self.run("send", samples, *([1] if read else [])))


def _spelled(statement: str, program: Program) -> str:
    """A statement of pgbench's turn for another driver."""
    order = ("bucket", "routing", "kind", "key", "id", "command", "value")
    text = statement.replace(COMMAND, ":id").replace(":schema", SCHEMA).rstrip(";")
    spell: Callable[[str], str] = (lambda name: f"${order.index(name) + 1}") if program.positional else (lambda name: f"%({name})s")
    return re.sub(r"(?<!:):([a-z]+)", lambda match: spell(match[1]), text)


def _root() -> Path:
    return Path(__file__).parent.parent


@contextmanager
def _worker(command: Sequence[str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(command, cwd=_root(), stdout=subprocess.PIPE, stderr=log)
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        assert child.stdout is not None
        child.stdout.close()


Opened: TypeAlias = "tuple[dict[str, Queue], dict[str, str]]"


@contextmanager
def opened(
    url: str, directory: Path, programs: Sequence[Program], most: int, keys: int, work: str = "turn"
) -> Iterator[tuple[dict[str, Queue], dict[str, str]]]:
    """The queues, each in a new database beside `url`, and the reasons for those that are not there."""
    queues: dict[str, Queue] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for program in programs:
            try:
                if program.requirements:
                    environments.python_of(program.name, program.requirements, program.least)
            except environments.NotInstalled as problem:
                missing[program.name] = str(problem)
                continue
            base = stack.enter_context(place.fresh(url))
            queue = Queue(program, base, directory, most, keys, work)
            queues["akter" if queue.ours else program.name] = queue
        yield queues, missing


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / float(os.sysconf("SC_CLK_TCK"))


def transactions(url: str) -> int:
    """Transactions that ended in a database."""
    with place.connect(make_url(url).set(database="postgres").render_as_string(hide_password=False)) as connection:
        name = make_url(url).database
        row = connection.execute("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", [name]).fetchone()
        return int((row or (0,))[0])


def statements(url: str) -> int | None:
    """Statements that were executed in a database, where pg_stat_statements counts them."""
    counted = "SELECT sum(calls) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = {}"
    with place.connect(make_url(url).set(database="postgres").render_as_string(hide_password=False)) as connection:
        if "pg_stat_statements" not in str((connection.execute("SHOW shared_preload_libraries").fetchone() or [""])[0]):
            return None
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        row = connection.execute(sql.SQL(counted).format(sql.Literal(make_url(url).database))).fetchone()
        return int((row or (0,))[0] or 0)
