"""The system under simulation: two processes' apps behind a network that a test can break, and what is done to them, step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import sqlalchemy
import sqlalchemy.exc
from acting import ACTORS, Clock, Node, Refused, Watcher, tape
from judge import Stored
from plan import Fault, Line, Operation
from proxied import Proxy
from sqlalchemy import column, select, table

from akter import Akter, Defect, Unavailable
from akter.fault import Crashed, Pause
from akter.runner import Runner
from akter.testing import advance, crash_next

FAMILIES = ("intents", "jobs", "feed", "control", "subscription")
LEASE = timedelta(seconds=61)
ROUNDS = 60
outside = table("sim_outside", column("tag"), column("actor"), schema="public")

TABLES = """
CREATE TABLE public.sim_booked (tag text, actor text);
CREATE TABLE public.sim_outside (tag text PRIMARY KEY, actor text)
"""
DUE = """SELECT (SELECT count(*) FROM {schema}.actor_outbox WHERE due_at_ms <= now)
    + (SELECT count(*) FROM {schema}.actor_subscriptions WHERE due_at_ms <= now)
    FROM (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + clock_offset_ms AS now
          FROM {schema}.actor_deployment) AS clock
"""
CLIENTS = """FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""


class Failed(AssertionError):
    """The simulation of a seed found something wrong."""


class Planned(NamedTuple):
    """A fault that waits for the work of its family."""

    fault: Fault
    pause: Pause


class Process:
    """One process: an app, and a runner for each family, so that what is due can be carried out one after the other."""

    def __init__(self, url: str, schema: str, ride: bool) -> None:
        self.engine = sqlalchemy.create_engine(url, pool_size=5, max_overflow=0)
        self.app = Akter(self.engine, actors=ACTORS, schema=schema, hint=False, lock=0.5)
        options: dict[str, Any] = {"listen": False, "sweep": None, "poll": 3600.0, "ride": ride}
        self._runners = [Runner(self.app, lanes={name: int(name == family) for name in FAMILIES}, **options) for family in FAMILIES]
        self.stepping, self.planned = "", list[Planned]()
        self.app.faults.watch(self._at)

    def plan(self, fault: Fault) -> Planned:
        """Let the next work of the fault's family die at its point, or stand still there."""
        self.planned.append(Planned(fault, Pause()))
        return self.planned[-1]

    def _at(self, point: str, subject: Any) -> None:
        found = next((one for one in self.planned if (one.fault.family, one.fault.point) == (self.stepping, point)), None)
        if found is None:
            return
        self.planned.remove(found)
        if found.fault.kind == "stall":
            found.pause.hold(120.0)
        else:
            raise Crashed(f"crashed at {point}", command_id=subject.id)

    def step(self) -> None:
        """Carry out what is due, one family after the other, each in one thread."""
        for family, runner in zip(FAMILIES, self._runners, strict=True):
            self.stepping = family
            for _ in range(5):
                # A pass whose connection broke is one that did not come; the next one claims.
                with suppress(Unavailable, sqlalchemy.exc.DBAPIError):
                    runner.drain(60.0)
                    break
        self.stepping = ""

    def left(self) -> list[str]:
        """Forget the faults that nothing came to, and say which they were."""
        found = [*self.app.faults.clear(), *(f"{one.fault.family} {one.fault.point}" for one in self.planned)]
        self.planned.clear()
        return found

    def close(self) -> None:
        """End it."""
        for runner in self._runners:
            runner.stop(grace=5.0)
        self.app.close()
        self.engine.dispose()


