"""Direct calls in one transaction: the callers share its two flights, and each runs its handler in its own thread.

The first caller, who has the seat, admits them all. Then each runs its handler, those of one actor one after another, and whoever is
the last to be done writes and commits for all. Nobody waits longer than `PATIENCE` for a slow one: it is withdrawn, and runs again
by itself. A rejection keeps its receipt; a defect, or whatever else a handler raises, is its own caller's alone. The commit carries the
admission of the group that waits by then (`akter.shared`).

Each caller wakes the next one, as the first thing it does: all woken at once would wait a second time, for the interpreter's lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

from sqlalchemy import Engine

from akter.capability import left
from akter.chain import Chains, RunsAlone, no_sql
from akter.errors import OutcomeUnknown, Unavailable
from akter.fault import Crashed
from akter.identity import Address
from akter.member import Member, Surroundings
from akter.pace import Pace
from akter.seats import Caller, Seats
from akter.shared import Shared
from akter.store.turn import Admitted

logger = logging.getLogger("akter.turn")

PATIENCE = 0.1
"""Seconds after the admission when the group commits without those who are not done."""

_LOOK = 1.0
"""Seconds after which a leader looks by itself whether the group before its own is over."""

_GRACE = 15.0
"""Seconds beyond the time of its transaction after which a member no longer waits to hear how it ended."""


Answer: TypeAlias = "Callable[[Caller], int | BaseException]"
"""What a caller is told when it is over: the database's time of the commit, or what is raised in its thread."""


