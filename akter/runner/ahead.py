"""The admission of a message's turn that was sent with its claim, until the turn takes it over."""

from __future__ import annotations

from akter.call import Call
from akter.store.wire import Wire


class Ahead:
    """The connection on which an admission for the actor with the routing key `key` is under way."""

    def __init__(self, wire: Wire, key: int | None) -> None:
        self._wire: Wire | None = wire
        self._key = key

    def take(self, call: Call) -> Wire | None:
        """The connection, for the turn of a call, which gives it back; `None` when it is of no use for that.

        The admission was for the actor as the message's sender routed it, and for as long as a turn may take without a limit of its own.
        """
        if call.address.routing_key != self._key or call.command.mark.timeout is not None:
            self.close()
        wire, self._wire = self._wire, None
        return wire

    def close(self) -> None:
        """Give the connection back, unless it was taken."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.__exit__(None, None, None)
