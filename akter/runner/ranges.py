"""The buckets that a runner claims from, and in which order: all of them, or first a piece of them, which is quickly looked through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

PIECE = 32
"""Buckets of a piece. Where more is known to be due than there are seats, an eighth of all has enough for them."""

Range: TypeAlias = "tuple[int, int]"
"""A first and a last bucket."""


class Ranges:
    """Ranges of buckets, each time starting with another one, so that none always gets what capacity is left."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._all = list(ranges)
        self._pieces = [(start, min(last, start + PIECE - 1)) for first, last in ranges for start in range(first, last + 1, PIECE)]
        self._first, self._next = 0, list[Range]()

    def every(self) -> list[Range]:
        """All the ranges."""
        at = self._first % len(self._all)
        self._first += 1
        return self._all[at:] + self._all[:at]

    def piece(self) -> Range:
        """The next piece: each in its turn, in an order by chance, so that two runners are not after the same rows for long."""
        if not self._next:
            self._next = random.sample(self._pieces, len(self._pieces))
        return self._next.pop()
