"""Deliver claimed messages: each is a turn whose command id is the message's id, alone or in one transaction with others."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sqlalchemy import Engine

from akter.definition import Definition
from akter.fault import Crashed
from akter.member import Member, Surroundings
from akter.named import Named
from akter.pace import Pace
from akter.runner.group import Group
from akter.runner.message import Delivery, Held
from akter.runner.settler import Settler, about
from akter.shared import impatient
from akter.store.claim import Claimed
from akter.store.flight import Line
from akter.store.wire import Wire
from akter.turn import Turn, ahead
from akter.watch import Hop

logger = logging.getLogger("akter.relay")


class Deliverer:
    """Runs messages as turns. `ride`: their rows end in their receivers' commits, instead of right after."""

    def __init__(self, engine: Engine, around: Surroundings, execution: float, ride: bool, held: Held, settler: Settler) -> None:
        self._engine, self._around, self._execution, self._ride = engine, around, execution, ride
        self.held, self.settler, self.counts = held, settler, settler.counts
        self._impatient = impatient(around)
        self.pace = Pace()

    def deliver(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """Deliver one message, or messages that share a transaction; returns those that must run again, alone."""
        faults, asked = self._around.faults, time.perf_counter()
        try:
            for delivery in batch:
                if not delivery.announced:
                    delivery.announced = True
                    faults.at("after_claim", delivery.call)
            for delivery in batch:
                faults.at("before_delivery", delivery.call)
            with self._wire(batch) as wire:
                self._around.telemetry.waited(asked, "relay")
                fresh = self._begin(batch)
                try:
                    if len(fresh) > 1:
                        return self._together(fresh, wire)
                    for delivery in fresh:
                        self._alone(delivery, wire)
                except Crashed:
                    wire.discard()
                    raise
        except Crashed:
            # As if the process were gone: the row waits for the end of its lease.
            pass
        except BaseException as problem:  # noqa: BLE001 - whatever it is, even an exit, the rows must wait and the thread go on
            kept = [delivery for delivery in batch if not delivery.given_back]
            self._wait([(delivery, problem) for delivery in kept])
        return []

    def _wire(self, batch: Sequence[Delivery]) -> Wire:
        begun, batch[0].ahead = batch[0].ahead, None
        call = batch[0].call
        taken = begun.take(call) if begun is not None and len(batch) == 1 else None
        return taken or Wire(self._engine, self._around.statements, call.id)

    def admission(self, who: Definition, message: Named, ticket: str) -> list[Line]:
        """The admission of a message's turn, to be sent with the message's claim, which has the same ticket."""
        return ahead(who, message, ticket, self._execution, self._around)

    def hop(self, row: Claimed) -> Hop:
        """Watch a row that was just claimed."""
        return self._around.telemetry.hop(row)

    def _wait(self, failed: Sequence[tuple[Delivery, BaseException]], wire: Wire | None = None) -> None:
        self.settler.wait([(delivery.row, problem) for delivery, problem in failed], wire)
        for delivery, problem in failed:
            delivery.call.hop.retried(problem)

    def _begin(self, batch: Sequence[Delivery]) -> list[Delivery]:
        fresh, stale = self.held.begin(batch)
        for delivery in stale:
            logger.warning("relay.claim_outlived_its_lease", extra=about(delivery.row))
            delivery.call.hop.released()
        self.counts.add(stale=len(stale))
        return fresh

    def _deadline(self, batch: Sequence[Delivery]) -> float:
        allowed = min(delivery.call.command.mark.timeout or self._execution for delivery in batch)
        return min(time.monotonic() + allowed, *(delivery.until for delivery in batch))

    def _alone(self, delivery: Delivery, wire: Wire) -> None:
        deadline = self._deadline([delivery])
        turn, member = Turn(wire, deadline, self._around), Member(delivery.call, self._around)
        if not self._turn(delivery, turn, member, wire, deadline):
            self._around.faults.at("before_outbox_delete", delivery.call)
            self.settler.end([delivery.row], turn.now_ms, wire)
        self.counts.add(delivered=1)
        delivery.call.hop.delivered()

    def _turn(self, delivery: Delivery, turn: Turn, member: Member, wire: Wire, deadline: float) -> bool:
        """Run a message's turn; returns whether its row went with the commit."""
        call, faults = delivery.call, self._around.faults
        (found,) = turn.admit([call])
        member.admit(found)
        if member.replayed is not None:
            wire.roll_back()
            return False
        faults.at("before_handler", call)
        started = time.monotonic()
        with delivery.handling(deadline):
            member.handle(turn.open_sql, turn.read)
        self.pace.saw(call.command, time.monotonic() - started, used_sql=member.used_sql)
        turn.check_time(call)
        faults.at("before_commit", call)
        turn.commit([member], self.settler.done([delivery.row], turn.now_ms) if self._ride else [])
        faults.at("after_commit", call)
        return self._ride

    def _together(self, batch: Sequence[Delivery], wire: Wire) -> list[Delivery]:
        deadline = self._deadline(batch)
        group: Group[Delivery] = Group(Turn(wire, deadline, self._impatient), self._around, self.pace, deadline)
        try:
            group.run(batch)
            self._commit(group, wire)
        except Crashed:
            raise
        except Exception as problem:  # noqa: BLE001 - the members run again alone, and each shows what is its own
            logger.info("relay.group_fell_apart", extra={"akter_members": len(batch), "akter_reason": str(problem)[:500]})
            return list(batch)
        self.counts.add(delivered=len(group.done), groups=1)
        for delivery in group.done:
            delivery.call.hop.delivered()
        self._wait(group.failed, wire)
        return group.alone

    def _commit(self, group: Group[Delivery], wire: Wire) -> None:
        rows = [delivery.row for delivery in group.done]
        riding = self._ride and bool(group.members)
        if group.members:
            group.commit(self.settler.done(rows, group.turn.now_ms) if riding else [])
        else:
            wire.roll_back()
        if rows and not riding:
            for delivery in group.done:
                self._around.faults.at("before_outbox_delete", delivery.call)
            self.settler.end(rows, group.turn.now_ms, wire)
