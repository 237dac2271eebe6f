"""A hostile network: a proxy in front of the test's database, an observer beside it, and servers of one's own to mistreat."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine
from sqlalchemy.engine import make_url

from akter import Akter, schema
from akter.embedded import Server


def _load(name: str) -> Any:
    """A module of this folder, which is not a package."""
    spec = importlib.util.spec_from_file_location(f"akter_tests_network_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


Proxy = _load("proxy").Proxy


def poll(fact: Callable[[], Any], within: float = 30.0) -> Any:
    """What `fact` says once it is true; for facts outside of this process, which nobody signals."""
    end = time.monotonic() + within
    while not (found := fact()):
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)
    return found


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return poll


class Observer:
    """A connection beside the application's, in autocommit; akter's tables need no schema before their names."""

    def __init__(self, url: str, schema: str) -> None:
        self.connection = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self.connection.execute("SET synchronous_commit = local")
        self.connection.execute(f'SET search_path TO public, "{schema}"'.encode())

    def rows(self, statement: Any, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, statement: Any, *parameters: Any) -> Any:
        return self.rows(statement, *parameters)[0][0]

    def sessions(self, condition: str = "true") -> list[int]:
        """The backends of this database's other clients."""
        found = self.rows(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"  # type: ignore[arg-type]
            f" AND pid <> pg_backend_pid() AND ({condition})"
        )
        return [pid for (pid,) in found]

    def terminate(self, *pids: int) -> int:
        """End these backends, or all; returns how many, after they are gone."""
        chosen = pids or tuple(self.sessions())
        for pid in chosen:
            self.rows("SELECT pg_terminate_backend(%s)", pid)
        poll(lambda: not set(chosen) & set(self.sessions()))
        return len(chosen)

    def waiting(self) -> list[int]:
        """The backends that wait for a lock."""
        return self.sessions("wait_event_type = 'Lock'")


@pytest.fixture
def observe(akter_schema: str) -> Iterator[Callable[[str], Observer]]:
    """Makes an observer of a database."""
    made: list[Observer] = []

    def make(url: str) -> Observer:
        made.append(Observer(url, akter_schema))
        return made[-1]

    yield make
    for observer in made:
        observer.connection.close()


@pytest.fixture
def observer(observe: Callable[[str], Observer], akter_database: str) -> Observer:
    return observe(akter_database)


@pytest.fixture
def proxy(akter_database: str) -> Iterator[Any]:
    """A proxy in front of this test's database."""
    made = Proxy(akter_database)
    yield made
    made.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[str], Any]]:
    """Puts a proxy in front of a database."""
    made: list[Any] = []

    def make(url: str) -> Any:
        made.append(Proxy(url))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    """Makes engines that are disposed of at the end."""
    made: list[Engine] = []

    def make(url: str, **options: Any) -> Engine:
        made.append(sqlalchemy.create_engine(url, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


@pytest.fixture
def through(proxy: Any, make_engine: Callable[..., Engine], akter_app: Callable[..., Akter]) -> Callable[..., Akter]:
    """Makes an app that reaches this test's database through the proxy."""

    def make(*actors: Any, pool_size: int = 8, **options: Any) -> Akter:
        return akter_app(*actors, engine=make_engine(proxy.url, pool_size=pool_size, max_overflow=0), **options)

    return make


class Thread(threading.Thread):
    """Runs a function; `answer()` returns or raises what it did."""

    def __init__(self, target: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work, self._result, self._problem = target, None, None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as problem:
            self._problem = problem

    def answer(self, within: float = 40.0) -> Any:
        self.join(within)
        assert not self.is_alive(), "it is stuck"
        if self._problem is not None:
            raise self._problem
        return self._result


@pytest.fixture
def aside() -> type[Thread]:
    """Runs a function in a thread of its own."""
    return Thread


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says nothing is taken for dead a quarter of a second after its own limit."""
    monkeypatch.setattr("akter.turn._GRACE", 0.25)


@pytest.fixture(scope="module")
def private(akter_schema: str) -> Iterator[Server]:
    """A server of this module's own, to stop, freeze and configure, with a migrated database to copy."""
    settings = {"wal_level": "replica", "max_wal_senders": "2", "max_connections": "60", "synchronous_commit": "on"}
    with Server.temporary(settings) as server:
        with psycopg.connect(server.url(driver=""), autocommit=True) as connection:
            connection.execute("CREATE DATABASE migrated")
        engine = sqlalchemy.create_engine(server.url("migrated"))
        schema.upgrade(engine, schema=akter_schema)
        engine.dispose()
        yield server


@pytest.fixture
def halt(private: Server) -> Callable[..., Path]:
    """Ends the private server without removing anything, so that `start()` brings it up again; returns where its files are."""

    def end(how: signal.Signals = signal.SIGINT) -> Path:
        files = private.data / "pgdata"
        os.kill(private.pid, how)
        poll(lambda: not (files / "postmaster.pid").exists())
        return files

    return end


@pytest.fixture
def private_database(private: Server) -> str:
    """A migrated database on it, of this test alone."""
    name = f"mine_{next(_numbers)}"
    with psycopg.connect(private.start().url(driver=""), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE migrated STRATEGY FILE_COPY".encode())
    return private.url(name)


_numbers = itertools.count(1)


@pytest.fixture
def configure(observer: Any, akter_database: str) -> Callable[[dict[str, str]], None]:
    """Gives the test's database other defaults."""
    name = make_url(akter_database).database

    def apply(settings: dict[str, str]) -> None:
        for setting, value in settings.items():
            quoted = value if setting in ("search_path", "DateStyle") else f"'{value}'"
            observer.rows(f'ALTER DATABASE "{name}" SET {setting} = {quoted}')

    return apply
