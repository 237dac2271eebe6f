"""Tell a subscriber: a turn of the method that follows, under an id that is the same however often it is tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from akter.call import Call
from akter.caller import System
from akter.definition import Definition
from akter.following import Following
from akter.identity import address
from akter.member import Member, Surroundings
from akter.pace import Pace
from akter.payload import Event
from akter.shared import impatient
from akter.store.flight import Line
from akter.store.wire import Wire
from akter.subscription import CursorRejected, Delivered, Gap, Subscription
from akter.turn import Turn

Told: TypeAlias = Event | Gap | CursorRejected
Watched: TypeAlias = Callable[[float], AbstractContextManager[None]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Teller:
    """Makes the turns of subscribers. `execution` is the longest one in seconds, unless its class says otherwise."""

    def __init__(self, around: Surroundings, execution: float) -> None:
        self.around, self._execution, self.pace = around, execution, Pace()
        self._impatient = impatient(around)

    def call(self, definition: Definition, follows: Subscription, id: str, of: Following, told: Told, command_id: str = "") -> Call:
        """The call that tells `id` of an event, which `command_id` emitted, of a gap, or of a cursor that is none."""
        where = address(definition.options.placement, of.source.tenant_id, definition.name, id)
        details = Delivered(
            source_type=of.source.actor_type,
            source=of.source.actor_id,
            cursor=str(of.position),
            command_id=command_id,
            at=_EPOCH + timedelta(milliseconds=of.issued_at_ms),
        )
        return Call(
            definition=definition,
            command=follows,
            address=where,
            id=of.command_id(where, self.around.keep_ms),
            minted=None,
            arguments=(told, details),
            payload_hash=of.identity(where),
            caller=System("subscription", of.source),
            trusted=True,
            # What was published is not refused for its age, nor asked for its rights.
            retried=True,
            following=of,
        )

    def deadline(self, call: Call, until: float) -> float:
        """When the turn of a call must have ended, which must be before `until`."""
        return min(time.monotonic() + (call.command.mark.timeout or self._execution), until)

    def turn(self, wire: Wire, deadline: float, *, shared: bool = False) -> Turn:
        """A turn for a call, or one that several calls share, which do not wait long for each other's actors."""
        return Turn(wire, deadline, self._impatient if shared else self.around)

    def tell(self, wire: Wire, call: Call, until: float, riding: Sequence[Line], handling: Watched | None = None) -> bool:
        """Run the turn, its handler in the block that `handling`, if given, makes of its deadline.

        Returns whether `riding` went with its commit, which it does not when it was told before.

        Raises `Acknowledged` when the subscriber does not want it, and what a turn raises.
        """
        faults = self.around.faults
        faults.at("before_delivery", call)
        deadline = self.deadline(call, until)
        turn, member = self.turn(wire, deadline), Member(call, self.around)
        (found,) = turn.admit([call])
        member.admit(found)
        if member.replayed is not None:
            wire.roll_back()
            return False
        faults.at("before_handler", call)
        started = time.monotonic()
        with handling(deadline) if handling is not None else nullcontext():
            member.handle(turn.open_sql, turn.read)
        self.pace.saw(call.command, time.monotonic() - started, used_sql=member.used_sql)
        turn.check_time(call)
        faults.at("before_commit", call)
        turn.commit([member], riding)
        faults.at("after_commit", call)
        return True

    def about(self, of: Following, subscriber: str) -> dict[str, Any]:
        """What a subscription does not hear, for a line of the log."""
        return {
            "akter_actor": f"{of.source.actor_type}/{of.source.actor_id}",
            "akter_tenant": of.source.tenant_id,
            "akter_subscription": f"{subscriber}.{of.subscription}",
            "akter_cursor": str(of.position),
        }
