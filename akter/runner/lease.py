"""How long a claimed message is a runner's: longer than its turn may take, or no try of it could ever commit."""

from __future__ import annotations

from collections.abc import Mapping

from akter.command import Command
from akter.definition import Definition
from akter.errors import ConfigurationError
from akter.limits import Limits

LEAST_LEASE = 37.0


def claim_lease(given: float | None, actors: Mapping[str, Definition], limits: Limits) -> float:
    """Seconds that a claimed message is this runner's: as `given`, or longer than the longest turn of any registered type.

    Raises `ConfigurationError` when the given lease ends before a command's time limit.
    """
    slowest = _slowest(actors, limits)
    longest = limits.execution if slowest is None else _limit(slowest, limits)
    if given is None:
        return max(LEAST_LEASE, longest + limits.lock + 5.0)
    if slowest is not None and given < longest:
        raise ConfigurationError(
            f"Runner: claim_lease is {given:g} seconds, and {slowest.where} may run for {longest:g}, so its messages could never be "
            "finished: make claim_lease longer, or leave it out, or declare a shorter timeout="
        )
    return given


def _slowest(actors: Mapping[str, Definition], limits: Limits) -> Command | None:
    commands = (member for known in actors.values() for member in known.members.values() if member.mark.kind == "command")
    return max(commands, key=lambda command: _limit(command, limits), default=None)


def _limit(command: Command, limits: Limits) -> float:
    return command.mark.timeout or limits.execution
