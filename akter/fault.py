"""Named points of a turn where a test may pause it or let it die; without a test they cost one attribute look-up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Final, Literal, Protocol, TypeAlias, get_args

from akter.errors import AkterError, Unavailable
from akter.identity import Address

Point: TypeAlias = Literal[
    "before_delivery",
    "queued",
    "before_handler",
    "before_commit",
    "after_commit",
    "after_claim",
    "before_outbox_delete",
    "before_execute",
    "after_execute",
    "before_renew",
    "before_dead_letter_commit",
]
"""before_delivery: the call has its id and nothing was sent. queued: it has its turn seat. before_handler: admitted, the actor is
locked. before_commit: the handler is done, nothing was written. after_commit: committed, the caller does not know yet.
after_claim: a relay holds the row. before_outbox_delete: the receiver has committed, the row is still there. before_execute: a job's
attempt is recorded, its function was not called. after_execute: the function has ended, nothing was written of it. before_renew: the
attempt's lease is about to be renewed. before_dead_letter_commit: the last failure is recorded, the dead letter is not."""

POINTS: Final = get_args(Point)


class Crashed(Unavailable):
    """A test let this turn die here, as if its process had been killed."""


class Subject(Protocol):
    """What is at the point."""

    @property
    def address(self) -> Address:
        """The actor."""
        ...

    @property
    def id(self) -> str:
        """The command id as it is stored."""
        ...


class Pause:
    """A turn held at a point: wait until it is `reached`, then `release` it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._released = threading.Event()

    def wait(self, seconds: float = 30.0) -> None:
        """Wait until a turn stands at the point; raises `AkterError` when none does in time."""
        if not self.reached.wait(seconds):
            raise AkterError(f"no turn reached the point within {seconds} seconds")

    def release(self) -> None:
        """Let the turn go on."""
        self._released.set()

    def hold(self, seconds: float = 60.0) -> None:
        """Stand here until released; what the turn does."""
        self.reached.set()
        if not self._released.wait(seconds):
            raise AkterError(f"nobody released the pause within {seconds} seconds")


Hook: TypeAlias = Callable[[Point, Subject], None]


class Faults:
    """The faults of one Akter: each is used once, in the order they were planted, by the first match at its point."""

    everywhere: ClassVar[Hook | None] = None
    """What every Akter of this process starts to watch with; a child process of a test stops at its point by it."""

    def __init__(self) -> None:
        self._planted: list[tuple[Point, str | None, Pause | None]] = []
        self._hook = type(self).everywhere
        self.armed = self._hook is not None
        self._lock = threading.Lock()

    def plant(self, point: Point, command_id: str | None, pause: Pause | None) -> None:
        """Add a fault: a pause, or a crash when there is none."""
        if point not in POINTS:
            raise AkterError(f"there is no point {point!r}; the points are {', '.join(POINTS)}")
        with self._lock:
            self._planted.append((point, command_id, pause))
            self.armed = True

    def watch(self, hook: Hook | None) -> None:
        """Call `hook` at every point that no planted fault took."""
        with self._lock:
            self._hook = hook
            self.armed = hook is not None or bool(self._planted)

    def clear(self) -> list[Point]:
        """Remove every fault; returns the points of those that were never reached."""
        with self._lock:
            left: list[Point] = [point for point, _, _ in self._planted]
            self._planted = []
            self.armed = self._hook is not None
        return left

    def at(self, point: Point, subject: Subject) -> None:
        """Stand at a point."""
        if self.armed:
            self._at(point, subject)

    def _at(self, point: Point, subject: Subject) -> None:
        with self._lock:
            found = next(
                (fault for fault in self._planted if fault[0] == point and (fault[1] is None or subject.id.endswith(fault[1]))), None
            )
            if found is not None:
                self._planted.remove(found)
            hook = self._hook
        if found is None:
            if hook is not None:
                hook(point, subject)
        elif found[2] is None:
            raise Crashed(f"crashed at {point}", command_id=subject.id)
        else:
            found[2].hold()
