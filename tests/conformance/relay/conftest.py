"""Runners on one database: as many processes as a test wants, each an app and an engine of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nodes import cluster
from post import Ledger, Mailbox, Node, Sender, handled


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    handled.clear()
    yield
    handled.clear()


@pytest.fixture
def node(akter_database: str, akter_schema: str) -> Iterator[Callable[..., Node]]:
    """A function that makes one more process; see `nodes.cluster`."""
    with cluster(akter_database, akter_schema, Mailbox, Sender) as make:
        yield make


@pytest.fixture
def ledger(beside: Any) -> Ledger:
    return Ledger(beside)


@pytest.fixture
def outbox(beside: Any) -> Callable[[], list[Any]]:
    """The outbox as `(attempts, milliseconds until it is due, last error)`, oldest id first."""

    def rows() -> list[Any]:
        return beside(
            """SELECT attempts, due_at_ms - floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
                 - (SELECT clock_offset_ms FROM {akter}.actor_deployment), last_error
               FROM {akter}.actor_outbox ORDER BY scheduled_at_ms, intent_id"""
        )

    return rows
