"""The admission of a message's turn that was sent with its claim, until the turn takes it over."""

from __future__ import annotations

from akter.call import Call
from akter.store.wire import Wire


class Ahead:
    """The connection on which an admission for an actor of this type, with this routing key, is under way."""

    def __init__(self, wire: Wire, actor_type: str, key: int | None) -> None:
        self._wire: Wire | None = wire
        self._for = actor_type, key

    def take(self, call: Call) -> Wire | None:
        """The connection, for the turn of a call, which gives it back; `None` when it is of no use for that.

        The admission was for the actor as a hint named it, which anybody may write, and for as long as a turn may take without a limit
        of its own. The actor's id and tenant are the message's own.
        """
        if (call.address.actor_type, call.address.routing_key) != self._for or call.command.mark.timeout is not None:
            self.close()
        wire, self._wire = self._wire, None
        return wire

    def close(self) -> None:
        """Give the connection back, unless it was taken."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.__exit__(None, None, None)
