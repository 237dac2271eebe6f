"""Claimed messages on their way, and which of them this runner may still begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from akter import caller as callers
from akter.call import Call
from akter.caller import System
from akter.definition import Definition
from akter.errors import UnknownActor
from akter.identity import Address, address, child_id
from akter.runner.ahead import Ahead
from akter.runner.handling import Handling
from akter.store.claim import Claimed


@dataclass(slots=True, eq=False)
class Delivery(Handling):
    """One claimed message; `until` is the local end of its lease, a `time.monotonic()` value; `ahead`: its turn is admitted already."""

    row: Claimed
    until: float
    call: Call
    ahead: Ahead | None = None
    announced: bool = False
    begun: bool = False
    given_back: bool = False


def read(row: Claimed, actors: Mapping[str, Definition]) -> Call:
    """The call that a row asks for; raises whatever is wrong with the row, or with this process's idea of it."""
    definition = actors.get(row.target_type)
    if definition is None:
        raise UnknownActor(f"{row.target_type} is not registered here")
    # A schedule runs what the code says now, whatever it said when the row was written.
    entry = definition.schedules.get(row.timer_key) if row.timer_key is not None else None
    command = definition.names.get(row.command) if entry is None else entry.command
    if command is None or command.mark.kind != "command":
        raise UnknownActor(f"{row.target_type} has no command {row.command!r}: keep its old name as an alias, @command(aliases=...)")
    arguments = command.load(row.payload, row.payload_version) if entry is None else entry.arguments(row.scheduled_at_ms)
    where = address(definition.options.placement, row.tenant_id, definition.name, row.target_id)
    caller = callers.from_json(row.caller)
    return Call(
        definition=definition,
        command=command,
        address=where,
        id=row.intent_id,
        minted=None,
        arguments=arguments,
        payload_hash=command.hash(arguments),
        caller=caller,
        expires_at_ms=_expiry(row.intent_id),
        trusted=True,
        converted=row.payload_version != command.version,
        proved=_minted(row, caller, where),
        # A committed message is not refused for its age, nor asked for its rights again.
        retried=True,
        tick=entry is not None,
    )


def _minted(row: Claimed, caller: System, child: Address) -> bool:
    """Whether the actor that wrote this row minted its target."""
    mint, parent = caller.mint, caller.ref
    if mint is None or parent is None or (parent.actor_type, parent.actor_id) != (row.actor_type, row.actor_id):
        return False
    return child.actor_id == child_id(parent._replace(tenant_id=row.tenant_id), mint.command_id, mint.ordinal, row.target_type)


def _expiry(intent_id: str) -> int | None:
    parts = intent_id.split(".")
    return int(parts[2]) if len(parts) == 4 and parts[2].isdigit() else None


class Held:
    """The messages that this runner holds. Beginning one and giving it back exclude each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Delivery, None] = {}

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Hold messages."""
        with self._lock:
            self._held.update(dict.fromkeys(deliveries))

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Hold them no more."""
        with self._lock:
            for delivery in deliveries:
                self._held.pop(delivery, None)

    def running(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Which of these messages a thread of this runner is still in, from an earlier claim."""
        with self._lock:
            begun = {(held.call.id, held.call.address) for held in self._held if held.begun}
        return [delivery for delivery in deliveries if (delivery.call.id, delivery.call.address) in begun]

    def begin(self, deliveries: Sequence[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Which of them may be delivered now, and which outlived their lease while they waited; those given back are neither."""
        now = time.monotonic()
        with self._lock:
            mine = [delivery for delivery in deliveries if not delivery.given_back]
            fresh = [delivery for delivery in mine if now < delivery.until]
            for delivery in fresh:
                delivery.begun = True
        return fresh, [delivery for delivery in mine if not now < delivery.until]

    def pause(self, deliveries: Iterable[Delivery] | None = None) -> None:
        """What was begun, of all or of these, has not been begun: until it is again, it may be given back."""
        with self._lock:
            for delivery in self._held if deliveries is None else deliveries:
                delivery.begun = False

    def give_back(self, deliveries: Iterable[Delivery] | None = None) -> list[Delivery]:
        """Take those that nobody has begun, of all or of these, away from their threads; the caller releases their rows."""
        with self._lock:
            waiting = [delivery for delivery in (self._held if deliveries is None else deliveries) if not delivery.begun]
            waiting = [delivery for delivery in waiting if not delivery.given_back]
            for delivery in waiting:
                delivery.given_back = True
                self._held.pop(delivery, None)
        return waiting

    def overdue(self) -> list[Delivery]:
        """Those whose handlers should have returned by now; such a turn saves nothing any more."""
        with self._lock:
            held = list(self._held)
        return [delivery for delivery in held if delivery.late]

    def ids(self) -> list[str]:
        """The ids of all that are held."""
        with self._lock:
            return sorted(delivery.call.id for delivery in self._held)
