"""The processes beside the main one: workers, which may be killed, and the provider, with a view into its ledger."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self

from akter.errors import AkterError

from . import gateway

PATIENCE = 20.0
"""Seconds that a process gets to end by itself."""


class Child:
    """A Python process that says one line when it is ready, and ends when its input does; at the end of a block it is gone."""

    def __init__(self, module: str, *arguments: str, log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"akter.examples.orders.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(env or {})},
            )
        self.pid = self._process.pid

    def ready(self) -> str:
        """Wait for the line that it says first; raises `AkterError` if it ends before."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        self.check()
        if not said:
            self._process.wait()
            self.check()
        return said

    def check(self) -> None:
        """Raise `AkterError` if it has ended, with the last it said of that."""
        if (status := self._process.poll()) is not None:
            raise AkterError(f"the process {self.pid} ended with status {status}:\n{self._log.read_text(errors='replace')[-2000:]}")

    def kill(self) -> None:
        """End it as by `kill -9`."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: object, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            if problem is None:
                self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()


class Asked(NamedTuple):
    """What the provider has seen so far."""

    requests: int
    charges: int
    unanswered: int


class Ledger:
    """The provider's ledger, read beside the provider."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def asked(self) -> Asked:
        """How much it was asked, how much it charged, and how often it has not answered, or not yet."""
        ((requests, unanswered),) = self.all("SELECT count(*), count(*) - count(answered) FROM requests")
        ((charges,),) = self.all("SELECT count(*) FROM charges")
        return Asked(requests, charges, unanswered)

    def open_requests(self, worker: int) -> set[str]:
        """The orders for which a worker waits for an answer now."""
        since = time.time() - gateway.PATIENCE
        statement = "SELECT order_id FROM requests WHERE worker = ? AND answered IS NULL AND began > ?"
        return {order for (order,) in self.all(statement, worker, since)}

    def asked_again(self, orders: set[str], since: float, worker: int) -> dict[str, float]:
        """Those of the orders that others than that worker asked for after `since`, with the seconds that it took."""
        found = self.all("SELECT order_id, min(began) FROM requests WHERE began > ? AND worker <> ? GROUP BY order_id", since, worker)
        return {order: began - since for order, began in found if order in orders}

    def all(self, statement: str, *values: object) -> list[Any]:
        """The rows of a query."""
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10.0)) as database:
            return database.execute(statement, values).fetchall()
