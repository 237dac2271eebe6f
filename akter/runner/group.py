"""Messages in one transaction: what each of them did to it stays its own.

A rejection keeps its receipt, a defect drops out, a member that wants SQL of its own leaves, and a slow one closes the group behind it.
Messages for one actor keep their order, each on the state that the one before left, and the last such state is written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from akter.call import Call
from akter.chain import Chains, RunsAlone, no_sql
from akter.fault import Crashed
from akter.identity import Address
from akter.member import Member, Surroundings
from akter.pace import SLOW, Pace
from akter.store.flight import Line
from akter.store.turn import Admitted
from akter.turn import Turn


class Called(Protocol):
    """What a group delivers: a call whose handler is watched."""

    call: Call

    def handling(self, limit: float) -> AbstractContextManager[None]:
        """The handler runs in this block, until `limit` at the latest."""
        ...


D = TypeVar("D", bound=Called)


class Group(Generic[D]):
    """One transaction's messages. `done`: delivered now or before; `alone`: to run again by themselves; `failed`: and why."""

    def __init__(self, turn: Turn, around: Surroundings, pace: Pace, deadline: float) -> None:
        self.turn, self._around, self._pace, self._deadline = turn, around, pace, deadline
        self.members: list[Member] = []
        self.done: list[D] = []
        self.alone: list[D] = []
        self.failed: list[tuple[D, BaseException]] = []
        self._closed = False
        self._left: set[Address] = set()
        self._chains = Chains()

    def run(self, deliveries: Sequence[D]) -> None:
        """Admit all and run their handlers; raises what makes the transaction of no use to any of them."""
        found = self.turn.admit([delivery.call for delivery in deliveries])
        for delivery, admitted in zip(deliveries, found, strict=True):
            try:
                self._join(delivery, admitted)
            except Crashed:
                raise
            except RunsAlone:
                self._pace.saw(delivery.call.command, 0.0, used_sql=True)
                self._leave(delivery)
            except BaseException as problem:  # noqa: BLE001 - whatever a handler raises is its own, and its neighbours stay
                self.failed.append((delivery, problem))

    def _join(self, delivery: D, admitted: Admitted) -> None:
        address, member = delivery.call.address, Member(delivery.call, self._around)
        member.admit(self._chains.found(address, admitted))
        if member.replayed is None:
            if self._closed or address in self._left:
                self._leave(delivery)
                return
            self._around.faults.at("before_handler", delivery.call)
            started = time.monotonic()
            try:
                with delivery.handling(self._deadline):
                    member.handle(no_sql, no_sql)
            finally:
                took = time.monotonic() - started
                self._closed = took > SLOW
            self._pace.saw(delivery.call.command, took, used_sql=False)
            self.members.append(member)
            self._chains.carry(member)
        self.done.append(delivery)

    def _leave(self, delivery: D) -> None:
        """Let a message run alone, and with it those that follow it at its actor."""
        self.alone.append(delivery)
        self._left.add(delivery.call.address)

    def commit(self, riding: Sequence[Line]) -> None:
        """Commit what the members leave, and with it the deletion of their rows, if it rides."""
        for member in self.members:
            self.turn.check_time(member.call)
            self._around.faults.at("before_commit", member.call)
        self.turn.commit(self.members, riding)
        for member in self.members:
            self._around.faults.at("after_commit", member.call)
