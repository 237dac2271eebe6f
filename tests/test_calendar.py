"""When schedules come: against a table made by walking through the clocks of zones, and against dates written out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from akter.schedule import Every, Schedule, Wall

ZONES = [
    "Europe/Berlin",
    "Europe/Dublin",  # its standard time is summer's
    "America/New_York",
    "America/Santiago",
    "America/Sao_Paulo",  # no summer time since 2019
    "Australia/Lord_Howe",  # half an hour
    "Pacific/Chatham",  # at a quarter to
    "Africa/Casablanca",  # Ramadan is winter time
    "Asia/Kolkata",
]
SERIES: dict[str, Callable[[int, int], bool]] = {
    "0 0 * * *": lambda hour, minute: (hour, minute) == (0, 0),
    "30 2 * * *": lambda hour, minute: (hour, minute) == (2, 30),
    "15 1-3 * * *": lambda hour, minute: hour in (1, 2, 3) and minute == 15,
    "0 * * * *": lambda hour, minute: minute == 0,
    "*/20 * * * *": lambda hour, minute: minute in (0, 20, 40),
}
FROM, UNTIL = datetime(2014, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)
MINUTE, QUARTER = timedelta(minutes=1), timedelta(minutes=15)


def milliseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def series(schedule: Schedule, since: datetime, until: datetime) -> list[datetime]:
    """The schedule's times within a period."""
    found: list[datetime] = []
    now, end = milliseconds(since) - 1, milliseconds(until)
    while (now := schedule.after(now)) < end:
        found.append(datetime.fromtimestamp(now / 1000, UTC))
    return found


@cache
def clock(zone: str, since: datetime, until: datetime, step: timedelta) -> list[tuple[datetime, datetime]]:
    """What the wall clock shows at every step."""
    place, count = ZoneInfo(zone), (until - since) // step
    moments = (since + number * step for number in range(count))
    return [(moment, moment.astimezone(place).replace(tzinfo=None)) for moment in moments]


def walked(zone: str, matches: Callable[[int, int], bool], since: datetime, until: datetime, step: timedelta) -> list[datetime]:
    """The same, by looking at the wall clock at every step: a time counts when it is shown first, or else when it is passed by."""
    # What was shown just before the period is not shown first in it.
    looked = clock(zone, since - timedelta(hours=4), until, step)
    shown: dict[datetime, datetime] = {}
    passed: set[datetime] = set()
    before = looked[0][1]
    for moment, wall in looked:
        skipped = before + step
        while skipped < wall:
            if matches(skipped.hour, skipped.minute):
                passed.add(moment)
            skipped += step
        shown.setdefault(wall, moment)
        before = wall
    found = {moment for wall, moment in shown.items() if matches(wall.hour, wall.minute)} | passed
    return sorted(moment for moment in found if moment >= since)


@cache
def changes(zone: str) -> list[datetime]:
    """The days of these ten years on which the offset changes, as the midnights, in UTC, that come before."""
    days = [FROM + timedelta(days=number) for number in range((UNTIL - FROM).days)]
    offsets = [day.astimezone(ZoneInfo(zone)).utcoffset() for day in [*days, UNTIL]]
    return [day for day, before, after in zip(days, offsets, offsets[1:], strict=False) if before != after]


def test_the_clocks_of_enough_zones_change_often_enough_to_be_a_test() -> None:
    often = [zone for zone in ZONES if len(changes(zone)) >= 18]
    assert len(often) >= 6, often
    assert changes("Asia/Kolkata") == []


@pytest.mark.conformance("CRON-15", "CRON-16")
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", SERIES)
def test_around_every_change_of_ten_years_each_time_comes_once_as_the_wall_clock_shows_it(zone: str, expression: str) -> None:
    schedule = Wall(expression, zone, "a test")
    days = changes(zone) or [datetime(2026, 3, 29, tzinfo=UTC)]
    for day in days:
        since, until = day - timedelta(hours=12), day + timedelta(hours=36)
        assert series(schedule, since, until) == walked(zone, SERIES[expression], since, until, MINUTE)


@pytest.mark.conformance("CRON-15", "CRON-16")
@pytest.mark.parametrize("zone", ZONES)
def test_on_every_day_of_ten_years_a_daily_time_comes_once_as_the_wall_clock_shows_it(zone: str) -> None:
    schedule = Wall("30 2 * * *", zone, "a test")
    assert series(schedule, FROM, UNTIL) == walked(
        zone, SERIES["30 2 * * *"], FROM, UNTIL, QUARTER if zone == "Pacific/Chatham" else 2 * QUARTER
    )


