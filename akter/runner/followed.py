"""A claimed row of a follower at work: what its subscriber is told next, and how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from akter.call import Call
from akter.definition import Definition
from akter.following import Following, Kind
from akter.identity import SINGLETON_ID, Address
from akter.runner.single import Working
from akter.runner.telling import Teller
from akter.store import follower
from akter.store.flight import Row
from akter.store.follower import Follower, Past
from akter.subscription import Gap

BATCH = 16
"""Events that a claimed row is told at most before others have their turn."""

_SOURCE = ("bucket", "routing_key", "tenant_id", "source_type", "source_id")


class Telling(Working[Follower]):
    """One claimed row.

    `done`: everything up to there is settled for this subscriber; `attempts`: of what it is at; `gaps`: those that were only counted.
    While something is told, `call` is how, it ends at `position`, and everything up to `upto` is done when it was told; `settles`: then
    the row is given up, and is due again when there is `more`.
    """

    call: Call

    def __init__(self, row: Follower, definition: Definition, teller: Teller) -> None:
        super().__init__(row)
        self._definition, self._teller = definition, teller
        self.follows = definition.subscriptions[row.subscription]
        self.source = source_of(row)
        self.done, self.attempts, self.gaps = row.delivered, row.attempts, 0
        self.position, self.upto, self.settles, self.more = row.delivered, row.delivered, False, False
        self._left: deque[Past] = deque()
        self._head, self._oldest, self._full = 0, 0, False

    def asked(self) -> dict[str, Any]:
        """The parameters of the statement that reads what comes next."""
        source = {name: getattr(self.row, name) for name in _SOURCE}
        return {**source, "after": self.done, "names": list(self.follows.events), "limit": BATCH}

    def saw(self, rows: Sequence[Row]) -> None:
        """Take in what that statement answered."""
        past = [Past(*row) for row in rows if row[2] is not None]
        self._left, self._full = deque(past), len(past) == BATCH
        self._head = rows[0][0] if rows else 0
        # Of a history always the first events go, so what is left of it has no hole.
        self._oldest = rows[0][1] if rows and rows[0][1] is not None else self._head + 1

    @property
    def missing(self) -> int | None:
        """The last event of those that are gone before the next one; None when none is."""
        pinned = self.row.gap_through
        through = pinned if pinned is not None and pinned > self.done else self._oldest - 1
        return through if through > self.done else None

    @property
    def empty(self) -> bool:
        """Whether nothing is left to tell; then `note` settles the row, which is due again when the page that was read was full."""
        self._pass_over()
        if self._left:
            return False
        self.upto, self.settles, self.more = (self.done if self._full else max(self._head, self.done)), True, self._full
        return True

    def next(self, *, last: bool) -> None:
        """Make ready the next event, which is the last one before the row goes back when `last` says so.

        Raises whatever is wrong with the event, or with where it goes.
        """
        self._pass_over()
        one, more = self._left[0], len(self._left) > 1
        of = self.of("event", one.sequence, one.emitted_at_ms)
        event = self.follows.decode(one.event, one.value, one.payload_version)
        id = self.row.subscriber_id if self.follows.dynamic else self.follows.route(event, self.source.actor_id)
        self.call = self._teller.call(self._definition, self.follows, id, of, event, one.command_id)
        self.position, self.settles, self.more = one.sequence, last or not more, self._full or more
        self.upto = one.sequence if self.more else max(self._head, one.sequence)

    def _pass_over(self) -> None:
        while self._left and self._left[0].sequence <= self.done:
            self._left.popleft()

    def gap(self, through: int, at_ms: int) -> None:
        """Make ready the gap that ends with this event and was found then."""
        of = self.of("gap", through, at_ms)
        told = Gap(source_type=self.source.actor_type, source=self.source.actor_id, after=str(self.done), resume_after=str(through))
        id = self.row.subscriber_id if self.follows.dynamic else SINGLETON_ID
        self.call = self._teller.call(self._definition, self.follows, id, of, told)
        self.position = self.upto = through
        self.settles = self.more = False

    def count(self, through: int) -> None:
        """Pass over a gap that the subscriber does not ask to be told of."""
        self.gaps += 1
        self.done = through

    def advance(self) -> None:
        """What was made ready is told, and noted."""
        self.done, self.attempts, self.gaps = self.position, 1, 0

    def of(self, kind: Kind, position: int, at_ms: int) -> Following:
        """What a delivery is of."""
        return Following(
            subscription=self.row.subscription,
            source=self.source,
            epoch=self.row.epoch,
            kind=kind,
            position=position,
            issued_at_ms=at_ms,
            dynamic=self.follows.dynamic,
        )

    def note(self) -> tuple[Any, dict[str, Any]]:
        """What to write when what was made ready is done: a statement, and the row's part in it."""
        mine = {**claim_of(self.row), "delivered": self.upto, "gaps": self.gaps}
        return (follower.settle, {**mine, "more": self.more}) if self.settles else (follower.progress, mine)


def claim_of(row: Follower) -> dict[str, Any]:
    """What names a claim in every statement about it."""
    return {name: getattr(row, name) for name in follower.CLAIM}


def source_of(row: Follower) -> Address:
    """The actor that a row follows."""
    return Address(*(getattr(row, name) for name in _SOURCE))
