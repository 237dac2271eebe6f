"""Processes that publish and follow, and a look at the rows of those that follow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from akter import Akter
from akter.runner import Runner

sys.path.insert(0, str(Path(__file__).parent))

from shops import EVERYBODY, Node, told


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    told.clear()
    yield
    told.clear()


@pytest.fixture
def node(akter_database: str, akter_schema: str) -> Iterator[Callable[..., Node]]:
    """A function that makes one more process: `started` or not, with a runner's options."""
    made: list[tuple[Node, Any]] = []

    def make(*actors: Any, started: bool = False, **options: Any) -> Node:
        engine = sqlalchemy.create_engine(akter_database, pool_size=10, max_overflow=0)
        app = Akter(engine, actors=actors or EVERYBODY, schema=akter_schema)
        # A poll so seldom that only wake-ups and drains claim anything.
        fresh = Node(app, Runner(app, **{"poll": 3600.0, "listen": False, **options}))
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


@pytest.fixture
def shop(node: Callable[..., Node]) -> Node:
    """A process with all actors, whose runner works when it is asked to drain."""
    return node()


@pytest.fixture
def followers(beside: Any) -> Callable[..., list[tuple[Any, ...]]]:
    """The rows of those that follow, as the named columns, by type, subscription, subscriber and source."""

    def rows(*columns: str, type: str = "Watcher") -> list[tuple[Any, ...]]:
        asked = f"""SELECT {", ".join(columns)} FROM {{akter}}.actor_subscriptions WHERE subscriber_type = :type
            ORDER BY subscriber_type, subscription, subscriber_id, source_id"""
        return list(beside(asked, type=type))

    return rows


@pytest.fixture
def summary(beside: Any) -> Callable[[], dict[tuple[str, str], int]]:
    """How many follow an event of a source, as the summary says; it is compared with the rows it stands for."""

    def counts() -> dict[tuple[str, str], int]:
        kept = beside("SELECT source_id, event, followers FROM {akter}.actor_subscription_tags")
        counted = beside(
            """SELECT source_id, unnest(events) AS event, count(*) FROM {akter}.actor_subscriptions WHERE active GROUP BY 1, 2"""
        )
        assert sorted(kept) == sorted(counted)
        return {(source, event): number for source, event, number in kept}

    return counts
