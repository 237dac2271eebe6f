"""Deliver claimed messages: each is a turn whose command id is the message's id, alone or in one transaction with others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from akter import caller as callers
from akter.call import Call
from akter.command import Command
from akter.definition import Definition
from akter.errors import (
    AkterError,
    CommandConflict,
    CommandExpired,
    InvalidCommandId,
    OutcomeUnknown,
    PayloadInvalid,
    Unauthorized,
    Unavailable,
    UnknownActor,
)
from akter.fault import Crashed
from akter.identity import address
from akter.member import Member, Surroundings
from akter.store import settle
from akter.store.claim import Claimed
from akter.store.flight import Line, Lost, StatementFailed
from akter.store.rows import parameters
from akter.store.settle import PARKED_MS
from akter.store.wire import Statements, Wire
from akter.turn import Turn

logger = logging.getLogger("akter.relay")

SLOW = 0.02
"""Seconds after which a handler is too slow to let others wait for its commit."""


@dataclass(slots=True)
class Delivery:
    """One claimed message on its way; `until` is the local end of its lease, a `time.monotonic()` value."""

    row: Claimed
    until: float
    call: Call
    begun: bool = False


class Counts:
    """What a runner did; read by its report and its metrics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.delivered = self.retried = self.parked = self.stale = self.groups = 0

    def add(self, **by: int) -> None:
        """Count."""
        with self._lock:
            for name, number in by.items():
                setattr(self, name, getattr(self, name) + number)


class Pace:
    """Which commands may share a transaction: those last seen to be quick and without SQL of their own."""

    def __init__(self) -> None:
        self._quick: dict[Command, bool] = {}

    def may_share(self, command: Command) -> bool:
        """Whether a command may be a member of a group."""
        return not command.mark.sql and self._quick.get(command, False)

    def saw(self, command: Command, seconds: float, *, used_sql: bool) -> None:
        """Remember how a command went."""
        self._quick[command] = seconds <= SLOW and not used_sql


