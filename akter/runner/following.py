"""The families that bring events to those that follow: which a runner has, and how many threads each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Engine

from akter.app import Akter
from akter.definition import Definition
from akter.errors import ConfigurationError
from akter.runner.control import Controls
from akter.runner.feed import Feeds
from akter.runner.follow import Follows
from akter.runner.lane import Lane
from akter.runner.queued import Queued
from akter.runner.settings import Settings
from akter.runner.settler import Settler
from akter.runner.telling import Teller
from akter.store import claim

SEATS = {"feed": 2, "control": 2, "subscription": 64}
"""Seats of these families unless `lanes` says otherwise. Feeds and controls run no handlers, and share the relay's own connections."""

_MOST = 8


def threads(actors: Mapping[str, Definition], settings: Settings, room: int) -> int:
    """Threads that tell subscribers, of `room` that may run handlers at once; raises `ConfigurationError` when there is only one."""
    seats = _seats(settings, "subscription")
    if not seats or not any(definition.subscriptions for definition in actors.values()):
        return 0
    if room < 2:
        raise ConfigurationError(
            "Runner: with subscriptions it needs a connection more, for their deliveries beside those of messages: make pool_size larger"
        )
    return max(1, min(seats, room // 3))


def families(
    app: Akter,
    engine: Engine,
    settler: Settler,
    settings: Settings,
    telling: int,
    lease: float,
    wake: Callable[[], None],
    carry_on: Callable[[], None],
) -> list[Queued | Follows]:
    """Feeds for every runner, whose actors may be followed by types of other processes; the others where types follow.

    `wake` lets the relay look at everything, `carry_on` for what was left for want of seats.
    """
    around = app.surroundings
    statements, actors = around.statements, app.actors
    shared: dict[str, Any] = {"statements": statements, "settler": settler, "settings": settings, "lease": lease}
    found: list[Queued | Follows] = []
    if seats := min(_MOST, _seats(settings, "feed")):
        lane = Lane("feed", seats, seats, 1, carry_on)
        found.append(Feeds(engine, around.faults, wake, claim=claim.feed, served=actors, lane=lane, **shared))
    teller = Teller(around, app.limits.execution)
    following = [name for name, definition in actors.items() if definition.subscriptions]
    if following and (seats := min(_MOST, _seats(settings, "control"))):
        lane = Lane("control", seats, seats, 1, carry_on)
        found.append(Controls(engine, around.faults, wake, actors, teller, claim=claim.control, served=following, lane=lane, **shared))
    if telling:
        seats = max(telling, _seats(settings, "subscription"))
        lane = Lane("subscription", seats, telling, settings.group, carry_on)
        found.append(Follows(engine, statements, actors, teller, settler.counts, lane, settings, lease))
    return found


def _seats(settings: Settings, family: str) -> int:
    return settings.lanes.get(family, SEATS[family])
