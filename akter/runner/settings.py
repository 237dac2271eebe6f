"""How a runner runs, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

from akter.errors import ConfigurationError

FAMILIES = ("intents", "jobs", "feed", "control", "subscription")
"""The work families; each has seats of its own, so none ever waits for another's."""

EVERY: Mapping[str, int] = {"intents": 64, "jobs": 64}
"""The seats of the families that a runner has unless told otherwise."""

MAX_SECONDS = 2_147_483.647
MAX_HEARTBEAT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`lanes`: seats per family, the rows that it holds at most; 0 leaves it to other runners. `poll`: seconds between passes without a
    wake-up. `claim_lease`: seconds a claimed row is this runner's: at least the longest time limit of a command, by default more.
    `max_backoff`: the longest wait of a failing row, in seconds. `pass_limit`: rows a pass takes at most. `group`: messages delivered
    in one transaction. `listen`: wait for hints of other processes. `ride`: delete a delivered row in its receiver's commit instead of
    after it. `heartbeat`: seconds between signs of life. `cancel_check`: the longest time, in seconds, until a running attempt learns
    that another process cancelled its job. `ranges`: the buckets it claims from. `sweep`: seconds between sweeps of old receipts and
    events, which all runners share; None for none by this one. `skip_after`: seconds after which a tick of a schedule that could not
    run is skipped.
    """

    lanes: Mapping[str, int] = field(default_factory=lambda: dict(EVERY))
    poll: float = 1.0
    claim_lease: float | None = None
    max_backoff: float = 256.0
    pass_limit: int = 256
    group: int = 32
    listen: bool = True
    ride: bool = True
    heartbeat: float = 5.0
    sweep: float | None = 60.0
    cancel_check: float = 5.0
    ranges: tuple[tuple[int, int], ...] = ((-128, 127),)
    skip_after: float = 86_400.0

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.lanes), Mapping):
            raise ConfigurationError(f'Runner: lanes is a mapping such as {{"intents": 16}}, not {self.lanes!r}')
        for family, seats in self.lanes.items():
            if family not in FAMILIES:
                raise ConfigurationError(f"Runner: there is no family {family!r}; the families are {', '.join(FAMILIES)}")
            _count(f"lanes[{family!r}]", seats, 0, 1_000_000)
        if not any(self.lanes.values()):
            raise ConfigurationError("Runner: every family has 0 seats, so it would do nothing: give one of them some")
        _count("pass_limit", self.pass_limit, 1, 1_000_000)
        _count("group", self.group, 1, 32)
        for name in ("poll", "claim_lease", "max_backoff", "heartbeat", "cancel_check", "sweep", "skip_after"):
            value = getattr(self, name)
            if value is None and name in ("claim_lease", "sweep"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= MAX_SECONDS:
                raise ConfigurationError(f"Runner: {name} is seconds between 0.001 and {MAX_SECONDS}, not {value!r}")
        if self.heartbeat > MAX_HEARTBEAT:
            raise ConfigurationError(
                f"Runner: heartbeat is at most {MAX_HEARTBEAT} seconds, because one that is silent for 20 is taken for gone"
            )
        for first, last in self.ranges:
            if not -128 <= first <= last <= 127:
                raise ConfigurationError("Runner: ranges are pairs of buckets within -128 to 127, the first not above the last")
        ends = sorted(self.ranges)
        if not ends or any(last >= following for (_, last), (following, _) in pairwise(ends)):
            raise ConfigurationError("Runner: ranges are at least one pair of buckets, and none overlaps another")


def _count(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigurationError(f"Runner: {name} is a whole number from {least} to {most}, not {value!r}")
