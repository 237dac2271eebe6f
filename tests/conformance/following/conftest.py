"""Processes that publish and follow, and a look at the rows of those that follow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nodes import cluster
from shops import EVERYBODY, Node, told


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    told.clear()
    yield
    told.clear()


@pytest.fixture
def node(akter_database: str, akter_schema: str) -> Iterator[Callable[..., Node]]:
    """A function that makes one more process; see `nodes.cluster`."""
    with cluster(akter_database, akter_schema, *EVERYBODY) as make:
        yield make


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