class Group:
    """One transaction of several callers. `promised`: it begins when another group lets it take over."""

    def __init__(
        self, callers: Sequence[Caller], engine: Engine, around: Surroundings, pace: Pace, seats: Seats, *, promised: bool = False
    ) -> None:
        self._callers, self._around, self._pace = callers, around, pace
        self._deadline = min(min(time.monotonic() + caller.execution, caller.end) for caller in callers)
        self._close_at = self._deadline
        self.shared = Shared([caller.call for caller in callers], self._deadline, engine, around, seats)
        self._lock, self._chains = threading.Lock(), Chains()
        self._members: list[Member] = []
        self._queues: dict[Address, deque[Caller]] = {}
        for caller in callers:
            self._queues.setdefault(caller.call.address, deque()).append(caller)
        # Guarded by the lock: how many are not done, whether they may begin, and whether it is too late to be done.
        self._open, self._begun, self._closed = len(callers), False, False
        # Whether somebody has it in hand and will see that it is over: the group before it, or the thread that admits it.
        self._in_hand, self._ended = promised, False

    def run(self, caller: Caller) -> Any:
        """Run one caller's command in its thread; raises `RunsAlone` when it has to run by itself, and what a turn of its own would."""
        try:
            if caller is self._callers[0]:
                self._admit()
            self._attend(caller)
        except BaseException as problem:
            if caller.verdict is None:
                self.fall_apart(problem)
            raise
        finally:
            with self._lock:
                caller.pass_on()
                # A caller and its group would keep each other alive until the next collection of garbage.
                caller.group = None
        member = caller.member
        if member is None or isinstance(caller.verdict, BaseException):
            raise cast(BaseException, caller.verdict)
        if member.replayed is None:
            self._around.faults.at("after_commit", caller.call)
            caller.call.check_expiry(cast(int, caller.verdict))
        return member.answer()

    def fall_apart(self, problem: BaseException) -> None:
        """Commit nothing, unless it is too late for that: somebody was interrupted, or is to look as if its process had died."""
        with self._lock:
            if self._closed:
                return
            self._closed, mine = True, not self._in_hand
        self._say(problem)
        if mine:
            self._end(None, isinstance(problem, Crashed))

    def _admit(self) -> None:
        """Lock and read for all, and let the first of each actor begin."""
        if not self._take_in_hand():
            return
        try:
            found = self.shared.admit()
        except BaseException as problem:
            self._closed = True
            self._say(problem)
            self._end(None)
            if not isinstance(problem, Exception):
                raise
            return
        for caller, read in zip(self._callers, found, strict=True):
            caller.read = read
        with self._lock:
            self._close_at = min(self._deadline, time.monotonic() + PATIENCE)
            self._begun, self._in_hand = not self._closed, False
            _wake([queue[0] for queue in self._queues.values()])
            # One of those who cannot begin yet keeps an eye on the time, should all that can be slow.
            if (watching := next((queue[1] for queue in self._queues.values() if len(queue) > 1), None)) is not None:
                watching.ring()
        if not self._begun:
            self._end(None)

    def _take_in_hand(self) -> bool:
        """Wait until the group before this one is over; False when there is nothing left to admit."""
        while True:
            with self._lock:
                if self._closed:
                    return False
                if not self._in_hand:
                    self._in_hand = True
                    return True
            if time.monotonic() > self._deadline + _GRACE:
                # Whoever was to let it begin was interrupted on the way.
                self._closed = True
                self.shared.inherit(None)
                self._end(None)
                return False
            self._callers[0].bell.acquire(timeout=_LOOK)

    def take_over(self, before: Shared | None) -> None:
        """Begin, now that the group before this one is over; what it had is this one's."""
        self.shared.inherit(before)
        with self._lock:
            self._in_hand = False
            if not (late := self._closed):
                self._callers[0].ring()
        if late:
            self._end(None)

    def _attend(self, caller: Caller) -> None:
        """Run the handler when it is its turn, and wait for the commit, or make it."""
        while caller.verdict is None:
            if self._may_begin(caller):
                self._handle(caller)
            else:
                self._wait(caller)

    def _wait(self, caller: Caller) -> None:
        """Wait to be woken. Whoever is to do that may be late itself, so a caller looks by itself now and then."""
        if caller.bell.acquire(timeout=left(self._close_at)):
            return
        if self._close():
            self._finish()
        elif not caller.bell.acquire(timeout=PATIENCE) and caller.verdict is None and time.monotonic() > self._deadline + _GRACE:
            if not self._begun:
                raise Unavailable("the group that it waits for never began", command_id=caller.call.id)
            raise OutcomeUnknown(command_id=caller.call.id)

    def _may_begin(self, caller: Caller) -> bool:
        with self._lock:
            queue = self._queues[caller.call.address]
            if caller.begun or self._closed or not self._begun or queue[0] is not caller:
                return False
            caller.begun = True
            caller.pass_on()
            return True

    def _handle(self, caller: Caller) -> None:
        call, faults, member = caller.call, self._around.faults, Member(caller.call, self._around)
        try:
            faults.at("queued", call)
            member.admit(self._chains.found(call.address, cast(Admitted, caller.read)))
            if member.replayed is None:
                faults.at("before_handler", call)
                started = time.monotonic()
                try:
                    member.handle(no_sql, no_sql)
                finally:
                    self._pace.saw(call.command, time.monotonic() - started, used_sql=False)
                faults.at("before_commit", call)
        except Crashed:
            raise
        except RunsAlone:
            self._pace.saw(call.command, 0.0, used_sql=True)
            self._hand_over(caller, None, followers=False)
        except BaseException:
            self._hand_over(caller, None, followers=True)
            raise
        else:
            self._hand_over(caller, member, followers=True)

    def _hand_over(self, caller: Caller, member: Member | None, *, followers: bool) -> None:
        """A caller is done, with what its member leaves; `followers`: those behind it at its actor may go on in this transaction."""
        with self._lock:
            if self._closed:
                # Too late: the others did not wait.
                caller.verdict = RunsAlone(caller.call.id)
                return
            self._keep(caller, member)
            queue = self._queues[caller.call.address]
            queue.popleft()
            self._open -= 1
            if not followers:
                self._open -= len(queue)
                self._send_away(queue)
            elif queue:
                queue[0].ring()
            last = self._closed = self._open == 0
        if last:
            self._finish()

    def _keep(self, caller: Caller, member: Member | None) -> None:
        caller.member = member
        if member is None:
            caller.verdict = RunsAlone(caller.call.id)
        elif member.replayed is not None:
            caller.verdict = 0
        else:
            self._members.append(member)
            self._chains.carry(member)

    def _close(self) -> bool:
        """Commit without those who are not done; whether it is this thread that has to."""
        with self._lock:
            if self._closed or not self._begun:
                return False
            self._closed = True
            for queue in self._queues.values():
                self._send_away([caller for caller in queue if not caller.begun])
        return True

    def _send_away(self, callers: Iterable[Caller]) -> None:
        for caller in callers:
            caller.verdict = RunsAlone(caller.call.id)
            caller.call.watch.failed(caller.verdict)
            caller.ring()

    def _finish(self) -> None:
        """Write, commit, and tell everybody."""
        answer: Answer | None = None
        try:
            if self._members:
                answer = self._commit()
        except Exception as problem:  # noqa: BLE001 - the members run again alone, and each shows what is its own
            self._say(problem)
        finally:
            self._end(answer)

    def _commit(self) -> Answer:
        unknown: Answer = lambda caller: OutcomeUnknown(command_id=caller.call.id)  # noqa: E731
        try:
            now_ms = self.shared.commit(self._members)
        except OutcomeUnknown:
            return unknown
        except Exception:
            raise
        except BaseException:
            self._end(unknown)
            raise
        return lambda caller: now_ms

    def _end(self, answer: Answer | None, crashed: bool = False) -> None:
        """Give connection and seat back, and tell those who handed over how it ended; without an answer, that they run alone."""
        if self._ended:
            return
        self._ended = True
        try:
            self.shared.end(crashed)
        finally:
            with self._lock:
                told: list[Caller] = []
                for caller in self._callers:
                    if caller.verdict is None:
                        if answer is not None and caller.member is not None:
                            caller.verdict = answer(caller)
                            told.append(caller)
                        else:
                            self._send_away([caller])
                _wake(told)

    def _say(self, problem: BaseException) -> None:
        reason = {"akter_members": len(self._callers), "akter_reason": str(problem)[:500]}
        logger.info("turn.group_fell_apart", extra=reason)


def _wake(callers: Sequence[Caller]) -> None:
    """Wake the first, which wakes the next; the lock of their group is held."""
    for caller, after in pairwise(callers):
        caller.next = after
    if callers:
        callers[0].ring()