@pytest.mark.conformance("CRON-16")
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("expression", ["30 1 * * *", "45 1 * * *", "*/15 * * * *"])
def test_whenever_a_row_is_rewritten_in_a_repeated_hour_the_next_time_is_the_same_as_before(zone: str, expression: str) -> None:
    schedule = Wall(expression, zone, "a test")
    for day in changes(zone):
        times = series(schedule, day - timedelta(hours=12), day + timedelta(hours=60))
        for asked in range(0, 36 * 60, 7):
            now = day - timedelta(hours=6) + asked * MINUTE
            assert schedule.after(milliseconds(now)) == milliseconds(min(moment for moment in times if moment > now))


def times(expression: str, zone: str, since: str, count: int) -> list[str]:
    now, found = milliseconds(datetime.fromisoformat(since)), []
    schedule = Wall(expression, zone, "a test")
    for _ in range(count):
        now = schedule.after(now)
        found.append(datetime.fromtimestamp(now / 1000, ZoneInfo(zone)).strftime("%d %H:%M%z"))
    return found


@pytest.mark.conformance("CRON-15")
def test_dates_written_out_when_the_clock_goes_forward() -> None:
    assert times("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00Z", 3) == ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"]
    assert times("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00Z", 2) == ["29 03:00+0200", "30 02:00+0200"]
    assert times("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", 2) == ["04 02:30+1100", "05 02:15+1100"]
    assert times("0 0 * * *", "America/Santiago", "2026-09-05T12:00Z", 2) == ["06 01:00-0300", "07 00:00-0300"]
    # A day that Samoa did not have.
    assert times("0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00Z", 2) == ["31 00:00+1400", "30 12:00+1400"]


@pytest.mark.conformance("CRON-16")
def test_dates_written_out_when_the_clock_goes_back() -> None:
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", 2) == ["25 02:30+0200", "26 02:30+0100"]
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10Z", 1) == ["26 02:30+0100"], "asked in the repeated hour"
    assert times("*/30 1-3 * * *", "America/New_York", "2026-11-01T05:00Z", 4) == [
        "01 01:30-0400",
        "01 02:00-0500",
        "01 02:30-0500",
        "01 03:00-0500",
    ]
    assert times("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00Z", 2) == ["05 01:45+1100", "06 01:45+1030"]


def test_days_of_month_and_week_are_read_as_crontabs_are() -> None:
    assert times("0 0 13 * 5", "UTC", "2026-02-12T00:00Z", 4) == ["13 00:00+0000", "20 00:00+0000", "27 00:00+0000", "06 00:00+0000"]
    assert times("0 0 * 2 MON#1", "UTC", "2026-01-01T00:00Z", 2) == ["02 00:00+0000", "01 00:00+0000"]
    assert times("0 0 L * *", "UTC", "2028-01-31T12:00Z", 2) == ["29 00:00+0000", "31 00:00+0000"]
    assert times("0 0 29 2 *", "UTC", "2026-01-01T00:00Z", 1) == ["29 00:00+0000"]
    assert times("@daily", "Asia/Kolkata", "2026-01-01T00:00Z", 1) == ["02 00:00+0530"]


def test_seconds_stand_first_when_there_are_six_fields() -> None:
    schedule = Wall("10,40 * * * * *", "UTC", "a test")
    assert schedule.after(0) == 10_000
    assert schedule.after(10_000) == 40_000
    assert schedule.after(39_999) == 40_000
    assert schedule.after(40_001) == 70_000


@pytest.mark.conformance("CRON-18")
def test_intervals_are_multiples_since_the_epoch() -> None:
    assert Every(timedelta(minutes=5), "a test").after(1_000_000) == 1_200_000
    assert Every(timedelta(minutes=5), "a test").after(1_200_000) == 1_500_000
    assert Every(timedelta(milliseconds=1500), "a test").after(1_499) == 1_500


def test_the_next_two_times_are_right_whenever_they_are_asked_for() -> None:
    schedule = Every(timedelta(minutes=1), "a test")
    for now, expected in ((0, 60_000), (59_999, 60_000), (60_000, 120_000), (0, 60_000), (200_000, 240_000)):
        assert schedule.next_two(now) == (expected, expected + 60_000)
