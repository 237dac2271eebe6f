"""Runners on one database that run jobs: as many processes as a test wants, each an app and an engine of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Engine

from akter import Akter
from akter.runner import Runner

sys.path.insert(0, str(Path(__file__).parent))

from works import NEVER, Node, Shop, provider


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    provider.clear()
    yield
    provider.clear()


@pytest.fixture
def node(akter_database: str, akter_schema: str) -> Iterator[Callable[..., Node]]:
    """A function that makes one more process: `started` or not, with a runner's options."""
    made: list[tuple[Node, Engine]] = []

    def make(*actors: Any, started: bool = False, **options: Any) -> Node:
        engine = sqlalchemy.create_engine(akter_database, pool_size=10, max_overflow=0)
        app = Akter(engine, actors=actors or (Shop,), schema=akter_schema)
        fresh = Node(app, Runner(app, **{"poll": NEVER, "listen": False, **options}))
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
