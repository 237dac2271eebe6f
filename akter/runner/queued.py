"""The families whose rows are in the outbox and are no messages: feeds and controls, worked on one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from akter.identity import Address
from akter.runner.family import Probe, Taken, leased, taken_as
from akter.runner.lane import Lane
from akter.runner.settings import Settings
from akter.runner.settler import Settler, about
from akter.runner.single import Single
from akter.store.claim import Claimed
from akter.store.flight import Line, Row
from akter.store.wire import Statements, Wire


class Queued(Single[Claimed]):
    """Rows of one kind, claimed for the types in `served` by the statement `claim`."""

    def __init__(
        self,
        statements: Statements,
        claim: Any,
        served: Iterable[str],
        settler: Settler,
        lane: Lane,
        settings: Settings,
        lease: float,
    ) -> None:
        super().__init__(lane, lease)
        self._statements, self._claim, self._served = statements, claim, list(served)
        self._settler, self._settings = settler, settings

    def claim(self, probe: Probe) -> Sequence[Line]:
        """The statement that claims for it."""
        values = leased(probe, self._lease, self._settings.max_backoff)
        return [Line(self._statements.get(self._claim), {**values, "served": self._served})]

    def taken(self, answers: Sequence[Sequence[Row]], probe: Probe, wire: Wire) -> Taken:
        """What the statement took."""
        (answer,) = answers
        return taken_as(Claimed, answer)

    def _wait(self, row: Claimed, problem: BaseException) -> None:
        self._settler.wait([(row, problem)])

    def _explain(self, rows: Sequence[Claimed], why: str) -> bool:
        return self._settler.explain(rows, why)

    def _release(self, rows: Sequence[Claimed], begun: bool) -> None:
        self._settler.counts.add(released=self._settler.release(rows, begun=begun))

    def _name(self, row: Claimed) -> str:
        return row.intent_id

    def _about(self, row: Claimed) -> dict[str, Any]:
        return about(row)


class Site:
    """A claimed row as the fault points see it."""

    def __init__(self, row: Claimed) -> None:
        self.id = row.intent_id
        self.address = Address(row.bucket, row.routing_key, row.tenant_id, row.actor_type, row.actor_id)
