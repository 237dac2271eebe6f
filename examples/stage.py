"""What demos stand on: a directory that may be thrown away, and a PostgreSQL of their own with akter's tables."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sqlalchemy import text

from akter import Akter, embedded


@contextmanager
def directory(kept: str | None = None) -> Generator[str]:
    """The directory to be kept, or one of its own that goes with the block."""
    if kept is not None:
        yield kept
        return
    made = tempfile.mkdtemp(prefix="akter-demo-")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def prepare(app: Akter, say: Callable[[str], None]) -> None:
    """Start the server, create the tables, and say what there is."""
    began = time.monotonic()
    app.migrate()
    with app.engine.connect() as connection:
        version = connection.execute(text("SHOW server_version")).scalar_one()
    say(f"PostgreSQL {version} with akter's tables, in {embedded.engine_server(app.engine).data}: {time.monotonic() - began:.1f} s")


def many(number: int, what: str) -> str:
    """A number of things."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
