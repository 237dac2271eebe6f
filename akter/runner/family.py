"""What a work family is to the relay: a lane of seats, a statement that claims for it, and what happens to what it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from akter.named import Named
from akter.runner.ahead import Ahead
from akter.runner.lane import Lane, Work
from akter.store.flight import Line, Row
from akter.store.probing import EVER
from akter.store.wire import Wire


class Probe(NamedTuple):
    """What a claim may look at: buckets `first` to `last`, `limit` rows to take, `probe` to look at, `each` of them in one bucket.

    `number` is the pass's, in which a claim may be made for several ranges of buckets. What has been due for longer than `age_ms` is left.
    """

    first: int
    last: int
    limit: int
    probe: int
    each: int
    number: int = 0
    age_ms: int = EVER


class Taken(NamedTuple):
    """What a claim took. `found`: due rows that it saw; `deepest`: of them in the fullest bucket; `oldest_ms`: since when one was."""

    rows: Sequence[Any]
    found: int
    deepest: int
    oldest_ms: int


def leased(probe: Probe, lease: float, max_backoff: float) -> dict[str, int]:
    """The parameters of a claim that leases rows for so many seconds, and those that failed before for longer."""
    return {**probe._asdict(), **waits(lease, max_backoff)}


def waits(lease: float, max_backoff: float) -> dict[str, int]:
    """The parameters of a claim that say how long rows are leased."""
    return {"lease_ms": round(lease * 1000), "max_backoff_ms": round(max_backoff * 1000)}


def taken_as(kind: Any, answer: Sequence[Row], first: int = 0) -> Taken:
    """What a claim's answer says it took, each row made from its columns from `first` on; a claim of nothing is one row without a key."""
    return Taken([kind._make(row[first:] if first else row) for row in answer if row[3] is not None], *answer[0][:3])


class Family(Protocol):
    """One kind of work. The relay claims for all families in one flight, and each starts what was claimed for it."""

    lane: Lane
    durable: bool
    """Whether what a claim takes must be on disk before it is begun; when it takes nothing, the statement itself says that nobody waits."""

    def claim(self, probe: Probe) -> Sequence[Line]:
        """The statements that claim for it."""
        ...

    def taken(self, answers: Sequence[Sequence[Row]], probe: Probe, wire: Wire) -> Taken:
        """What those statements took; `wire`, which is in no transaction, is for what can only be claimed after looking."""
        ...

    def start(self, rows: Sequence[Any], sent: float, *, full: bool) -> None:
        """Work on claimed rows in the lane's threads. `sent`: when the claim was sent, a `time.monotonic()` value; leases count from it.

        `full`: the claim took as many as it asked for. Every row is settled or released, or its lease brings it back.
        """
        ...

    def stop(self) -> None:
        """Begin nothing more, and give back what was claimed but not begun."""
        ...

    def abandon(self) -> None:
        """Give back everything: the process is about to end."""
        ...

    def held(self) -> list[str]:
        """The ids of what this runner holds."""
        ...

    def close(self) -> None:
        """End the lane's threads when what they do is done."""
        ...


class Messages(Family, Protocol):
    """The family whose rows may be named by whoever wrote them."""

    def serves(self, target_type: str) -> bool:
        """Whether messages for this type are delivered here."""
        ...

    def start_here(self, rows: Sequence[Any], sent: float, ahead: Ahead | None) -> Work | None:
        """As `start`, for rows that were named. This thread has to call what is returned, once its pass is over: it works on some.

        `ahead` is the admission of the only row, or `None`.
        """
        ...

    def claim_named(self, rows: Sequence[Named], ticket: str | None) -> Line:
        """The statement that claims these messages and no others, and returns what it took; `ticket`: an admission comes right behind."""
        ...

    def admission(self, message: Named, ticket: str) -> Sequence[Line]:
        """What admits the turn of a message whose claim has this ticket, if that can be known before it is claimed."""
        ...

    def admitted(self, message: Named, wire: Wire) -> Ahead:
        """That admission, under way on a connection."""
        ...
