"""Which commands may share a transaction with others: those that were seen to be quick."""

from __future__ import annotations

from akter.command import Command

SLOW = 0.02
"""Seconds after which a handler is too slow to let others wait for its commit."""


class Pace:
    """Which commands may share a transaction: those last seen to be quick and without SQL of their own."""

    def __init__(self) -> None:
        self._quick: dict[Command, bool] = {}

    def may_share(self, command: Command) -> bool:
        """Whether a command may be a member of a group."""
        return not command.mark.sql and self._quick.get(command, False)

    def knows(self, command: Command) -> bool:
        """Whether a command was seen at all."""
        return command.mark.sql or command in self._quick

    def saw(self, command: Command, seconds: float, *, used_sql: bool) -> None:
        """Remember how a command went."""
        self._quick[command] = seconds <= SLOW and not used_sql
