"""`@cron`: a method that runs by itself, at the times of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from akter.command import Command
from akter.errors import DeclarationError
from akter.schedule import CRON_KEY, Every, Schedule, Wall

F = TypeVar("F", bound=Callable[[Any], Any] | Callable[[Any, datetime], Any])

SCHEDULES = "__akter_schedules__"

DUE = "due"
"""The one argument that a scheduled method may take."""


class Entry(NamedTuple):
    """One schedule of an actor class, and the command it runs."""

    schedule: Schedule
    command: Command

    def arguments(self, due_ms: int) -> Any:
        """The arguments of the tick that is meant for this time: none, or the time itself."""
        given = {DUE: self.schedule.shown(due_ms)} if msgspec.structs.fields(self.command.arguments) else {}
        return self.command.arguments(**given)


@overload
def cron(expression: str, /, *, tz: str = ...) -> Callable[[F], F]: ...
@overload
def cron(*, every: timedelta) -> Callable[[F], F]: ...
def cron(expression: Any = None, /, *, tz: str | None = None, every: timedelta | None = None) -> Any:
    """Run a method at every time of a schedule, as a turn, from the actor's first committed turn on.

    It takes no arguments, or `due: datetime`: the time that a tick is meant for, in the schedule's zone, however late it runs.

    A cron expression of five fields, or six with seconds first, is meant in the zone `tz`, UTC unless given. `every`: an interval of at
    least a second instead, counted from the epoch. Alone, it makes the method an internal command; above or below `@command` it says
    when that command runs. Several may stand on one method. Raises `DeclarationError` when the class is built, or before.
    """

    def decorate(method: Any) -> Any:
        where = f"@cron on {getattr(method, '__qualname__', repr(method))}"
        if not isinstance(method, FunctionType):
            raise DeclarationError(f"{where}: it goes on a plain method with `self`")
        if (expression is None) is (every is None) or (every is not None and tz is not None):
            raise DeclarationError(f'{where}: say either an expression, @cron("0 3 * * *", tz="Europe/Berlin"), or every=timedelta(...)')
        schedule = Wall(expression, "UTC" if tz is None else tz, where) if every is None else Every(every, where)
        setattr(method, SCHEDULES, (schedule, *schedules(method)))
        return method

    if isinstance(expression, FunctionType):
        raise DeclarationError(f'@cron on {expression.__qualname__}: it says when, @cron("0 3 * * *") or @cron(every=timedelta(...))')
    return decorate


def schedules(method: object) -> tuple[Schedule, ...]:
    """What `@cron` wrote on a method."""
    found: tuple[Schedule, ...] = getattr(method, SCHEDULES, ())
    return found


def entries(members: Iterable[Command]) -> Mapping[str, Entry]:
    """The schedules of an actor class by their keys; raises `DeclarationError` for one that cannot run, or that stands there twice."""
    found: dict[str, Entry] = {}
    for command in members:
        for schedule in schedules(command.method):
            if command.mark.kind != "command":
                raise DeclarationError(f"{command.where}: @cron runs a command, and this is a {command.mark.kind}")
            wanted = {field.name: field.type for field in msgspec.structs.fields(command.arguments)}
            if wanted and (set(wanted) != {DUE} or wanted[DUE] not in (datetime, datetime | None)):
                raise DeclarationError(
                    f"{command.where}: a command that @cron runs takes no arguments but `{DUE}: datetime`, the time it is meant for: "
                    "leave the others out, or call another command in it"
                )
            entry = found.setdefault(schedule.key, Entry(schedule, command))
            if entry.schedule is not schedule:
                raise DeclarationError(
                    f"{command.where}: `{schedule.key.removeprefix(CRON_KEY)}` runs {entry.command.name} already; "
                    "one schedule runs one command once: call the other in it"
                )
    return found
