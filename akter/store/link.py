"""What is known of one physical connection, for as long as it lives."""

from __future__ import annotations

import time

_PLANNED_FOR, _PLANNED_FOR_LONG = 64, 16_384
"""How often a connection is used with its first plans, and then with any: they are made anew after 64 uses, 128, 256 and so on. PostgreSQL
itself keeps a plan that reads a whole table, because it was empty, until the table is analyzed."""


class Link:
    """What is known of one physical connection: since when, whether a pooler stands between, what was prepared on it, and how much
    it was used."""

    __slots__ = ("_plan_at", "_uses", "pooled", "prepared", "since")

    def __init__(self, pooled: bool) -> None:
        self.pooled, self.since = pooled, time.monotonic()
        self.prepared: set[bytes] = set()
        self._uses, self._plan_at = 0, _PLANNED_FOR

    def use(self) -> bool:
        """Count a use; whether what was prepared is to be planned anew before it: tables have grown, and statistics may be of before."""
        if self.use_again():
            return False
        self._uses += 1
        self._plan_at = self._uses + min(self._uses, _PLANNED_FOR_LONG)
        return not self.pooled

    def use_again(self) -> bool:
        """Count a use, unless what was prepared is to be planned anew before it; whether it did."""
        if self._uses >= self._plan_at:
            return False
        self._uses += 1
        return True
