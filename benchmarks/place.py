"""Where it is measured: a durable server on a directory, or one that is given; a database for the run; and what machine it is."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import sqlalchemy
from psycopg import pq, sql
from sqlalchemy.engine import make_url

import akter

SETTINGS = (
    "server_version",
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "data_checksums",
    "data_directory",
)


Part: TypeAlias = "tuple[Callable[..., dict[str, Any]], Callable[[dict[str, Any]], str]]"
"""What measures one table, and what prints it."""


def tables(parts: Mapping[str, Part], url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure and print those of the parts that were asked for, or all; returns what was measured."""
    found: dict[str, Any] = {}
    for name in options.parts or parts:
        measured, table = parts[name]
        with tempfile.TemporaryDirectory(prefix="akter-benchmark-") as directory:
            found[name] = measured(url, Path(directory), options)
        print(table(found[name]))
        print(flush=True)
    return found


def parser(says: str, *, pairs: int, seconds: float) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    made = argparse.ArgumentParser(description=says)
    made.add_argument("--pairs", type=int, default=pairs, help=f"how often each comparison is repeated (default {pairs})")
    made.add_argument("--seconds", type=float, default=seconds, help=f"seconds of one measurement (default {seconds})")
    made.add_argument("--url", help="a PostgreSQL where a database may be created; otherwise one is started")
    made.add_argument("--data", type=Path, help="the directory of the server that is started (default: a new one in /var/tmp, removed)")
    made.add_argument("--json", type=Path, help="where the JSON goes (default: benchmarks/results/)")
    return made


@contextmanager
def database(options: argparse.Namespace) -> Iterator[str]:
    """The URL of a new database, which is dropped afterwards. Every commit in it waits for the disk."""
    with server(options, {"max_connections": "300"}) as base, fresh(base) as url:
        yield url


@contextmanager
def fresh(base: str) -> Iterator[str]:
    """The URL of a new database on the server of another one."""
    name = f"akter_benchmark_{uuid4().hex[:12]}"
    url = make_url(base).set(database=name, drivername="postgresql+psycopg")
    with connect(base) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name)))
        admin.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = on").format(sql.Identifier(name)))
    try:
        yield url.render_as_string(hide_password=False)
    finally:
        with connect(base) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def server(options: argparse.Namespace, settings: Mapping[str, str]) -> Iterator[str]:
    """The URL of a server; the settings are for one that is started here."""
    if options.url:
        yield options.url
        return
    from akter.embedded import Server

    # /tmp is in memory on many machines.
    disk = "/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir()
    directory: Path = options.data or Path(disk, f"akter-benchmark-{uuid4().hex[:12]}")
    try:
        with Server(directory, settings=settings) as running:
            yield running.url()
    finally:
        if options.data is None:
            shutil.rmtree(directory, ignore_errors=True)


def connect(url: str) -> psycopg.Connection[Any]:
    """A plain connection, without transactions."""
    return psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False), autocommit=True)


@contextmanager
def one_core(number: int) -> Iterator[None]:
    """Let this thread, and those that it starts, run on one core only: the `number`th of those that the process may use."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def machine(url: str, pgbench: str = "") -> dict[str, Any]:
    """What has to be known about a figure: the machine, the versions, and how durable a commit is."""
    with connect(url) as connection:
        row = [(connection.execute("SELECT current_setting(%s, true)", [name]).fetchone() or [None])[0] for name in SETTINGS]
    settings = dict(zip(SETTINGS, row, strict=True))
    data = str(settings.pop("data_directory") or "")
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "psycopg": f"{psycopg.__version__} ({pq.__impl__}, libpq {psycopg.pq.version()})",
        "sqlalchemy": sqlalchemy.__version__,
        "akter": akter.__version__,
        "postgresql": settings.pop("server_version"),
        "pgbench": pgbench,
        "data": _filesystem(data),
        **settings,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _filesystem(directory: str) -> str:
    """The kind of file system the data is on; `tmpfs` means that no commit waited for a disk."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    holding = [(mount, kind) for mount, kind in mounts if f"{directory}/".startswith(f"{mount.rstrip('/')}/")]
    if not os.path.isdir(directory) or not holding:
        return "unknown"
    return max(holding, key=lambda found: len(found[0]))[1]


def said(found: dict[str, Any]) -> str:
    """The machine in one paragraph."""
    return ", ".join(f"{name} {value}" for name, value in found.items())
