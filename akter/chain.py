"""Commands of one actor in one transaction: each runs on the state that the one before left, and the last such state is written."""

from __future__ import annotations

from typing import NoReturn

from akter.identity import Address
from akter.member import Member
from akter.store.turn import Admitted


class RunsAlone(BaseException):
    """A member leaves its group and runs again by itself. No handler's `except Exception` catches it."""


class Chains:
    """What the members of one transaction leave for those that follow them at their actors."""

    def __init__(self) -> None:
        self._before: dict[Address, Admitted] = {}
        self._writers: dict[Address, Member] = {}

    def found(self, address: Address, read: Admitted) -> Admitted:
        """What a member finds: what was read of it, on the state of the member before it."""
        before = self._before.get(address)
        if before is None:
            return read
        return read._replace(
            value=before.value, payload_version=before.payload_version, created=before.created, event_sequence=before.event_sequence
        )

    def carry(self, member: Member) -> None:
        """What the next member of the same actor finds, and who of its members writes its state."""
        address = member.call.address
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


def no_sql(member: Member, *_: object) -> NoReturn:
    """What a member of a group gets instead of the connection that it shares; raises `RunsAlone`."""
    raise RunsAlone(member.call.id)
