"""Bring a command to its turn: a seat, a connection, and retries under the same id until its time is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from akter.call import Call
from akter.chain import RunsAlone
from akter.errors import OutcomeUnknown, Unavailable
from akter.fault import Crashed
from akter.group import Group
from akter.identity import shown_id
from akter.limits import Limits
from akter.member import Surroundings
from akter.pace import Pace
from akter.seats import Caller, Seats
from akter.store.wire import Wire
from akter.turn import Turn

logger = logging.getLogger("akter.turn")

_FIRST_WAIT = 0.05


class Delivery:
    """Runs commands in the threads that call, no more at once than there are seats."""

    def __init__(self, engine: Engine, around: Surroundings, limits: Limits, seats: int) -> None:
        self._engine, self._around, self._limits = engine, around, limits
        self._seats, self._pace = Seats(seats, self._gather), Pace()

    def run(self, call: Call) -> Any:
        """Run a command once and answer as it ended; raises `Unavailable` when it could not run until its time was over."""
        execution = call.command.mark.timeout or self._limits.execution
        seconds = self._limits.longest(execution)
        end = time.monotonic() + seconds
        try:
            return self._once(call, execution, end)
        except Unavailable as problem:
            call.retried, call.grace_ms = True, int(seconds * 1000)
            return self._again(call, execution, end, problem)

    def _again(self, call: Call, execution: float, end: float, first: Unavailable) -> Any:
        unknown = isinstance(first, OutcomeUnknown)
        logger.info(
            "turn.retry", extra={"akter_actor": str(call.address), "akter_command_id": shown_id(call.id), "akter_reason": str(first)}
        )

        def is_over(state: RetryCallState) -> bool:
            return time.monotonic() + state.upcoming_sleep >= end

        if time.monotonic() + _FIRST_WAIT >= end:
            raise first
        time.sleep(_FIRST_WAIT)
        wait = wait_exponential(multiplier=_FIRST_WAIT, max=2.0) + wait_random(0, _FIRST_WAIT)
        try:
            for attempt in Retrying(retry=retry_if_exception_type(Unavailable), wait=wait, stop=is_over, reraise=True):
                with attempt:
                    try:
                        return self._once(call, execution, end, alone=True)
                    except OutcomeUnknown:
                        unknown = True
                        raise
        except Unavailable as problem:
            if unknown and not isinstance(problem, OutcomeUnknown):
                # An earlier try may have committed, and no later one could find out.
                raise OutcomeUnknown(command_id=call.id) from problem
            raise
        raise first

    def _once(self, call: Call, execution: float, end: float, *, alone: bool = False) -> Any:
        self._around.faults.at("before_delivery", call)
        # The handlers of signals run in the main thread, whatever it is at: a raised or a slow one would be a whole group's.
        alone = alone or threading.get_ident() == threading.main_thread().ident
        caller = Caller(call, execution, end, shares=not alone and self._pace.may_share(call.command))
        if caller.shares:
            call.watch = self._around.telemetry.turn(call)
        asked = time.perf_counter()
        self._seats.take(caller)
        if caller.group is None:
            return self._alone(caller, asked)
        try:
            return caller.group.run(caller)
        except RunsAlone:
            pass
        return self._once(call, execution, end, alone=True)

    def _alone(self, caller: Caller, asked: float) -> Any:
        call = caller.call
        try:
            self._around.faults.at("queued", call)
            with Wire(self._engine, self._around.statements, call.id) as wire:
                self._around.telemetry.waited(asked, "turn")
                try:
                    return Turn(wire, min(time.monotonic() + caller.execution, caller.end), self._around).run(call, self._pace)
                except Crashed:
                    wire.discard()
                    raise
        finally:
            self._seats.leave(caller.shares)

    def _gather(self, callers: Sequence[Caller], promised: bool) -> Group:
        return Group(callers, self._engine, self._around, self._pace, self._seats, promised=promised)
