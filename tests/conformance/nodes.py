"""Several processes on one database, each an app and an engine of its own, in the process of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy import Engine

from akter import Akter
from akter.runner import Runner

NEVER = 3600.0
"""A poll so seldom that only wake-ups and `advance` claim anything."""


@dataclass
class Node:
    """One process of a cluster: an app with connections of its own, and its runner."""

    app: Akter
    runner: Runner

    def thread_of(self, work: Callable[[], object]) -> threading.Thread:
        """Do something beside the test."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


@contextmanager
def cluster(url: str, schema: str, *usual: Any) -> Iterator[Callable[..., Node]]:
    """A function that makes one more process: `started` or not, with a runner's options and an app's, `app=dict(...)`.

    It knows the `usual` actors unless it is given others. All end with the block.
    """
    made: list[tuple[Node, Engine]] = []

    def make(*actors: Any, started: bool = False, pool: int = 10, app: dict[str, Any] | None = None, **options: Any) -> Node:
        engine = sqlalchemy.create_engine(url, pool_size=pool, max_overflow=0)
        akter = Akter(engine, actors=actors or usual, schema=schema, **(app or {}))
        fresh = Node(akter, Runner(akter, **{"poll": NEVER, "listen": False, **options}))
        made.append((fresh, engine))
        if started:
            fresh.runner.start()
        return fresh

    yield make
    for one, _ in made:
        one.app.faults.clear()
        one.app.faults.watch(None)
    for one, engine in made:
        one.runner.stop(grace=5.0)
        one.app.close()
        engine.dispose()


def eventually(what: str, so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Look again and again until something is so."""
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.002)
