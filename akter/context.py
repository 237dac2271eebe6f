"""What surrounds a call without being passed: the caller, the tenant, a command id, and whether a turn is running."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from akter.caller import Caller, System
from akter.errors import InvalidCommandId
from akter.identity import DEFAULT_TENANT, CommandId


@dataclass(slots=True)
class GivenId:
    """A command id that covers exactly one command."""

    id: str | CommandId
    scope: str | None
    used: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> GivenId:
        """Use the id; raises `InvalidCommandId` the second time."""
        with self.lock:
            if self.used:
                raise InvalidCommandId(
                    "a command_id(...) block covers exactly one command: open another block for the next", code="malformed"
                )
            self.used = True
        return self


@dataclass(frozen=True, slots=True)
class Ambient:
    """What surrounds the calls of one Akter."""

    caller: Caller
    tenant: str = DEFAULT_TENANT
    given: GivenId | None = None


_NOTHING = Ambient(System())
_ambient: ContextVar[tuple[tuple[object, Ambient], ...]] = ContextVar("akter_ambient", default=())

running: ContextVar[object | None] = ContextVar("akter_running", default=None)
"""The turn or query whose handler runs in this context."""


def inside() -> Any:
    """The turn or query whose handler runs here now; what a handler scheduled for later keeps its context, but not its turn."""
    found = running.get()
    return found if getattr(found, "is_open", False) else None


def ambient(app: object) -> Ambient:
    """What surrounds a call of `app` here."""
    for owner, found in reversed(_ambient.get()):
        if owner is app:
            return found
    return _NOTHING


@contextmanager
def surround(app: object, **changes: object) -> Iterator[None]:
    """Surround the calls of `app` in this block."""
    token = _ambient.set((*_ambient.get(), (app, replace(ambient(app), **changes))))  # type: ignore[arg-type]
    try:
        yield
    finally:
        _ambient.reset(token)


def warn_in_event_loop(where: str) -> None:
    """Warn a thread that runs an event loop, which a call would block."""
    if asyncio._get_running_loop() is not None:
        warnings.warn(
            f"{where} blocks the event loop this thread runs: call it with `await asyncio.to_thread(...)`", RuntimeWarning, stacklevel=4
        )
