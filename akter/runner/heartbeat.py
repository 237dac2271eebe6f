"""The sign of life of a runner: a row that says that it is there, what it serves, and which of its threads do nothing any more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy.exc
from sqlalchemy import Connection, Engine

import akter
from akter import registry
from akter.app import Akter
from akter.runner.family import Family
from akter.runner.jobs import Jobs
from akter.runner.loop import Loop
from akter.runner.overdue import Overdue
from akter.runner.sampling import Sampler
from akter.store import backlog, lagging, presence
from akter.tables import SCHEMA

_KIND = {family: kind for kind, family in backlog.FAMILY.items()}
_PATIENCE = 5.0
"""Seconds: a sign of life that waits for a lock is none, and must not hold up the end either."""


class Heartbeat:
    """Written every `seconds`. `idle`: how many seconds ago the relay last came through a pass. Whoever ends the runner sets `stopping`.

    `hung` are the families for which work waits while all their threads are past their time limit.
    """

    def __init__(
        self,
        app: Akter,
        engine: Engine,
        incarnation_id: str,
        label: str,
        families: Sequence[Family],
        overdue: Overdue,
        jobs: Jobs | None,
        idle: Callable[[], float],
        seconds: float,
    ) -> None:
        self._app, self._engine, self._incarnation_id, self._label = app, engine, incarnation_id, label
        self._families, self._overdue, self._jobs, self._idle, self._seconds = families, overdue, jobs, idle, seconds
        self._sampler = Sampler(app.telemetry, incarnation_id, registry.events_kept(app.actors, app.limits.keep_events_ms))
        self.loop = Loop("akter-heartbeat", self.beat)
        self.hung: tuple[str, ...] = ()
        self.stopping, self._arrived = False, False

    def beat(self) -> float:
        """Say once that the runner is there; returns the seconds until the next time."""
        idle_ms = int(self._idle() * 1000)
        self._overdue.look()
        types, lanes = sorted(self._app.actors), self._lanes()
        with self._deployment() as connection:
            known = self._arrived and (presence.beat(connection, self._incarnation_id, idle_ms, self.stopping, lanes) or self.stopping)
            if not known:
                presence.arrive(connection, self._incarnation_id, self._label, akter.__version__, types, lanes)
                self._arrived = True
            hung = [lane.family for lane in (family.lane for family in self._families) if lane.hung]
            self.hung = tuple(family for family in hung if self._waits(connection, family, types))
        self._sampler.sample(self._deployment)
        return self._seconds

    def leave(self) -> None:
        """Take the row away; without a database there is nothing to be waited for."""
        if self._arrived and not self.loop.failures:
            with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError), self._deployment() as connection:
                presence.leave(connection, self._incarnation_id)

    def _waits(self, connection: Connection, family: str, types: Sequence[str]) -> bool:
        return lagging.waits(connection, types) if family == "subscription" else backlog.waits(connection, _KIND[family], types)

    def _lanes(self) -> dict[str, dict[str, Any]]:
        lanes: dict[str, dict[str, Any]] = {}
        for lane in (family.lane for family in self._families):
            lanes[lane.family] = {"seats": lane.seats, "threads": lane.threads, "overdue": lane.overdue}
        if self._jobs is not None:
            lanes["jobs"]["running"] = self._jobs.attempts.frames()
        return lanes

    @contextlib.contextmanager
    def _deployment(self) -> Iterator[Connection]:
        options: Any = {
            "isolation_level": "READ COMMITTED",
            "postgresql_readonly": False,
            "schema_translate_map": {SCHEMA: self._app.schema},
        }
        with self._engine.connect() as given, given.execution_options(**options).begin():
            presence.limit(given, _PATIENCE)
            yield given
