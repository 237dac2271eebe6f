"""An application in whose process the heartbeat's thread dies."""

from __future__ import annotations

from shop import app

from akter.runner import Runner


def _beat(self: Runner) -> float:
    raise SystemExit("the thread ends")


Runner._beat = _beat  # type: ignore[method-assign]
__all__ = ["app"]
