"""Messages, timers, jobs, events and those that follow them while everything around them is killed, and the proof that all is well.

    python tests/crash/soak.py --seed 1

Three runner processes and a driver work on a PostgreSQL of their own. What is done to them comes from the seed; when, and so what it hits,
depends on the machine. Ends with 1 when something was lost, doubled or left, and says what.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from soaking import tables
from soaking.actors import ACTORS, Canary
from soaking.checker import Findings, Stored, check
from soaking.leases import Leases
from soaking.lines import defects, events
from soaking.plan import LEAST_ACTIONS, actions, orders
from soaking.report import report
from soaking.supervisor import Supervisor, until
from soaking.working import Place

from akter import Akter, Unavailable
from akter.embedded import Server

LEASE = 3.0
CANARIES = 3
MAX_PAUSE = 30.0
"""Seconds without a tick of one canary. Its row may be claimed by a process that is stopped for twice a lease, then by one that is killed,
while the database recovers; each of that costs a lease, a poll, or a wait for the next try."""
QUIET = 120.0
"""Seconds without any progress after which the outbox is taken for stuck."""


@dataclass(frozen=True)
class Options:
    """How a soak is run. `place` is a directory of its own, `url` a database to use instead of an own server."""

    seed: int
    intents: int = 20_000
    actors: int = 2_000
    processes: int = 3
    seconds: float = 100.0
    place: Path | None = None
    url: str | None = None


@dataclass
class Soaked:
    """What a soak found, the database it left, and the text about it."""

    findings: Findings
    unasked: list[str]
    text: str

    @property
    def well(self) -> bool:
        """Whether all is as it is to be."""
        return not self.findings.wrong and not self.unasked


def soak(options: Options, stack: ExitStack, say: Callable[[str], None]) -> tuple[Soaked, Place]:
    """Run one; the database lives until the stack is closed."""
    directory = options.place or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-", dir="/var/tmp")))
    directory.chmod(0o711)
    server: Server | None = None
    url = options.url
    if url is None:
        server = stack.enter_context(Server(directory / "pg", settings={"max_connections": "200"}))
        stack.enter_context(app := Akter(f"embedded:{server.data}", actors=ACTORS))
        app.migrate()
        url = server.url("akter")
    else:
        stack.enter_context(app := Akter(url, actors=ACTORS))
        app.migrate()
    tables.create(url)
    place = Place(str(directory), url, LEASE, options.seed, options.intents, options.actors, options.seconds)
    place.path("started").write_text(str(time.time()))
    place.path("killed").touch()
    place.ledger.mkdir()
    for number in range(CANARIES):
        app.send(app.actor(Canary, f"c{number}").tick, 1)
    leases = Leases(url, place.path("leases"))
    supervisor = Supervisor(place, server, options.processes)
    try:
        until(lambda: tables.one(url, tables.TICKS) > 0, 60.0)
        began = time.monotonic()
        _disturb(supervisor, options, url, say)
        done = time.monotonic()
        supervisor.calm()
        say(f"{done - began:5.0f} s  everything was asked for, and nobody is disturbed any more")
        _wait_for(tables.PENDING, url, supervisor, say, began)
        for number in range(CANARIES):
            app.actor(Canary, f"c{number}").rest()
        _wait_for(tables.LEFT, url, supervisor, say, began)
        reports = supervisor.end()
    finally:
        supervisor.close()
        leases.close()
    findings = look(url, directory, options)
    findings.numbers = {
        "seconds of disturbance": round(done - began, 1),
        "seconds until the outbox was empty": round(time.monotonic() - done, 1),
        **findings.numbers,
    }
    findings.wrong += [f"a runner did not end well: {one}" for one in reports if one["left"] or one["parked"]]
    logged: Counter[str] = events(directory)
    findings.wrong += defects(logged)
    text = report(options.seed, findings.numbers, supervisor.did, logged, findings.wrong, supervisor.unasked)
    return Soaked(findings, supervisor.unasked, text), place


def look(url: str, directory: Path, options: Options) -> Findings:
    """Check what is stored."""
    with psycopg.connect(tables.plain(url)) as connection:
        return judged(connection, directory, options)


def judged(connection: psycopg.Connection[Any], directory: Path, options: Options) -> Findings:
    """Check what is stored, over a connection that may have changed it."""
    findings = check(Stored(connection, directory), orders(options.seed, options.intents, options.actors))
    if findings.numbers["messages committed"] < options.intents * 0.9:
        findings.wrong.append(f"only {findings.numbers['messages committed']} messages were committed")
    if findings.numbers["longest pause of a canary (s)"] > MAX_PAUSE:
        findings.wrong.append("a canary stood still for too long")
    return findings


def _disturb(supervisor: Supervisor, options: Options, url: str, say: Callable[[str], None]) -> None:
    plan, began = actions(options.seed, options.processes, LEASE), time.monotonic()
    number = 0
    while not supervisor.driven or number < LEAST_ACTIONS:
        action = next(plan)
        time.sleep(action.wait)
        supervisor.carry_out(action)
        number += 1
        say(f"{time.monotonic() - began:5.0f} s  {action.what:<12} {'' if action.what.endswith(('t', 'h', 'r')) else action.who}")
        if number % 10 == 0:
            say(f"{time.monotonic() - began:5.0f} s  {_counted(url)}")


def _counted(url: str) -> str:
    try:
        return f"{tables.one(url, tables.RECEIPTS)} turns of actors, {tables.one(url, tables.PENDING)} messages pending"
    except psycopg.OperationalError:
        return "the database does not answer"


def _wait_for(statement: str, url: str, supervisor: Supervisor, say: Callable[[str], None], began: float) -> None:
    """Wait until there is nothing left of it; raises `TimeoutError` when nothing moves any more."""
    before, moved = -1, time.monotonic()
    while left := tables.one(url, statement):
        supervisor.look_after()
        if left != before:
            before, moved = left, time.monotonic()
        if time.monotonic() - moved > QUIET:
            raise TimeoutError(f"the outbox holds {left} rows, and nothing moves")
        time.sleep(0.1)
    say(f"{time.monotonic() - began:5.0f} s  the outbox is empty")


def main() -> int:
    """Run one with the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--intents", type=int, default=20_000)
    parser.add_argument("--actors", type=int, default=2_000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=100.0, help="over which the driver spreads what it asks for")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", type=Path, help="a directory to keep; one that is removed, unless given")
    where.add_argument("--url", help="an empty database of your own, which is not restarted")
    given = parser.parse_args()
    options = Options(given.seed, given.intents, given.actors, given.processes, given.seconds, given.data, given.url)
    if options.place is not None:
        options.place.mkdir(parents=True, exist_ok=False)
    with ExitStack() as stack:
        try:
            soaked, _ = soak(options, stack, lambda said: print(said, flush=True))
        except (TimeoutError, Unavailable, AssertionError) as problem:
            print(f"seed {options.seed}: FAILED: {problem}")
            return 1
        print(soaked.text)
        return 0 if soaked.well else 1


if __name__ == "__main__":
    sys.exit(main())