class World:
    """A database, the network before it, the process that works, and one that stalls."""

    def __init__(self, url: str, schema: str, *, ride: bool) -> None:
        self.schema, self._ride = schema, ride
        self.beside = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self.beside.execute(TABLES.encode())
        self.proxy = Proxy(url)
        self.one, self.two = Process(self.proxy.url, schema, ride), Process(url, schema, ride)
        self.answers: dict[str, Any] = {}
        self.met: list[tuple[str, str, str]] = []
        tape.clear()

    def rows(self, statement: str) -> list[Any]:
        """Look at the database from beside; `{schema}` is akter's."""
        return self.beside.execute(statement.replace("{schema}", f'"{self.schema}"').encode()).fetchall()

    def stored(self) -> Stored:
        """All that is there, as of one moment: a schedule may go on meanwhile."""
        with self.beside.transaction():
            self.beside.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            return Stored(self.rows, dict(tape.calls), self.answers)

    def carry_out(self, operation: Operation, fault: Fault | None) -> None:
        """Do one thing, while its fault meets it."""
        with self._meeting(operation, fault):
            if operation.what == "advance":
                self.advance(timedelta(minutes=operation.seed))
            elif operation.what == "drain":
                self.settle()
            elif operation.what == "within":
                self._within(operation)
            else:
                self._call(operation)

    @contextmanager
    def _meeting(self, operation: Operation, fault: Fault | None) -> Iterator[None]:
        """Plant a fault for this operation, and see that it was met."""
        if fault is None:
            yield
            return
        self.met.append((operation.id, fault.kind, f"{fault.family} {fault.point}".strip()))
        if fault.kind == "connections":
            self.end_connections()
            yield
        elif fault.kind == "network":
            action, needle = fault.point.split()
            rule = self.proxy.next(needle, action)
            yield
            if not rule.hits:
                raise Failed(f"{operation.id}: no flight met {fault.point}")
        elif fault.kind == "stall":
            self._stall(fault)
            yield
        elif operation.what == "drain":
            self.one.plan(fault)
            yield
        else:
            crash_next(self.one.app, fault.point, command_id=operation.id)  # type: ignore[arg-type]
            yield
        for process in (self.one, self.two):
            if left := process.left():
                raise Failed(f"{operation.id}: nothing came to {', '.join(left)}")

    def _stall(self, fault: Fault) -> None:
        """Let the other process claim and stand still until its lease is over and its work is done here, and only then go on."""
        planned = self.two.plan(fault)
        stalled = threading.Thread(target=self.two.step, daemon=True)
        stalled.start()
        while not planned.pause.reached.wait(0.01) and stalled.is_alive():
            pass
        self.advance(LEASE)
        self.settle()
        planned.pause.release()
        stalled.join(60.0)
        if stalled.is_alive():
            raise Failed("the process that stalled does not go on")

    def end_connections(self) -> None:
        """End every connection there is."""
        self.rows(f"SELECT pg_terminate_backend(pid) {CLIENTS}")
        waited = threading.Event()
        while self.rows(f"SELECT count(*) {CLIENTS}")[0][0]:
            waited.wait(0.002)

    def advance(self, by: timedelta) -> None:
        """Move the clock. Connections that are gone are noticed when they are used."""
        for _ in range(10):
            with suppress(sqlalchemy.exc.DBAPIError):
                return advance(self.one.app, by)
        raise Failed("the clock cannot be moved")

    def settle(self) -> None:
        """Carry out everything that is due."""
        for _ in range(ROUNDS):
            self.one.step()
            if not self.rows(DUE)[0][0]:
                return
        raise Failed(f"the outbox does not settle: {self.rows('SELECT * FROM {schema}.actor_outbox')}")

    def _call(self, operation: Operation) -> None:
        """A client's way: ask under an id, and again until there is an answer; whoever asks later gets the same one."""
        app = self.one.app
        for _ in range(20):
            try:
                with app.command_id(operation.id):
                    answer = self._member(app, operation)()
                break
            except Refused as refused:
                answer = f"refused {refused.tag}"
                break
            except (Unavailable, Defect):
                continue
        else:
            raise Failed(f"{operation.id}: no answer")
        if self.answers.setdefault(operation.id, answer) != answer:
            raise Failed(f"{operation.id}: was answered with {self.answers[operation.id]} and then with {answer}")

    def _member(self, app: Akter, operation: Operation) -> Callable[[], Any]:
        if operation.what == "wind":
            return app.actor(Clock, operation.actor).wind
        if operation.what in ("watch", "forget"):
            node, since = operation.text.split()
            watcher = app.actor(Watcher, operation.actor)
            return (lambda: watcher.watch(node, since)) if operation.what == "watch" else (lambda: watcher.forget(node))
        node = app.actor(Node, operation.actor)
        if operation.what == "send":
            # Asked again under its id, it is the same message.
            return lambda: app.send(node.note, operation.id) and None
        if operation.what == "work":
            return lambda: node.work(operation.id, operation.seed)
        return lambda: getattr(node, operation.what)(operation.id)

    def _within(self, operation: Operation) -> None:
        """An application's own transaction with a row and a message."""
        app = self.one.app
        for _ in range(20):
            try:
                with self.one.engine.begin() as connection:
                    if connection.execute(select(outside.c.tag).where(outside.c.tag == operation.id)).first():
                        return
                    connection.execute(outside.insert().values(tag=operation.id, actor=operation.actor))
                    app.within(connection).send(app.actor(Node, operation.actor).note, operation.id)
                return
            except (Unavailable, sqlalchemy.exc.DBAPIError):
                continue
        raise Failed(f"{operation.id}: no transaction")

    def finish(self) -> None:
        """Let time pass until nothing but schedules is left."""
        for _ in range(12):
            self.settle()
            if not self.rows(LEFT)[0][0]:
                return
            self.advance(timedelta(minutes=10))
        raise Failed(f"something is left: {self.rows(KEPT)}")

    def close(self) -> None:
        """End everything."""
        self.one.close()
        self.two.close()
        self.proxy.close()
        self.beside.close()


PENDING = "FROM {schema}.actor_outbox WHERE timer_key IS NULL OR NOT starts_with(timer_key, '$cron:')"
LEFT = f"SELECT (SELECT count(*) {PENDING}) + (SELECT count(*) FROM {{schema}}.actor_subscriptions WHERE due_at_ms IS NOT NULL)"
KEPT = f"SELECT intent_id, kind, actor_id, command, attempts, last_error {PENDING}"


def run(lines: list[Line], world: World) -> None:
    """Carry out a program, and let everything come to its end."""
    for operation, fault in lines:
        world.carry_out(operation, fault)
    world.finish()
    for process in (world.one, world.two):
        if left := process.left():
            raise Failed(f"faults are left at its end: {', '.join(left)}")
