"""Runners on one database that run jobs: as many processes as a test wants, each an app and an engine of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nodes import cluster
from works import Node, Shop, provider


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    provider.clear()
    yield
    provider.clear()


@pytest.fixture
def node(akter_database: str, akter_schema: str) -> Iterator[Callable[..., Node]]:
    """A function that makes one more process; see `nodes.cluster`."""
    with cluster(akter_database, akter_schema, Shop) as make:
        yield make
