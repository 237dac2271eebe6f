"""From where on in the due index a claim has to look.

At its front lie the dead versions of rows that passed, for as long as any transaction is open that might see them, and due rows of types
that nobody serves here. A look from the very beginning reads them all, so where it takes long, it is made as often as a twentieth of the
time allows, and every ten seconds at least. The looks between begin with the oldest row that it left, or a little before it began:
whatever was due earlier was taken then. What comes later and is older, from a transaction that was open for long, is found by the next
look from the beginning.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from akter.store.probing import EVER

_SHARE = 20
_QUICK = 0.05
"""Seconds up to which a look from the beginning is no burden."""
_BEFORE = 5.0
"""Seconds for which a transaction may be open that asks for something due at once, and be found by any look."""

_LONGEST = 10.0
"""Seconds after which there is one whatever it takes: what took long was perhaps not the index."""
_SLACK = 1.0
"""Seconds that a look may take to reach the database."""


class Floor:
    """The floors of a relay's families, as `time.monotonic()` values."""

    def __init__(self) -> None:
        self._next = float("-inf")
        self._floors: Mapping[str, float] = {}

    @property
    def reached(self) -> bool:
        """Whether it is time for a look from the beginning."""
        return time.monotonic() >= self._next

    def wait(self) -> float:
        """Seconds until it is."""
        return max(0.0, self._next - time.monotonic())

    def age_ms(self, family: str) -> int:
        """For how many milliseconds a row may have been due that a look for this family sees."""
        floor = self._floors.get(family)
        return EVER if floor is None else int((time.monotonic() - floor + _SLACK) * 1000)

    def looked(self, began: float, took: float, oldest_ms: Mapping[str, int]) -> None:
        """A look from the beginning is over, for which the database took so many seconds.

        `oldest_ms`: for the families that it looked for everywhere, the age of the oldest row that it saw if it left some, otherwise 0.
        """
        self._next = time.monotonic() + (min(_LONGEST, _SHARE * took) if took > _QUICK else 0.0)
        self._floors = {name: began - (age / 1000 if age else _BEFORE) for name, age in oldest_ms.items()}
