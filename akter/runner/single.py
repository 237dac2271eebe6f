"""A family whose claimed rows are worked on one by one, each in a thread of its lane."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection, Engine

from akter.errors import AkterError, Unavailable
from akter.fault import Crashed
from akter.runner.handling import Handling
from akter.runner.lane import Lane
from akter.store import failure, presence
from akter.tables import SCHEMA

R = TypeVar("R")

logger = logging.getLogger("akter.relay")

PATIENCE = 10.0
"""Seconds that a statement of the relay's own may take, waits for locks included."""


class Working(Handling, Generic[R]):
    """A row that a thread works on."""

    def __init__(self, row: R) -> None:
        super().__init__()
        self.row = row


class Single(Generic[R]):
    """The part that such families share. As many rows are claimed as threads are idle, so each begins at once."""

    durable = False

    def __init__(self, lane: Lane, lease: float) -> None:
        self.lane, self._lease = lane, lease
        self._lock = threading.Lock()
        self._rows: dict[str, R] = {}
        self._next: dict[str, tuple[R, float]] = {}
        self.working: dict[str, Working[R]] = {}
        """What threads are in, by the names of their rows."""
        self._stopping = False

    def start(self, rows: Sequence[R], sent: float, *, full: bool) -> None:
        """Work on claimed rows."""
        until = sent + self._lease
        for row in rows:
            if self._stopping:
                self._give_back([row], begun=False)
            elif not self._is_held(row, until):
                try:
                    self.lane.start(1, partial(self._run, row, until))
                except RuntimeError:
                    self._forget(row)
                    self._give_back([row], begun=False)

    def _is_held(self, row: R, until: float) -> bool:
        """Hold a row; one that a thread is still at comes after that, in the same thread."""
        with self._lock:
            if self._name(row) not in self._rows:
                self._rows[self._name(row)] = row
                return False
            self._next[self._name(row)] = (row, until)
            return True

    def _run(self, row: R, until: float) -> None:
        try:
            while True:
                self._begin(row, until)
                following = self._forget(row)
                if following is None:
                    break
                row, until = following
        finally:
            self.lane.leave(1)

    def _begin(self, row: R, until: float) -> None:
        if time.monotonic() >= until:
            logger.warning("relay.claim_outlived_its_lease", extra=self._about(row))
            return
        if self._stopping:
            self._give_back([row], begun=False)
            return
        try:
            self._work(row, until, self.watch(row))
        except Crashed:
            # As if the process were gone: the row waits for the end of its lease.
            pass
        except BaseException as problem:  # noqa: BLE001 - whatever it is, the row must wait and the thread go on
            self._wait(row, problem)

    def watch(self, row: R) -> Working[R]:
        """A row that a thread works on from now on."""
        one = self._made(row)
        with self._lock:
            self.working[self._name(row)] = one
        return one

    def _made(self, row: R) -> Working[R]:
        return Working(row)

    def overdue(self) -> list[Working[R]]:
        """Those whose handlers are past their time limit."""
        with self._lock:
            working = list(self.working.values())
        return [one for one in working if one.late]

    def about(self, late: Working[R]) -> dict[str, Any]:
        """One of them, for a line of the log."""
        return self._about(late.row)

    def explain(self, late: Sequence[Working[R]], why: str) -> bool:
        """Write on their rows why they are not done yet; returns whether that was written."""
        return not late or self._explain([one.row for one in late], why)

    def _forget(self, row: R) -> tuple[R, float] | None:
        """Hold a row no more, unless it was claimed again meanwhile, which is returned."""
        with self._lock:
            self.working.pop(self._name(row), None)
            following = self._next.pop(self._name(row), None)
            if following is None:
                self._rows.pop(self._name(row), None)
            else:
                self._rows[self._name(row)] = following[0]
            return following

    def stop(self) -> None:
        """Begin nothing more, and give back what waits for a thread of its own row."""
        self._stopping = True
        with self._lock:
            rows = [row for row, _ in self._next.values()]
            self._next = {}
        self._give_back(rows, begun=False)

    def abandon(self) -> None:
        """Give back everything that is held; what still runs is rolled back by the end of the process."""
        self._stopping = True
        # Due at once, what hangs would take a thread from the next runner, too, and from the one after that.
        late = {self._name(one.row): one.row for one in self.overdue()}
        for row in late.values():
            self._wait(row, Unavailable("its handler did not return within its time limit"))
        with self._lock:
            rows = [row for name, row in self._rows.items() if name not in late]
        self._give_back(rows, begun=True)

    def _give_back(self, rows: Sequence[R], *, begun: bool) -> None:
        try:
            self._release(rows, begun)
        except AkterError as problem:
            logger.warning("relay.release_failed", extra={"akter_rows": len(rows), "akter_reason": str(problem)[:500]})

    def held(self) -> list[str]:
        """What this runner holds."""
        with self._lock:
            return sorted(self._rows)

    def close(self) -> None:
        """End the lane's threads when what they do is done."""
        self.lane.close()

    def _work(self, row: R, until: float, working: Any) -> None:
        raise NotImplementedError

    def _explain(self, rows: Sequence[R], why: str) -> bool:
        raise NotImplementedError

    def _wait(self, row: R, problem: BaseException) -> None:
        raise NotImplementedError

    def _release(self, rows: Sequence[R], begun: bool) -> None:
        raise NotImplementedError

    def _name(self, row: R) -> str:
        raise NotImplementedError

    def _about(self, row: R) -> dict[str, Any]:
        raise NotImplementedError


@contextmanager
def transaction(engine: Engine, schema: str) -> Iterator[Connection]:
    """A short transaction of the relay's own; raises akter's errors, `Unavailable` when the database cannot be reached or is lost."""
    options: Any = {"isolation_level": "READ COMMITTED", "postgresql_readonly": False, "schema_translate_map": {SCHEMA: schema}}
    try:
        with engine.connect() as given, given.execution_options(**options).begin():
            presence.limit(given, PATIENCE)
            yield given
    except sqlalchemy.exc.TimeoutError as problem:
        raise failure.of_connecting(problem, "") from problem
    except sqlalchemy.exc.DBAPIError as problem:
        if not isinstance(problem.orig, psycopg.Error):
            raise
        raise failure.of_statement(problem.orig, "", schema) from problem
