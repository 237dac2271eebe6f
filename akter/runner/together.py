"""Followers that are told in transactions which they share: in each, one event of each of them.

What is a member's own stays its own: a defect lets its row wait, and the others are told. Whatever makes the transaction of no use lets
all of them be told alone, where each shows what is its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from akter.fault import Crashed
from akter.following import Acknowledged
from akter.runner.followed import Telling
from akter.runner.group import Group
from akter.store import follower
from akter.store.flight import Line
from akter.store.wire import Wire

if TYPE_CHECKING:
    from akter.runner.follow import Follows

logger = logging.getLogger("akter.relay")

LONG = 2.0
"""Seconds after which rows go back with what is left: the lease covers the longest turn, not a row of them."""


class Together:
    """Tells rows on one connection until `until`, a `time.monotonic()` value. `alone` collects those that must be told alone."""

    def __init__(self, family: Follows, wire: Wire, until: float) -> None:
        self._family, self._wire, self._until = family, wire, until
        self.alone: list[Telling] = []

    def tell(self, tellings: Sequence[Telling]) -> list[Telling]:
        """Tell their next events and settle them; returns those that must be told alone, from where they are."""
        end, waiting = time.monotonic() + LONG, self._look(tellings)
        while waiting:
            last = self._family.stopping or time.monotonic() > end
            ready = [one for one in self._distinct(waiting) if self._prepared(one, last)]
            if len(ready) < 2:
                self.alone += ready
                break
            waiting = self._round(ready)
        return self.alone

    def _look(self, tellings: Sequence[Telling]) -> list[Telling]:
        """Read what comes next, once for all that ask the same; returns those that have something."""
        asked = {_question(one): one.asked() for one in tellings}
        statement = self._family.statements.get(follower.past)
        answers = self._family.ask([Line(statement, values) for values in asked.values()], self._wire)
        found = dict(zip(asked, answers, strict=True))
        waiting: list[Telling] = []
        done: list[Telling] = []
        for one in tellings:
            one.saw(found[_question(one)])
            (self.alone if one.missing is not None else done if one.empty else waiting).append(one)
        if done:
            self._family.note(done, self._wire)
        return waiting

    def _distinct(self, waiting: Sequence[Telling]) -> list[Telling]:
        """One row of each follower and source: what stands for two names of a class moves one cursor."""
        rows: dict[Any, Telling] = {}
        for one in waiting:
            if rows.setdefault((one.source, one.follows.where, one.row.subscriber_id), one) is not one:
                self.alone.append(one)
        return list(rows.values())

    def _prepared(self, one: Telling, last: bool) -> bool:
        try:
            one.next(last=last)
        except Exception as problem:  # noqa: BLE001 - an event that cannot be read, or goes nowhere, holds back its own row
            self._family.wait(one.row, problem, one.attempts, self._wire)
            return False
        return True

    def _round(self, ready: Sequence[Telling]) -> list[Telling]:
        """One transaction; returns those that have more."""
        family, teller = self._family, self._family.teller
        for one in ready:
            teller.around.faults.at("before_delivery", one.call)
        deadline = min(teller.deadline(one.call, self._until) for one in ready)
        group: Group[Telling] = Group(teller.turn(self._wire, deadline, shared=True), teller.around, teller.pace, deadline)
        try:
            group.run(ready)
            known = [(one, problem) for one, problem in group.failed if isinstance(problem, Acknowledged)]
            told = [*group.done, *(one for one, problem in known if family.goes_on(one, problem))]
            if group.members:
                group.commit(family.notes(told))
            else:
                self._wire.roll_back()
                family.note(told, self._wire)
        except Crashed:
            raise
        except Exception as problem:  # noqa: BLE001 - the members are told alone, and each shows what is its own
            logger.info("relay.group_fell_apart", extra={"akter_members": len(ready), "akter_reason": str(problem)[:500]})
            self.alone += ready
            return []
        family.counts.add(delivered=len(told), groups=1)
        for one, failed in group.failed:
            if not isinstance(failed, Acknowledged):
                family.wait(one.row, failed, one.attempts, self._wire)
            elif one not in told:
                family.end(one)
        self.alone += group.alone
        for one in told:
            one.advance()
        return [one for one in told if not one.settles]


def _question(one: Telling) -> tuple[Any, ...]:
    return (one.source, one.done, one.follows.events)
