"""When a schedule's next time is: cron expressions on the wall clock of a zone, and fixed intervals. Times are epoch milliseconds.

A wall time that the clock skips counts at the first instant after the gap. A wall time that comes twice counts the first time only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta, tzinfo
from typing import cast
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from akter.errors import DeclarationError

CRON_KEY = "$cron:"
"""What the key of a schedule's row starts with in `timer_key`."""

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock's time, in no zone
_UNIX = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND, _MILLISECOND = timedelta(seconds=1), timedelta(milliseconds=1)
_DAY = 86_400
_LAST_DAYS = {CronSim.LAST: "L", CronSim.LAST_WEEKDAY: "LW"}
_NO_NAMES: Mapping[int, str] = {}
_LONGEST = timedelta(days=36_525)
_OFFSET = re.compile(r"(Etc/)?(UTC|GMT)?[+-][0-9].*")
_ELSEWHERE = re.compile(r"(posix|right)/.*|localtime|posixrules|Factory")


class Schedule:
    """A series of times. `key` is the same for every spelling of the same series."""

    key: str
    _zone: tzinfo = UTC
    _known: tuple[int, int, int] = (0, 0, 0)

    def after(self, now_ms: int) -> int:
        """The first time later than `now_ms`."""
        raise NotImplementedError

    def shown(self, moment_ms: int) -> datetime:
        """A time of it as the clock of its zone shows it; of an interval, in UTC."""
        return (_UNIX + timedelta(milliseconds=moment_ms)).astimezone(self._zone)

    def next_two(self, now_ms: int) -> tuple[int, int]:
        """The first time later than `now_ms`, and the one after it; worked out once for all who ask before it comes."""
        since, first, second = self._known
        if not since <= now_ms < first:
            first = self.after(now_ms)
            second = self.after(first)
            self._known = (now_ms, first, second)
        return first, second


class Every(Schedule):
    """Whole multiples of an interval since the epoch, so that every process means the same times. Raises `DeclarationError`."""

    def __init__(self, interval: timedelta, where: str) -> None:
        if not isinstance(interval, timedelta):
            raise DeclarationError(f"{where}: every= takes a timedelta, such as timedelta(minutes=5), not {interval!r}")
        if not timedelta(seconds=1) <= interval <= _LONGEST or interval % _MILLISECOND:
            raise DeclarationError(f"{where}: every= is from one second to 100 years, in whole milliseconds, not {interval!r}")
        self._length_ms = interval // _MILLISECOND
        self.key = f"{CRON_KEY}@every {self._length_ms}ms"

    def after(self, now_ms: int) -> int:
        """The first time later than `now_ms`."""
        return (now_ms // self._length_ms + 1) * self._length_ms


class Wall(Schedule):
    """The times a cron expression matches on the wall clock of a zone.

    Raises `DeclarationError` for an expression that cannot be read or never comes, and for what is not the name of a zone.
    """

    def __init__(self, expression: str, tz: str, where: str) -> None:
        self._zone = _zone(tz, where)
        if not isinstance(cast(object, expression), str):
            raise DeclarationError(f'{where}: an expression is text, such as "0 3 * * *", not {expression!r}')
        self._expression = _NICKNAMES.get(expression, expression)
        try:
            parsed = CronSim(self._expression, _EPOCH)
            next(parsed)
        except CronSimError as problem:
            raise DeclarationError(
                f"{where}: {expression!r} is no cron expression ({problem}): five fields, minute, hour, day of month, month, day of week, "
                "or six with seconds first"
            ) from problem
        except StopIteration:
            raise DeclarationError(f"{where}: {expression!r} never comes: no such day exists") from None
        self.key = f"{CRON_KEY}{tz} {_canonical(parsed)}"

    def after(self, now_ms: int) -> int:
        """The first time later than `now_ms`."""
        now = now_ms // 1000
        for wall in CronSim(self._expression, datetime.fromtimestamp(now, self._zone).replace(tzinfo=None)):
            moment = self._moment((wall - _EPOCH) // _SECOND)
            if moment > now:
                return moment * 1000
        raise OverflowError(f"{self.key} has no time within 50 years")

    def _moment(self, wall: int) -> int:
        """The first instant at which the wall clock shows `wall`, or, when it never does, the first at which it shows more."""
        # The offsets a day before and after are those on both sides of whatever change is near; the larger one comes first.
        offsets = sorted({self._offset(wall - _DAY), self._offset(wall + _DAY)}, reverse=True)
        for offset in offsets:
            if self._offset(wall - offset) == offset:
                return wall - offset
        early, late = wall - offsets[0], wall - offsets[-1]
        while early < late:
            middle = (early + late) // 2
            if middle + self._offset(middle) < wall:
                early = middle + 1
            else:
                late = middle
        return late

    def _offset(self, moment: int) -> int:
        return cast(timedelta, datetime.fromtimestamp(moment, self._zone).utcoffset()) // _SECOND


def _zone(tz: str, where: str) -> ZoneInfo:
    if not isinstance(cast(object, tz), str) or _OFFSET.fullmatch(tz):
        raise DeclarationError(f'{where}: tz= is the name of a zone, such as "Europe/Berlin" or "UTC", not the offset {tz!r}')
    try:
        if not _ELSEWHERE.fullmatch(tz):
            return ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        pass
    raise DeclarationError(f'{where}: there is no time zone {tz!r}: tz= takes an IANA name, such as "Europe/Berlin"')


def _canonical(parsed: CronSim) -> str:
    """The expression spelt in one way, so that whoever writes it otherwise means the same row."""
    days = _listed(parsed.days, 31, _LAST_DAYS)
    weekdays = _weekdays(parsed)
    if not parsed.day_and and "*" in (days, weekdays):
        # Either may match, and one always does.
        days = weekdays = "*"
    elif parsed.day_and and "*" not in (days, weekdays):
        days = f"&{days}"
    fields = [_listed(parsed.minutes, 60), _listed(parsed.hours, 24), days, _listed(parsed.months, 12), weekdays]
    seconds = _listed(parsed.seconds, 60)
    return " ".join(fields if seconds == "0" else [seconds, *fields])


def _weekdays(parsed: CronSim) -> str:
    plain: set[int] = set()
    special: set[tuple[int, int]] = set()
    for item in parsed.weekdays:
        if isinstance(item, int):
            plain.add(item % 7)
        else:
            special.add((item[0] % 7, item[1]))
    if len(plain) == 7:
        return "*"
    named = [f"{day}L" if which == CronSim.LAST else f"{day}#{which}" for day, which in sorted(special) if day not in plain]
    return ",".join([*_runs(plain), *named])


def _listed(values: Set[int], full: int, names: Mapping[int, str] = _NO_NAMES) -> str:
    plain = {value for value in values if value >= 0}
    if len(plain) == full:
        return "*"
    return ",".join([*_runs(plain), *(name for value, name in names.items() if value in values)])


def _runs(values: Set[int]) -> list[str]:
    """Sorted values; three and more that follow each other are said by their ends."""
    found: list[str] = []
    rest = sorted(values)
    while rest:
        size = next((number for number, value in enumerate(rest) if value != rest[0] + number), len(rest))
        found += [f"{rest[0]}-{rest[size - 1]}"] if size > 2 else [str(value) for value in rest[:size]]
        rest = rest[size:]
    return found
