"""Messages in one transaction: what each of them did to it stays its own.

A rejection keeps its receipt, a defect drops out, a member that wants SQL of its own leaves, and a slow one closes the group behind it.
Messages for one actor keep their order, each on the state that the one before left, and the last such state is written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

from akter.fault import Crashed
from akter.identity import Address
from akter.member import Member, Surroundings
from akter.runner.grouping import SLOW, Pace
from akter.runner.message import Delivery
from akter.store.flight import Line
from akter.store.turn import Admitted
from akter.turn import Turn


class NeedsOwnTurn(BaseException):
    """A member asked for SQL of its own: it leaves and runs again alone. No handler's `except Exception` catches it."""


class Group:
    """One transaction's messages. `done`: delivered now or before; `alone`: to run again by themselves; `failed`: and why."""

    def __init__(self, turn: Turn, around: Surroundings, pace: Pace, deadline: float) -> None:
        self.turn, self._around, self._pace, self._deadline = turn, around, pace, deadline
        self.members: list[Member] = []
        self.done: list[Delivery] = []
        self.alone: list[Delivery] = []
        self.failed: list[tuple[Delivery, BaseException]] = []
        self._closed = False
        self._left: set[Address] = set()
        self._before: dict[Address, Admitted] = {}
        self._writers: dict[Address, Member] = {}

    def run(self, deliveries: Sequence[Delivery]) -> None:
        """Admit all and run their handlers; raises what makes the transaction of no use to any of them."""
        found = self.turn.admit([delivery.call for delivery in deliveries])
        for delivery, admitted in zip(deliveries, found, strict=True):
            try:
                self._join(delivery, admitted)
            except Crashed:
                raise
            except NeedsOwnTurn:
                self._pace.saw(delivery.call.command, 0.0, used_sql=True)
                self._leave(delivery)
            except BaseException as problem:  # noqa: BLE001 - whatever a handler raises is its own, and its neighbours stay
                self.failed.append((delivery, problem))

    def _join(self, delivery: Delivery, admitted: Admitted) -> None:
        address, member = delivery.call.address, Member(delivery.call, self._around)
        if (before := self._before.get(address)) is not None:
            admitted = admitted._replace(
                value=before.value,
                payload_version=before.payload_version,
                created=before.created,
                event_sequence=before.event_sequence,
            )
        member.admit(admitted)
        if member.replayed is None:
            if self._closed or address in self._left:
                self._leave(delivery)
                return
            self._around.faults.at("before_handler", delivery.call)
            started = time.monotonic()
            try:
                with delivery.handling(self._deadline):
                    member.handle(_no_sql, _no_sql)
            finally:
                took = time.monotonic() - started
                self._closed = took > SLOW
            self._pace.saw(delivery.call.command, took, used_sql=False)
            self.members.append(member)
            self._carry(address, member)
        self.done.append(delivery)

    def _leave(self, delivery: Delivery) -> None:
        """Let a message run alone, and with it those that follow it at its actor."""
        self.alone.append(delivery)
        self._left.add(delivery.call.address)

    def _carry(self, address: Address, member: Member) -> None:
        """What the next message of the same actor finds, and who of its members writes its state."""
        after, ended = member.found._replace(event_sequence=member.event_sequence), member.ended
        if member.mark() is not None:
            after = after._replace(created=True)
        if ended is not None and ended.state is not None:
            after = after._replace(value=ended.state, payload_version=len(member.call.definition.options.migrations))
            earlier = self._writers.get(address)
            if earlier is not None and earlier.ended is not None:
                earlier.ended = earlier.ended._replace(state=None)
            self._writers[address] = member
        self._before[address] = after

    def commit(self, riding: Sequence[Line]) -> None:
        """Commit what the members leave, and with it the deletion of their rows, if it rides."""
        for member in self.members:
            self.turn.check_time(member.call)
            self._around.faults.at("before_commit", member.call)
        self.turn.commit(self.members, riding)
        for member in self.members:
            self._around.faults.at("after_commit", member.call)


def _no_sql(member: Member, *_: object) -> NoReturn:
    raise NeedsOwnTurn(member.call.id)
