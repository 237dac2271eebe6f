"""The processes that work: runners, and the driver that asks for everything and asks again until it knows."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import psycopg
import sqlalchemy
import sqlalchemy.exc
from sqlalchemy import column, insert, select, table

from akter import Akter, Unavailable
from akter.runner import Runner
from soaking import lines, tables
from soaking.actors import ACTORS, EARLIER, Node, arguments, receiver
from soaking.following import FOLLOWERS, Follower
from soaking.journal import JOURNAL
from soaking.plan import FOLLOWS, Order, Step, orders, steps
from soaking.provider import LEDGER

DRIVERS = 4
"""Threads of the driver."""

MOST_DUE = 100
"""Due messages above which the driver waits: they are delivered in the order of their time, and the canaries' stand in the same queue."""

outside = table("soak_outside", column("tag"), column("id"), column("target"), column("member"), schema="public")


class Place(NamedTuple):
    """Where everything is, and how it runs; paths are texts."""

    directory: str
    url: str
    lease: float
    seed: int
    intents: int
    actors: int
    seconds: float

    def path(self, name: str) -> Path:
        """A file of the soak."""
        return Path(self.directory) / name

    def ready(self, pid: int) -> Path:
        """The file by which a runner says that it is at work."""
        return self.path(f"ready-{pid}")

    @property
    def ledger(self) -> Path:
        """The directory of the provider of charges."""
        return self.path("ledger")

    @property
    def done(self) -> bool:
        """Whether everybody is to end."""
        return self.path("stop").exists()


WAYS: Sequence[dict[str, Any]] = ({}, {"listen": False}, {"ride": False})
"""How the runners differ: one does not listen, and one deletes what it delivered in a step of its own."""


def run(place: Place, target: str, number: int, newest: bool) -> dict[str, int]:
    """Be a runner of this or an earlier release until there is a file `stop` or a signal; returns what was done."""
    _prepare(place, label := f"runner-{number}")
    ended, parent = threading.Event(), os.getppid()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    with Akter(target, actors=ACTORS if newest else EARLIER, execution=place.lease, lock=1.0) as app:
        way = {
            "claim_lease": place.lease,
            "poll": 0.5,
            "heartbeat": 1.0,
            "max_backoff": 2.0,
            "cancel_check": 1.0,
            **WAYS[number % len(WAYS)],
        }
        runner = Runner(app, label=label, lanes={"intents": 48, "jobs": 16}, **way)
        while not ended.is_set():
            try:
                runner.start()
                break
            except Unavailable as problem:
                logging.getLogger("soak").info("soak.waits_to_start %s", problem)
                ended.wait(0.1)
        place.ready(os.getpid()).touch()
        while not ended.wait(0.2) and not place.done and os.getppid() == parent:
            if runner.lost:
                raise SystemExit(f"the threads {runner.lost} died")
        report = runner.stop(grace=10.0)
    return {"delivered": report.delivered, "retried": report.retried, "parked": report.parked, "left": len(report.left)}


def drive(place: Place) -> int:
    """Carry out every order that the log does not know as done, spread over the time there is; returns how many there are."""
    _prepare(place, "driver")
    log = place.path("driver.done")
    done = set(log.read_text().split()) if log.exists() else set()
    wanted = orders(place.seed, place.intents, place.actors)
    started = float(place.path("started").read_text())
    with (
        Akter(place.url, actors=ACTORS, execution=5.0, delivery=10.0, lock=2.0) as app,
        log.open("a") as file,
        ThreadPoolExecutor(DRIVERS) as threads,
    ):

        def carry_out(number: int, order: Order) -> None:
            # Orders come at their time, so that all of them do not come at once, and not before there is room for what they ask for.
            time.sleep(max(0.0, started + place.seconds * number / len(wanted) - time.time()))
            _until_known(lambda: _wait_for_room(place.url))
            _until_known(lambda: KINDS[order.kind](app, place, order))
            file.write(f"{order.id}\n")
            file.flush()

        # Those that were cut short by a kill are asked for again, under their ids.
        work = [threads.submit(carry_out, number, order) for number, order in enumerate(wanted) if order.id not in done]
        for one in work:
            one.result()
    return len(wanted)


def _until_known(ask: Callable[[], object]) -> None:
    while True:
        try:
            ask()
            return
        except (Unavailable, sqlalchemy.exc.OperationalError, psycopg.OperationalError) as problem:
            logging.getLogger("soak").info("soak.asks_again %s", str(problem)[:200])
            time.sleep(0.05)


def _wait_for_room(url: str) -> None:
    while tables.one(url, tables.DUE) > MOST_DUE:
        time.sleep(0.1)


def _spread(app: Akter, place: Place, order: Order) -> None:
    with app.command_id(order.id):
        app.actor(Node, order.actor).spread(order.id, order.seed, order.fan, place.actors)


def _send(app: Akter, place: Place, order: Order) -> None:
    with app.command_id(order.id):
        app.send(app.actor(Node, order.actor).note, order.id)


def _within(app: Akter, place: Place, order: Order) -> None:
    sent: Sequence[Step] = [step for step in steps(order.seed, order.fan, place.actors) if step.verb != "cancel"]
    tags = [f"{order.id}.{number}" for number in range(len(sent))]
    try:
        with app.engine.begin() as connection:
            # An earlier try may have committed without an answer; one that is just committing is waited for by the key of the table.
            if connection.execute(select(outside.c.tag).where(outside.c.tag == tags[0])).first():
                return
            messages: list[tuple[Any, dict[str, Any]]] = [
                (getattr(app.actor(receiver(step), step.target), step.member), arguments(step, tag))
                for step, tag in zip(sent, tags, strict=True)
            ]
            ids = app.within(connection).send_many(messages)
            for step, tag, id in zip(sent, tags, ids, strict=True):
                connection.execute(insert(outside).values(tag=tag, id=id, target=step.target, member=step.member))
    except sqlalchemy.exc.IntegrityError:
        return


def _follow(app: Akter, place: Place, order: Order) -> None:
    random = Random(order.seed)
    follower, what = app.actor(Follower, f"f{random.randrange(FOLLOWERS)}"), random.choice(FOLLOWS)
    with app.command_id(order.id):
        if what == "end":
            follower.forget(order.actor)
        else:
            follower.follow(order.actor, what)


KINDS = {"spread": _spread, "send": _send, "within": _within, "follow": _follow}


def _prepare(place: Place, label: str) -> None:
    os.environ[JOURNAL] = str(place.path("journal"))
    os.environ[LEDGER] = str(place.ledger)
    lines.write(place.path(f"{label}.log"))
