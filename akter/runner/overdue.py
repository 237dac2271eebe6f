"""Handlers that do not return. A thread cannot be killed, so each is told once, shown on its row, and counted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from akter.runner.lane import Lane

logger = logging.getLogger("akter.relay")


class Watched(Protocol):
    """A family that knows what the threads of its lane are in."""

    lane: Lane

    def overdue(self) -> Sequence[Any]:
        """What should have returned by now; each is a `Handling`."""
        ...

    def about(self, late: Any) -> dict[str, Any]:
        """One of them, for a line of the log."""
        ...

    def explain(self, late: Sequence[Any], why: str) -> bool:
        """Write on their rows why they are not done yet; returns whether that was written."""
        ...


class Overdue:
    """Looks after the handlers of some families; `label` is what operators know the runner by."""

    def __init__(self, families: Sequence[Watched], label: str) -> None:
        self._families, self._label = families, label
        self._hung: set[str] = set()

    def count(self) -> None:
        """Let each lane know how many of its threads are past their time limit."""
        for family in self._families:
            family.lane.overdue = len(family.overdue())

    def look(self) -> None:
        """Tell of those that are new, and write on their rows why they are not done yet; what cannot be written is tried again."""
        for family in self._families:
            self._look(family)

    def _look(self, family: Watched) -> None:
        late, lane = family.overdue(), family.lane
        lane.overdue = len(late)
        for one in late:
            if not one.told:
                one.told = True
                logger.warning("relay.past_its_limit", extra={**family.about(one), "akter_thread": one.thread})
        if lane.hung and lane.family not in self._hung:
            logger.error("relay.hung", extra={"akter_family": lane.family, "akter_threads": lane.threads})
        (self._hung.add if lane.hung else self._hung.discard)(lane.family)
        fresh = [one for one in late if not one.explained]
        said = f"its handler has not returned within its time limit, and holds a thread of the runner {self._label}"
        if family.explain(fresh, said):
            for one in fresh:
                one.explained = True