class Deliverer:
    """Turns claimed rows into turns and settles them. Every settling write names its claim."""

    def __init__(
        self, engine: Any, around: Surroundings, actors: dict[str, Definition], execution: float, ride: bool, max_backoff: float
    ) -> None:
        self._engine, self._around, self._actors, self._ride = engine, around, actors, ride
        self._execution, self._max_backoff_ms = execution, int(max_backoff * 1000)
        self.pace, self.counts = Pace(), Counts()

    def prepare(self, row: Claimed, until: float) -> Delivery | None:
        """Read a claimed row; one that cannot be read backs off, and None is returned."""
        try:
            return Delivery(row, until, self._call(row))
        except (AkterError, msgspec.MsgspecError, ValueError) as problem:
            self._wait(row, problem)
            return None

    def _call(self, row: Claimed) -> Call:
        definition = self._actors.get(row.target_type)
        if definition is None:
            raise UnknownActor(f"{row.target_type} is not registered here")
        command = definition.names.get(row.command)
        if command is None or command.mark.kind != "command":
            raise UnknownActor(f"{row.target_type} has no command {row.command!r}: keep its old name as an alias, @command(aliases=...)")
        arguments = command.codec.decode(row.payload)
        return Call(
            definition=definition,
            command=command,
            address=address(definition.options.placement, row.tenant_id, definition.name, row.target_id),
            id=row.intent_id,
            minted=None,
            arguments=arguments,
            payload_hash=command.hash(arguments),
            caller=callers.from_json(row.caller),
            expires_at_ms=_expiry(row.intent_id),
            trusted=True,
            # A committed message is not refused for its age, nor asked for its rights again.
            retried=True,
        )

    def deliver(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Deliver one message, or a group of messages to different actors; returns those that must run alone."""
        fresh = [delivery for delivery in deliveries if self._still_held(delivery)]
        if len(fresh) == 1:
            self._deliver_alone(fresh[0])
            return []
        return self._deliver_group(fresh) if fresh else []

    def _still_held(self, delivery: Delivery) -> bool:
        if time.monotonic() < delivery.until:
            return True
        self.counts.add(stale=1)
        logger.warning("relay.claim_outlived_its_lease", extra=_said(delivery.row))
        return False

    def _deliver_alone(self, delivery: Delivery) -> None:
        call, row = delivery.call, delivery.row
        faults = self._around.faults
        try:
            faults.at("after_claim", call)
            faults.at("before_delivery", call)
            deadline = min(time.monotonic() + (call.command.mark.timeout or self._execution), delivery.until)
            delivery.begun = True
            with Wire(self._engine, self._around.statements, call.id) as wire:
                try:
                    settled = self._turn(delivery, wire, deadline)
                    if not settled:
                        faults.at("before_outbox_delete", call)
                        self._settle(settle.done, "done_", [_claim(row)], wire)
                except Crashed:
                    wire.discard()
                    raise
            self.counts.add(delivered=1)
        except Crashed:
            return
        except Exception as problem:  # noqa: BLE001 - whatever it is, the row must wait and others must go on
            self._wait(row, problem)

    def _turn(self, delivery: Delivery, wire: Wire, deadline: float) -> bool:
        """Run the message's turn; returns whether the row went with the commit."""
        call, turn = delivery.call, Turn(wire, deadline, self._around)
        member = Member(call, self._around)
        (found,) = turn.admit([call])
        member.admit(found)
        if member.replayed is not None:
            wire.roll_back()
            return False
        self._around.faults.at("before_handler", call)
        started = time.monotonic()
        member.handle(turn.open_sql)
        self.pace.saw(call.command, time.monotonic() - started, used_sql=member.capability.sql is not None)
        turn.check_time(call)
        self._around.faults.at("before_commit", call)
        turn.commit([member], [self._line(settle.done, "done_", [_claim(delivery.row)])] if self._ride else [])
        self._around.faults.at("after_commit", call)
        return self._ride

    def _deliver_group(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        left = list(deliveries)
        faults = self._around.faults
        try:
            for delivery in deliveries:
                faults.at("after_claim", delivery.call)
                faults.at("before_delivery", delivery.call)
                delivery.begun = True
            end = min(time.monotonic() + self._execution, *(delivery.until for delivery in deliveries))
            with Wire(self._engine, self._around.statements, deliveries[0].call.id) as wire:
                try:
                    left = self._group(deliveries, wire, end)
                except Crashed:
                    wire.discard()
                    raise
        except Crashed:
            return []
        except Exception as problem:  # noqa: BLE001 - the members run again alone, and each shows what is its own
            logger.info("relay.group_fell_apart", extra={"akter_members": len(deliveries), "akter_reason": str(problem)[:500]})
        return left

    def _group(self, deliveries: Sequence[Delivery], wire: Wire, deadline: float) -> list[Delivery]:
        turn, faults = Turn(wire, deadline, self._around), self._around.faults
        found = turn.admit([delivery.call for delivery in deliveries])
        done: list[Delivery] = []
        members: list[Member] = []
        alone: list[Delivery] = []
        waiting: list[tuple[Claimed, BaseException]] = []
        closed = False
        for delivery, admitted in zip(deliveries, found, strict=True):
            member = Member(delivery.call, self._around)
            try:
                member.admit(admitted)
                if member.replayed is None:
                    if closed:
                        alone.append(delivery)
                        continue
                    faults.at("before_handler", delivery.call)
                    closed = self._handle(member)
                    members.append(member)
                done.append(delivery)
            except Crashed:
                raise
            except NeedsOwnTurn:
                self.pace.saw(delivery.call.command, 0.0, used_sql=True)
                alone.append(delivery)
            except Exception as problem:  # noqa: BLE001 - a defect drops out of the group, its neighbours stay
                waiting.append((delivery.row, problem))
        if members:
            for member in members:
                turn.check_time(member.call)
                faults.at("before_commit", member.call)
            lines = [self._line(settle.done, "done_", [_claim(delivery.row) for delivery in done])] if self._ride else []
            turn.commit(members, lines)
            for member in members:
                faults.at("after_commit", member.call)
        else:
            wire.roll_back()
        if done and not (members and self._ride):
            for delivery in done:
                faults.at("before_outbox_delete", delivery.call)
            self._settle(settle.done, "done_", [_claim(delivery.row) for delivery in done], wire)
        self.counts.add(delivered=len(done), groups=1)
        for row, reason in waiting:
            self._wait(row, reason)
        return alone

    def _handle(self, member: Member) -> bool:
        """Run a member's handler; returns whether it was so slow that the group closes behind it."""
        started = time.monotonic()
        member.handle(_leave_group)
        took = time.monotonic() - started
        self.pace.saw(member.call.command, took, used_sql=False)
        return took > SLOW

    def release(self, deliveries: Sequence[Delivery]) -> int:
        """Give back rows whose delivery has not begun; returns how many."""
        waiting = [_claim(delivery.row) for delivery in deliveries if not delivery.begun]
        if waiting:
            with Wire(self._engine, self._around.statements) as wire:
                return self._settle(settle.release, "free_", waiting, wire)
        return 0

    def _wait(self, row: Claimed, problem: BaseException) -> None:
        """Let a row wait for its next try, or park it when there can be no success."""
        never = isinstance(problem, CommandConflict | CommandExpired | InvalidCommandId | Unauthorized)
        delay = PARKED_MS if never else min(1000 * 2 ** min(max(row.attempts - 1, 0), 31), self._max_backoff_ms)
        reason = f"{type(problem).__name__}: {problem}".replace("\0", "\\0").encode(errors="replace")[:2000].decode(errors="replace")
        known = isinstance(problem, Unavailable | OutcomeUnknown | UnknownActor | PayloadInvalid)
        logger.warning("relay.retry", extra={**_said(row), "akter_reason": reason if known else type(problem).__name__})
        self.counts.add(**{"parked" if never else "retried": 1})
        try:
            with Wire(self._engine, self._around.statements) as wire:
                moved = {**_claim(row), "delay_ms": delay, "last_error": ("parked: " if never else "") + reason}
                self._settle(settle.back_off, "wait_", [moved], wire)
        except AkterError:
            logger.warning("relay.settle_failed", extra=_said(row), exc_info=True)

    def _settle(self, statement: Any, prefix: str, rows: list[dict[str, Any]], wire: Wire) -> int:
        try:
            moved = int(wire.fly([self._line(statement, prefix, rows)], 30.0)[0].rows[0][0])
        except (StatementFailed, Lost) as problem:
            raise Unavailable(f"the outbox could not be written: {problem}") from problem
        if moved != len(rows):
            self.counts.add(stale=len(rows) - moved)
        return moved

    def _line(self, statement: Any, prefix: str, rows: list[dict[str, Any]]) -> Line:
        statements: Statements = self._around.statements
        return Line(statements.get(statement), parameters(prefix, rows, True))


class NeedsOwnTurn(BaseException):
    """A member of a group asked for SQL of its own: it leaves and runs again alone. No handler's `except Exception` catches it."""


def _leave_group(member: Member) -> NoReturn:
    raise NeedsOwnTurn(member.call.id)


def _claim(row: Claimed) -> dict[str, Any]:
    return {name: getattr(row, name) for name in settle.CLAIM}


def _expiry(intent_id: str) -> int | None:
    parts = intent_id.split(".")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else None


def _said(row: Claimed) -> dict[str, Any]:
    return {
        "akter_actor": f"{row.target_type}/{row.target_id}",
        "akter_tenant": row.tenant_id,
        "akter_command": row.command,
        "akter_command_id": row.intent_id,
        "akter_attempts": row.attempts,
    }
