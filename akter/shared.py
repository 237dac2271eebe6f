"""What the callers of a group share: a seat, a connection, a turn. The next group may get all three, with its admission under way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from sqlalchemy import Engine

from akter.call import Call
from akter.member import Member, Surroundings
from akter.seats import Seats
from akter.store.flight import Line
from akter.store.turn import Admitted
from akter.store.wire import Wire
from akter.turn import Turn

if TYPE_CHECKING:
    from akter.group import Group

_LOCK = 0.1
"""Seconds that a group waits for an actor that is busy elsewhere: its neighbours wait with it."""

_MOST = 16
"""Groups, one after the other, that use one connection before it visits the pool, where others may wait for it."""


def impatient(around: Surroundings) -> Surroundings:
    """What the turns of groups have around them."""
    return around._replace(lock=min(around.lock, _LOCK))


class Shared:
    """The seat, the connection and the turn of the group of these calls, until `deadline`, a `time.monotonic()` value.

    Its commit carries the admission of those that wait by then, which saves them a flight: `after` is their group.
    """

    _turn: Turn

    def __init__(self, calls: Sequence[Call], deadline: float, engine: Engine, around: Surroundings, seats: Seats) -> None:
        self._calls, self._deadline, self._engine, self._around, self._seats = calls, deadline, engine, around, seats
        self._wire: Wire | None = None
        self._before = 0
        self.after: Group | None = None

    def admit(self) -> list[Admitted]:
        """Lock and read for all; raises as a turn does."""
        if self._wire is None:
            asked = time.perf_counter()
            self._enter(Wire(self._engine, self._around.statements, self._calls[0].id))
            self._around.telemetry.waited(asked, "turn")
        return self._turn.admit(self._calls, watched=True)

    def commit(self, members: Sequence[Member]) -> int:
        """Write and commit what the members leave; returns the database's time, in milliseconds, or raises as a turn does."""
        for member in members:
            self._turn.check_time(member.call)
        return self._turn.commit(members, behind=self._next)

    def _enter(self, wire: Wire) -> None:
        self._wire, self._turn = wire, Turn(wire, self._deadline, impatient(self._around))

    def _next(self) -> Sequence[Line]:
        """The admission of the group that comes next on this connection."""
        wire = cast(Wire, self._wire)
        if self._before + 1 >= _MOST or not wire.keep():
            return ()
        # Whoever waits for one of these actors elsewhere is to get it before this connection locks it again.
        self.after = self._seats.successor({call.address for call in self._calls}, len(self._calls))
        return () if self.after is None else self.after.shared.asked(wire)

    def asked(self, wire: Wire) -> Sequence[Line]:
        """The admission, as another group's commit carries it on its connection."""
        self._enter(wire)
        return self._turn.asked(self._calls)

    def inherit(self, before: Shared | None) -> None:
        """Have the seat of the group before this one, and its connection; `None`: that is no good any more, and nothing is under way."""
        if before is None:
            self._wire = None
        else:
            self._before = before._before + 1

    def end(self, crashed: bool) -> None:
        """Give connection and seat to the next group, or back. `crashed`: as if the process had died."""
        passes = self.after is not None and self._wire is not None and self._wire.under_way
        try:
            if self._wire is not None and not passes:
                if crashed:
                    self._wire.discard()
                self._wire.__exit__(None, None, None)
        finally:
            if self.after is None:
                self._seats.leave(len(self._calls))
            else:
                self.after.take_over(self if passes else None)
