"""The same programs on several processes that work all the time, while processes are killed, fall silent and lose their connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import psycopg
import sqlalchemy
from acting import ACTORS, tape
from judge import judge
from plan import Fault, Line, program
from world import LEFT, TABLES, Failed, World

from akter import Akter
from akter.errors import AkterError
from akter.fault import Crashed
from akter.runner import Runner

NODES = 3
KINDS = ("kill", "silence", "connections", "advance")
PATIENCE = 200.0
OF_ONE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = '{name}'"


class Member:
    """One process of the cluster. Killed, it comes to no point of any work any more, and its connections end."""

    def __init__(self, url: str, schema: str, name: str) -> None:
        self.name, self.dead = name, False
        self.engine = sqlalchemy.create_engine(url, pool_size=8, max_overflow=0, connect_args={"application_name": name})
        self.app = Akter(self.engine, actors=ACTORS, schema=schema, lock=0.5)
        self.app.faults.watch(self._at)
        self.runner = Runner(self.app, poll=0.1, heartbeat=1.0, sweep=None, lanes={"intents": 16, "jobs": 4}).start()

    def _at(self, point: str, subject: Any) -> None:
        if self.dead:
            raise Crashed(f"killed at {point}", command_id=subject.id)

    def kill(self, end: Callable[[str], object]) -> None:
        """As by SIGKILL: nothing is given back, and nobody says that it is gone."""
        self.dead = True
        self.runner._loop.stop()
        self.silence()
        end(OF_ONE.format(name=self.name))

    def silence(self) -> None:
        """Give no more signs of life."""
        self.runner._heartbeat.loop.stop()

    def close(self) -> None:
        """End it."""
        self.runner.stop(grace=10.0)
        self.app.close()
        self.engine.dispose()


class Cluster(World):
    """The processes, and the driver that calls them in turns."""

    def __init__(self, url: str, schema: str, seed: int) -> None:
        self.schema, self._url, self._made = schema, url, 0
        self.beside = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self.beside.execute(TABLES.encode())
        self.answers, self.met = {}, []
        tape.clear()
        self._random, self._gone = Random(f"cluster of {seed}"), list[Member]()
        self.members = [self._member_of(url) for _ in range(NODES)]
        self.one = self.members[0]  # type: ignore[assignment]

    def _member_of(self, url: str) -> Member:
        self._made += 1
        return Member(url, self.schema, f"node-{self._made}")

    def disturb(self, id: str, fault: Fault) -> None:
        """Do something to one of them; one that is killed is followed by a new one."""
        number = int(fault.point)
        self.met.append((id, fault.kind, fault.point))
        if fault.kind == "kill":
            self.members[number].kill(self.rows)
            self._gone.append(self.members[number])
            self.members[number] = self._member_of(self._url)
        elif fault.kind == "silence":
            self.members[number].silence()
        elif fault.kind == "connections":
            self.rows(OF_ONE.format(name=self.members[number].name))
        else:
            # What others hold seems to them to be over.
            self.advance(timedelta(seconds=61))

    def call_through(self, number: int) -> None:
        """Let the driver call this process from here on."""
        self.one = self.members[number]  # type: ignore[assignment]

    def settle(self) -> None:
        """Wait until nothing is due and nothing is held."""
        self.call_through(0)
        end, moved = time.monotonic() + PATIENCE, time.monotonic()
        while self.rows(LEFT)[0][0]:
            if time.monotonic() > end:
                raise Failed(f"something is left: {self.rows('SELECT * FROM {schema}.actor_outbox')}")
            if time.monotonic() - moved > 1.0:
                # What the dead held, retries, timers.
                self.advance(timedelta(minutes=5))
                moved = time.monotonic()
            time.sleep(0.02)

    def finish(self) -> None:
        """Let everything come to its end."""
        self.settle()

    def close(self) -> None:
        """End everything."""
        for member in [*self.members, *self._gone]:
            member.close()
        self.beside.close()


def cluster_program(seed: int, size: int = 40) -> list[tuple[Line, int]]:
    """The operations of a seed with the faults of a cluster, each with the number of the process that is called."""
    random = Random(f"cluster program of {seed}")
    found: list[tuple[Line, int]] = []
    for operation, _ in program(seed, size):
        if operation.what == "drain":
            continue
        kind = random.choices(("", *KINDS), (70, 10, 4, 10, 6))[0]
        fault = Fault(kind, str(random.randrange(NODES))) if kind else None
        found.append(((operation, fault), random.randrange(NODES)))
    return found


def simulate_cluster(seed: int, url: str, schema: str, lines: list[tuple[Line, int]] | None = None) -> list[tuple[str, str, str]]:
    """Run the program of a seed, or this one, on a migrated database of its own; returns what was done to it. Raises `Failed`."""
    lines = cluster_program(seed) if lines is None else lines
    cluster = Cluster(url, schema, seed)
    try:
        for (operation, fault), number in lines:
            if fault is not None:
                cluster.disturb(operation.id, fault)
            cluster.call_through(number)
            cluster.carry_out(operation, None)
        cluster.finish()
        if wrong := judge(cluster.stored(), [line for line, _ in lines]):
            raise Failed("\n".join(wrong[:20]))
        return cluster.met
    except (Failed, AkterError) as problem:
        raise Failed(f"seed {seed}: {problem}") from problem
    finally:
        cluster.close()
