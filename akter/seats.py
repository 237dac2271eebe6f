"""Turn seats: who may run now, and who shares the transaction of the caller that gets the next seat."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from akter.call import Call
from akter.capability import left
from akter.errors import Unavailable
from akter.identity import Address
from akter.store.turn import Admitted

if TYPE_CHECKING:
    from akter.group import Group
    from akter.member import Member

TOGETHER = 2
"""Transactions of quick commands at once: while one waits for the disk, the other's handlers run. More would only make groups smaller."""

FEW, MANY = 4, 12
"""The second one begins while fewer commands run than a few, or when many wait: a larger group costs each of its members less."""

PATIENCE = 0.02
"""Seconds that a quick command waits for such a transaction to end, before it takes a free seat all the same."""

_LOOK = 1.0
"""Seconds after which a caller that waits looks by itself: whoever was to wake it may have been interrupted, or may come late."""

MOST = 32
"""Commands in one transaction."""


class Caller:
    """A call and the thread that waits for its turn.

    `bell` wakes the thread, and `next` is who is woken after it. `group` is whose transaction it shares, `read` what was admitted of it
    there, and `verdict` how that ended: the commit's time, or what it is answered with.
    """

    __slots__ = ("begun", "bell", "call", "end", "execution", "group", "member", "next", "read", "seated", "shares", "verdict")

    def __init__(self, call: Call, execution: float, end: float, *, shares: bool) -> None:
        self.call, self.execution, self.end, self.shares = call, execution, end, shares
        self.bell = threading.Lock()
        self.bell.acquire()
        self.seated = self.begun = False
        self.group: Group | None = None
        self.next: Caller | None = None
        self.member: Member | None = None
        self.read: Admitted | None = None
        self.verdict: int | BaseException | None = None

    def pass_on(self) -> None:
        """Wake the next one, with the lock held that `ring` wants."""
        after, self.next = self.next, None
        if after is not None:
            after.ring()

    def ring(self) -> None:
        """Wake the thread; whoever rings holds the lock of what the thread waits for."""
        if self.bell.locked():
            self.bell.release()


class Seats:
    """The turn seats of one Akter, never more than its engine's pool has connections.

    Quick commands are turned into groups as soon as some transactions of theirs run: `gather` makes one of several callers.
    """

    def __init__(self, number: int, gather: Callable[[list[Caller], bool], Group]) -> None:
        self._free, self._gather = number, gather
        # Seats of quick commands, and the commands in them.
        self._sharing, self._sharers = 0, 0
        self._waiting: deque[Caller] = deque()
        # A signal's handler may call as well, while the main thread holds it.
        self._lock = threading.RLock()

    def take(self, caller: Caller) -> None:
        """Wait for a seat, or for a place in a group; raises `Unavailable` when there is none until the call's time is over."""
        with self._lock:
            if self._may_start(caller):
                self._start(caller)
                return
            self._waiting.append(caller)
        try:
            while True:
                rung = caller.bell.acquire(timeout=self._patience(caller))
                with self._lock:
                    if caller.seated or caller.group is not None or (not rung and self._overtake(caller)):
                        return
        except BaseException as problem:
            self._give_up(caller, problem)
            raise

    def successor(self, busy: Collection[Address], sharers: int) -> Group | None:
        """A group of those that wait, which takes over the seat of one with so many `sharers`.

        There is none where another kind of command waits for the seat, or where one of the `busy` actors would be in it.
        """
        with self._lock:
            if not self._waiting or not self._waiting[0].shares:
                return None
            party = self._party(self._waiting[0])
            if len(party) < 2 or any(one.call.address in busy for one in party):
                return None
            group = self._gather(party, True)
            self._sharers += len(party) - sharers
            self._place(party, group)
            return group

    def leave(self, sharers: int) -> None:
        """Give a seat back, to whoever waits for it; `sharers`: how many quick commands were in it."""
        with self._lock:
            self._free += 1
            self._sharing -= sharers > 0
            self._sharers -= sharers
            while (first := next(filter(self._may_start, self._waiting), None)) is not None:
                self._start(first)
                first.ring()
            if self._waiting and self._free:
                # It may take a seat now, if those it waits for take long.
                self._waiting[0].ring()

    def _may_start(self, caller: Caller) -> bool:
        if not self._free:
            return False
        if not caller.shares or not self._sharing:
            return True
        return self._sharing < TOGETHER and (self._sharers < FEW or len(self._waiting) >= MANY)

    def _start(self, caller: Caller) -> None:
        """Give a caller a seat, and those a place beside it that wait and may share."""
        party = self._party(caller)
        group = self._gather(party, False) if len(party) > 1 else None
        self._free -= 1
        self._sharing += caller.shares
        self._sharers += len(party) if caller.shares else 0
        caller.seated = True
        self._place(party, group)

    def _place(self, party: Sequence[Caller], group: Group | None) -> None:
        for one in party:
            one.group = group
            if one in self._waiting:
                self._waiting.remove(one)

    def _party(self, leader: Caller) -> list[Caller]:
        """The leader, and in their order those that wait. A second use of one id, and what follows it at its actor, waits on."""
        party, ids, apart = [leader], {(leader.call.address, leader.call.id)}, set[Address]()
        for one in self._waiting if leader.shares else ():
            if one is leader or not one.shares or one.call.address in apart:
                continue
            if (one.call.address, one.call.id) in ids:
                apart.add(one.call.address)
            elif len(party) < MOST:
                ids.add((one.call.address, one.call.id))
                party.append(one)
        return party

    def _patience(self, caller: Caller) -> float:
        return min(PATIENCE if caller.shares and self._free else _LOOK, left(caller.end))

    def _overtake(self, caller: Caller) -> bool:
        """Take a free seat although others of its kind run: they take longer than they should."""
        if time.monotonic() >= caller.end:
            raise Unavailable("every turn seat of this process is taken: make the engine's pool larger", command_id=caller.call.id)
        if self._free:
            self._start(caller)
        return caller.seated

    def _give_up(self, caller: Caller, problem: BaseException) -> None:
        """Whatever ended the wait, a seat that was given meanwhile goes to the next."""
        with self._lock:
            if caller in self._waiting:
                self._waiting.remove(caller)
                return
        if caller.group is not None:
            caller.group.fall_apart(problem)
        elif caller.seated:
            self.leave(caller.shares)
