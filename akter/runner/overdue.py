"""Handlers that do not return. A thread cannot be killed, so each is told once, shown on its message, and counted."""

from __future__ import annotations

import logging

from akter.runner.lane import Lane
from akter.runner.message import Delivery, Held
from akter.runner.settler import Settler, about

logger = logging.getLogger("akter.relay")


class Overdue:
    """Looks after the handlers of one lane; `label` is what operators know the runner by."""

    def __init__(self, held: Held, lane: Lane, settler: Settler, label: str) -> None:
        self._held, self._lane, self._settler, self._label = held, lane, settler, label
        self._hung = False

    def count(self) -> list[Delivery]:
        """The messages whose handlers are past their time limit; the lane knows how many afterwards."""
        late = self._held.overdue()
        self._lane.overdue = len(late)
        return late

    def look(self) -> None:
        """Tell of those that are new, and write on their rows why they are not delivered yet; what cannot be written is tried again."""
        late = self.count()
        for delivery in late:
            if not delivery.told:
                delivery.told = True
                logger.warning("relay.past_its_limit", extra={**about(delivery.row), "akter_thread": delivery.thread})
        if self._lane.hung and not self._hung:
            logger.error("relay.hung", extra={"akter_family": self._lane.family, "akter_threads": self._lane.threads})
        self._hung = self._lane.hung
        fresh = [delivery for delivery in late if not delivery.explained]
        said = f"its handler has not returned within its time limit, and holds a thread of the runner {self._label}"
        if self._settler.explain([delivery.row for delivery in fresh], said):
            for delivery in fresh:
                delivery.explained = True
