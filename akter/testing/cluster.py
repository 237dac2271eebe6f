"""Several runners on one database in the process of a test, each with an app and connections of its own, as processes have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy import Engine

from akter.app import Akter
from akter.runner import Runner
from akter.tables import SCHEMA


@dataclass(frozen=True)
class Node:
    """One runner of a cluster, and the app it is of."""

    app: Akter
    runner: Runner


@contextmanager
def cluster(url: str, *actors: Any, schema: str = SCHEMA, **usual: Any) -> Iterator[Callable[..., Node]]:
    """A function that adds a `Node`, as a deploy adds a process; all of them end with the block.

        def test_two_runners_deliver_once(akter_database: str, akter_schema: str) -> None:
            with cluster(akter_database, Order, schema=akter_schema) as node:
                one, two = node(), node()
                ...

    A node knows the actors of the cluster unless it is given others: a process of another release. Its options are those of `Runner`, by
    default `usual`; beside these, `started=False` leaves its runner to the test, `pool` is how many connections its engine may have, and
    `app=dict(...)` are options of its `Akter`. At the end faults are cleared, and every runner is stopped, with 5 seconds of grace.
    """
    made: list[tuple[Node, Engine]] = []

    def node(*others: Any, started: bool = True, pool: int = 10, app: dict[str, Any] | None = None, **options: Any) -> Node:
        engine = sqlalchemy.create_engine(url, pool_size=pool, max_overflow=0)
        akter = Akter(engine, actors=others or actors, schema=schema, **(app or {}))
        fresh = Node(akter, Runner(akter, **{**usual, **options}))
        made.append((fresh, engine))
        if started:
            fresh.runner.start()
        return fresh

    try:
        yield node
    finally:
        for one, _ in made:
            one.app.faults.clear()
            one.app.faults.watch(None)
        for one, engine in made:
            one.runner.stop(grace=5.0)
            one.app.close()
            engine.dispose()
