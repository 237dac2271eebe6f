"""Several processes on one database, each an app and an engine of its own, in the process of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from akter import testing
from akter.testing import Node as Node

NEVER = 3600.0
"""A poll so seldom that only wake-ups and `advance` claim anything."""


@contextmanager
def cluster(url: str, schema: str, *usual: Any) -> Iterator[Callable[..., Node]]:
    """`akter.testing.cluster` of runners that a test starts itself, and that look for work only when they are woken."""
    with testing.cluster(url, *usual, schema=schema, poll=NEVER, listen=False) as node:
        yield partial(node, started=False)


def eventually(what: str, so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Look again and again until something is so."""
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end, f"{what}: not within {seconds} seconds"
        time.sleep(0.002)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Do something beside the test."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
