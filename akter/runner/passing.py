"""What a pass of the relay did, and what it did for one family."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from akter.runner.family import Family


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did. `quiet`: nothing was held when it started. `behind`: families for which there may be more to claim.
    `asked`: whether there was a free seat to claim for."""

    claimed: int = 0
    behind: tuple[Family, ...] = ()
    quiet: bool = True
    asked: bool = False

    @property
    def backlog(self) -> bool:
        """Whether there may be more to claim."""
        return bool(self.behind)


@dataclass(slots=True)
class Share:
    """A family's part in a pass: `free` seats, the `rows` taken for it so far, and whether some were `left`.

    `anywhere`: a piece of the buckets is not enough to look at. `everywhere`: it was looked for in each range of buckets. `oldest_ms`: the
    longest time that something seen has been due.
    """

    family: Family
    free: int
    anywhere: bool = False
    rows: list[Any] = field(default_factory=list)
    left: bool = False
    everywhere: bool = True
    oldest_ms: int = 0

    @property
    def room(self) -> int:
        """Seats that are free still."""
        return self.free - len(self.rows)
