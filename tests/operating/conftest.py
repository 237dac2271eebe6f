"""The command `akter` as a process of its own, and a look at what it does from beside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text

from akter.app import Akter
from akter.operating import Operator

# Where the processes find their application, the tests do too.
sys.path.insert(0, str(Path(__file__).parent))

from processes import HERE, Done, Started
from shop import Crate, Parcel


@pytest.fixture(autouse=True)
def _hangs_up() -> Iterator[None]:
    """Processes are started as from a terminal, also where whoever runs the tests ignores that it may close, as nohup does."""
    # What is ignored stays so in a child; what is handled does not.
    before = signal.signal(signal.SIGHUP, lambda *_: None) if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else None
    yield
    if before is not None:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def environment(akter_database: str, akter_schema: str) -> dict[str, str]:
    return {**os.environ, "AKTER_DATABASE_URL": akter_database, "AKTER_SCHEMA": akter_schema}


@pytest.fixture
def akter(environment: dict[str, str]) -> Callable[..., Done]:
    """Run a command to its end."""

    def run(*arguments: str, **more: str) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "akter", *arguments], cwd=HERE, env={**environment, **more}, capture_output=True, text=True, timeout=60
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Start a command that runs on."""
    started: list[Started] = []

    def begin(*arguments: str, how: dict[str, Any] | None = None, **more: str) -> Started:
        started.append(Started(arguments, {**environment, **more}, tmp_path / f"{len(started)}.log", **(how or {})))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.wait()
        if one.process.stdin is not None:
            one.process.stdin.close()


@pytest.fixture
def app(akter_app: Callable[..., Akter]) -> Akter:
    return akter_app(Parcel, Crate)


@pytest.fixture
def operator(akter_engine: sqlalchemy.Engine, akter_schema: str) -> Operator:
    return Operator(akter_engine, schema=akter_schema, by="ada")


@pytest.fixture
def rows(akter_database: str, akter_schema: str) -> Iterator[Callable[..., list[Any]]]:
    """Run SQL as the schema's owner; `{akter}` is the schema."""
    engine = sqlalchemy.create_engine(akter_database, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:

        def run(statement: str, **values: Any) -> list[Any]:
            result = connection.execute(text(statement.replace("{akter}", f'"{akter_schema}"')), values)
            return [tuple(row) for row in result] if result.returns_rows else []

        yield run
