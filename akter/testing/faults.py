"""Let a turn die or wait at a named point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from akter.app import Akter
from akter.errors import AkterError
from akter.fault import Pause, Point


def crash_next(app: Akter, point: Point, *, command_id: str | None = None) -> None:
    """Let the next turn (of `command_id`, when given) die at `point` as if its process had been killed; its retry then runs.

    The points are `before_delivery`, `queued`, `before_handler`, `before_commit` and `after_commit`.
    """
    app.faults.plant(point, command_id, None)


@contextmanager
def pause_next(app: Akter, point: Point, *, command_id: str | None = None) -> Iterator[Pause]:
    """Hold the next turn at `point`: `pause.wait()` until it stands there, `pause.release()` to let it go on, at the latest at the
    end of the block."""
    pause = Pause()
    app.faults.plant(point, command_id, pause)
    try:
        yield pause
    finally:
        pause.release()


def clear_faults(app: Akter) -> None:
    """Remove every fault; raises `AkterError` naming the points that no turn ever reached."""
    if left := app.faults.clear():
        raise AkterError(f"no turn reached {', '.join(left)}: the fault was planted in vain")
