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
        self._last: dict[Address, Member] = {}
        self._writers: dict[Address, Member] = {}

    def found(self, address: Address, read: Admitted) -> Admitted:
        """What a member finds: what was read of it, on the state of the member before it."""
        before = self._last.get(address)
        if before is None:
            return read
        left, ended = before.found, before.ended
        if ended is not None and ended.state is not None:
            left = left._replace(value=ended.state, payload_version=len(before.call.definition.options.migrations))
        return read._replace(
            value=left.value,
            payload_version=left.payload_version,
            created=left.created or before.mark() is not None,
            event_sequence=before.event_sequence,
        )

    def carry(self, member: Member) -> None:
        """Whom the next member of the same actor follows, and who of its members writes its state."""
        address, ended = member.call.address, member.ended
        if ended is not None and ended.state is not None:
            earlier = self._writers.get(address)
            if earlier is not None and earlier.ended is not None:
                earlier.ended = earlier.ended._replace(state=None)
            self._writers[address] = member
        self._last[address] = member


def no_sql(member: Member, *_: object) -> NoReturn:
    """What a member of a group gets instead of the connection that it shares; raises `RunsAlone`."""
    raise RunsAlone(member.call.id)
