"""Retention: a sweep prunes old receipts and events of every registered type, in small transactions between which others run."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter import registry
from akter.app import Akter
from akter.definition import Definition
from akter.limits import kept_ms
from akter.runner.loop import Loop
from akter.store import retention
from akter.tables import SCHEMA

logger = logging.getLogger("akter.runner")

BATCH = 1000
"""Rows that a batch looks at; more only where so many of one age must be kept that it would get no further."""

_REST, _LEAST_PAUSE = 3.0, 0.005
"""How many times as long as a batch took it waits before the next, and the shortest such wait, in seconds."""
_BEFORE_ALL = -(2**62)


class Swept(NamedTuple):
    """What a sweep pruned of one actor type."""

    actor_type: str
    receipts: int
    events: int


@dataclass(frozen=True, slots=True)
class Kept:
    """How long one type's rows are kept, in milliseconds: receipts past their ids' expiry, events since they were emitted."""

    actor_type: str
    receipts_ms: int
    events_ms: int


def kept(app: Akter) -> list[Kept]:
    """How long every registered type's rows are kept.

    A receipt is kept at least as long past its id's expiry as a call may take: a retry whose first try was in time must find it.
    """
    events = registry.events_kept(app.actors, app.limits.keep_events_ms)
    return [_kept(app, app.actors[name], events_ms) for name, events_ms in sorted(events.items())]


def _kept(app: Akter, definition: Definition, events_ms: int) -> Kept:
    limits = app.limits
    receipts_ms = kept_ms(definition.options.keep_receipts)
    executions = (member.mark.timeout or limits.execution for member in definition.members.values())
    longest_ms = int(limits.longest(max(executions, default=limits.execution)) * 1000)
    return Kept(
        definition.name,
        max((limits.keep_receipts_ms if receipts_ms is None else receipts_ms) - limits.retry_window_ms, longest_ms),
        events_ms,
    )


class Sweeper:
    """Sweeps the types of one Akter, on one connection beside every pool. It may run in any number of processes."""

    def __init__(self, app: Akter, stopping: threading.Event | None = None) -> None:
        self._app, self._stopping = app, stopping or threading.Event()

    def sweep(self, every: float = 0.0) -> list[Swept]:
        """Prune what is old enough, of each type that nobody began to sweep within the last `every` seconds; returns what went.

        Raises SQLAlchemy's errors; what was pruned until then stays pruned.
        """
        app = self._app
        app.verify()
        engine = Engine(app.engine.pool.recreate(), app.engine.dialect, app.engine.url, hide_parameters=app.engine.hide_parameters)
        try:
            return [swept for each in kept(app) if not self._stopping.is_set() and (swept := self._type(engine, each, every)) is not None]
        finally:
            engine.dispose()

    def _type(self, engine: Engine, each: Kept, every: float) -> Swept | None:
        resource = f"retention:{each.actor_type}"
        with self._transaction(engine) as connection:
            if not retention.take(connection, resource, int(every * 1000)):
                return None
        receipts = self._prune(engine, resource, retention.old_receipts(), each.actor_type, each.receipts_ms)
        events = self._prune(engine, resource, retention.old_events(), each.actor_type, each.events_ms)
        if receipts or events:
            self._app.telemetry.pruned(receipts, events)
            logger.info("retention.swept", extra={"akter_type": each.actor_type, "akter_receipts": receipts, "akter_events": events})
        return Swept(each.actor_type, receipts, events)

    def _prune(self, engine: Engine, resource: str, statement: ExecutableReturnsRows, actor_type: str, past_ms: int) -> int:
        total, limit, from_ms = 0, BATCH, _BEFORE_ALL
        while not self._stopping.is_set():
            began = time.monotonic()
            with self._transaction(engine) as connection:
                retention.begin(connection, resource)
                batch = retention.prune(connection, statement, actor_type=actor_type, from_ms=from_ms, past_ms=past_ms, limit=limit)
            total += batch.pruned
            if batch.seen < limit:
                break
            # Rows that must be kept stay at the front. Those of one age can be more than a batch.
            stuck = batch.pruned == 0 and batch.reached_ms == from_ms
            limit, from_ms = limit * 2 if stuck else BATCH, batch.reached_ms
            # Turns beside it shall hardly notice: there is a minute's time until the next sweep.
            self._stopping.wait(max(_LEAST_PAUSE, _REST * (time.monotonic() - began)))
        return total

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        options: Any = {
            "isolation_level": "READ COMMITTED",
            "postgresql_readonly": False,
            "schema_translate_map": {SCHEMA: self._app.schema},
        }
        with engine.connect() as given, given.execution_options(**options).begin():
            yield given


class Sweeps:
    """The sweeps of one runner, `every` so many seconds, in a thread of their own; several runners share them. None is no sweep."""

    def __init__(self, app: Akter, every: float | None) -> None:
        self._every, self._stopping, self._next = every or 0.0, threading.Event(), 0.0
        self._sweeper = Sweeper(app, self._stopping)
        self.loops = [Loop("akter-retention", self._work)] if every is not None else []

    def start(self) -> None:
        """Start the thread. Its first sweep comes after a part of the time, so that runners that start together do not sweep together."""
        self._next = time.monotonic() + self._every * random.uniform(0.5, 1.0)
        for loop in self.loops:
            loop.start()

    def stop(self) -> None:
        """End it after the batch it is in."""
        self._stopping.set()
        for loop in self.loops:
            loop.stop()

    def _work(self) -> float:
        if (wait := self._next - time.monotonic()) > 0:
            return wait
        self._next = time.monotonic() + self._every
        self._sweeper.sweep(self._every / 2)
        return max(0.0, self._next - time.monotonic())
