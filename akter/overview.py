"""What a deployment looks like to whoever looks after it, as `Operator` tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from akter.store.backlog import Count
from akter.store.presence import Present


@dataclass(frozen=True, slots=True)
class Overview:
    """Who runs, what waits, and what is paused, as of one moment."""

    runners: list[Present]
    waiting: list[Count]
    paused: list[dict[str, Any]]


class Health(NamedTuple):
    """Whether some runner lives and looks for work, and what is so or not so."""

    good: bool
    said: str
