"""Runners on one database: as many processes as a test wants, each an app and an engine of its own."""

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

from post import NEVER, Ledger, Mailbox, Node, Sender, handled


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    handled.clear()
    yield
    handled.clear()


@pytest.fixture
def node(akter_database: str, akter_schema: str) -> Iterator[Callable[..., Node]]:
    """A function that makes one more process: `started` or not, with a runner's options and an app's, `app=dict(...)`."""
    made: list[tuple[Node, Engine]] = []

    def make(*actors: Any, started: bool = False, pool: int = 10, app: dict[str, Any] | None = None, **options: Any) -> Node:
        engine = sqlalchemy.create_engine(akter_database, pool_size=pool, max_overflow=0)
        akter = Akter(engine, actors=actors or (Mailbox, Sender), schema=akter_schema, **(app or {}))
        chosen = {"poll": NEVER, "listen": False, **options}
        fresh = Node(akter, Runner(akter, **chosen))
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
