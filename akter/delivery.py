"""Bring a command to its turn: a seat, a connection, and retries under the same id until its time is over."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from sqlalchemy import Engine
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from akter.call import Call
from akter.capability import left
from akter.errors import OutcomeUnknown, Unavailable
from akter.fault import Crashed
from akter.identity import shown_id
from akter.limits import Limits
from akter.member import Surroundings
from akter.store.wire import Wire
from akter.turn import Turn

logger = logging.getLogger("akter.turn")

_FIRST_WAIT = 0.05


class Delivery:
    """Runs commands in the threads that call, no more at once than there are seats."""

    def __init__(self, engine: Engine, around: Surroundings, limits: Limits, seats: int) -> None:
        self._engine, self._around, self._limits = engine, around, limits
        self._seats = threading.BoundedSemaphore(seats)

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
                        return self._once(call, execution, end)
                    except OutcomeUnknown:
                        unknown = True
                        raise
        except Unavailable as problem:
            if unknown and not isinstance(problem, OutcomeUnknown):
                # An earlier try may have committed, and no later one could find out.
                raise OutcomeUnknown(command_id=call.id) from problem
            raise
        raise first

    def _once(self, call: Call, execution: float, end: float) -> Any:
        faults = self._around.faults
        faults.at("before_delivery", call)
        asked = time.perf_counter()
        if not self._seats.acquire(timeout=left(end)):
            raise Unavailable("every turn seat of this process is taken: make the engine's pool larger", command_id=call.id)
        try:
            faults.at("queued", call)
            with Wire(self._engine, self._around.statements, call.id) as wire:
                self._around.telemetry.waited(asked, "turn")
                try:
                    return Turn(wire, min(time.monotonic() + execution, end), self._around).run(call)
                except Crashed:
                    wire.discard()
                    raise
        finally:
            self._seats.release()
