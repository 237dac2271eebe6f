"""What tests in any folder use."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


@contextmanager
def kept() -> Iterator[Path]:
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    directory = Path(tempfile.mkdtemp(prefix="akter-test-", dir=memory if roomy else "/var/tmp"))
    directory.chmod(0o1777)
    yield directory
    # A server ends a moment after the last process that used it.
    end = time.monotonic() + 60
    while any(map(runs, directory.rglob("postmaster.pid"))) and time.monotonic() < end:
        time.sleep(0.02)
    shutil.rmtree(directory)


def runs(pidfile: Path) -> bool:
    """Whether the server of this file lives; one that was killed leaves its file behind."""
    try:
        os.kill(int(pidfile.read_text().split("\n", 1)[0]), 0)
    except (OSError, ValueError):
        return False
    return True


@pytest.fixture(scope="session")
def reachable() -> Callable[[], AbstractContextManager[Path]]:
    """Makes directories that the account of an embedded PostgreSQL can reach, and in which every account may make others."""
    return kept


@pytest.fixture
def place(reachable: Callable[[], AbstractContextManager[Path]]) -> Iterator[Path]:
    """Such a directory for one test."""
    with reachable() as directory:
        yield directory
