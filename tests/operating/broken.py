"""An application in whose process the heartbeat's thread dies."""

from __future__ import annotations

from shop import app

from akter.runner.heartbeat import Heartbeat


def _beat(self: Heartbeat) -> float:
    raise SystemExit("the thread ends")


Heartbeat.beat = _beat  # type: ignore[method-assign]
__all__ = ["app"]
