"""Field cases J03 and J04 for schedules: daylight saving, zones that are set elsewhere, zone data that is missing, clocks that disagree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import Engine, text

from akter import Actor, Akter, command, cron
from akter.runner import Runner
from akter.schedule import Wall
from akter.testing import advance, child, inspect, settle

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


class Rooster(Actor):
    """Crows at half past two in Berlin, an hour that the clock skips in spring and repeats in autumn."""

    crows: int = 0

    @command
    def hatch(self) -> None: ...

    @cron("30 2 * * *", tz="Europe/Berlin")
    def crow(self) -> None:
        self.crows += 1


class Baker(Actor):
    """The same expression in two zones: two schedules."""

    loaves: int = 0

    @command
    def hire(self) -> None: ...

    @cron("0 4 * * *", tz="Europe/Berlin")
    @cron("0 4 * * *", tz="Asia/Kolkata")
    def bake(self) -> None:
        self.loaves += 1


class Diary(Actor):
    """Keeps the times that its ticks were meant for."""

    nights: list[str] = []  # noqa: RUF012 - a state field's default is copied
    hours: list[str] = []  # noqa: RUF012
    broken: bool = False

    @command
    def open(self, *, broken: bool = False) -> None:
        self.broken = broken

    @cron("30 2 * * *", tz="Europe/Berlin")
    def close_day(self, due: datetime) -> None:
        if self.broken:
            raise ValueError("no ink")
        self.nights = [*self.nights, f"{due.isoformat()} {due.tzinfo}"]

    @cron(every=timedelta(hours=24))
    @command
    def note(self, due: datetime | None = None) -> None:
        self.hours = [*self.hours, "by hand" if due is None else f"{due.isoformat()} {due.tzinfo}"]


class Deployment:
    """An app, a runner for it, the database's clock, and the rows of schedules."""

    def __init__(self, app: Akter, engine: Engine) -> None:
        self.app, self._engine = app, engine
        self.runner = Runner(app, listen=False)

    def sql(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        with self._engine.begin() as connection:
            found = connection.execute(text(statement.replace("{akter}", f'"{self.app.schema}"')), values)
            return [tuple(row) for row in found] if found.returns_rows else []

    @property
    def now(self) -> datetime:
        clock = "SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 + clock_offset_ms FROM {akter}.actor_deployment"
        return moment(int(self.sql(clock)[0][0]))

    def to(self, when: datetime) -> None:
        """Move the clock to a moment that is still to come, and let what is due happen."""
        advance(self.app, when - self.now, self.runner)

    def due(self, zone: str = "Europe/Berlin") -> datetime:
        found = self.sql("SELECT due_at_ms FROM {akter}.actor_outbox WHERE starts_with(timer_key, :key)", key=f"$cron:{zone} ")
        return moment(found[0][0])


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def change(after: datetime, month: int) -> datetime:
    """When the clocks of the European Union change next in March or October: on the last Sunday, at one o'clock UTC."""
    for year in (after.year, after.year + 1):
        last = date(year, month, 31)
        sunday = last - timedelta(days=(last.weekday() + 1) % 7)
        found = datetime(sunday.year, sunday.month, sunday.day, 1, tzinfo=UTC)
        if found - DAY > after:
            return found
    raise AssertionError("two years have two of them")


@pytest.fixture
def deployment(akter_app: Callable[..., Akter], akter_engine: Engine) -> Iterator[Deployment]:
    made = Deployment(akter_app(Rooster, Baker, Diary), akter_engine)
    made.app.verify()
    yield made
    made.runner.stop()


def crows(deployment: Deployment) -> int:
    return int((inspect(deployment.app, deployment.app.actor(Rooster, "r")).state or {"crows": 0})["crows"])


@pytest.mark.conformance("CRON-15")
def test_a_time_that_does_not_exist_fires_once_right_after_the_gap(deployment: Deployment) -> None:
    gap = change(deployment.now, 3)
    deployment.to(gap - 12 * HOUR)
    deployment.app.actor(Rooster, "r").hatch()
    assert deployment.due() == gap
    deployment.to(gap - timedelta(seconds=30))
    assert crows(deployment) == 0
    deployment.to(gap + timedelta(seconds=1))
    assert crows(deployment) == 1
    assert deployment.due() == gap + timedelta(hours=23, minutes=30), "half past two on the next day, summer time"
    deployment.to(gap + 3 * HOUR)
    assert crows(deployment) == 1


@pytest.mark.conformance("CRON-16")
@pytest.mark.parametrize("late", [timedelta(seconds=1), timedelta(minutes=50)], ids=["in time", "in the repeated hour"])
def test_a_time_that_comes_twice_fires_the_first_time(deployment: Deployment, late: timedelta) -> None:
    back = change(deployment.now, 10)
    deployment.to(back - 12 * HOUR)
    deployment.app.actor(Rooster, "r").hatch()
    first = back - HOUR / 2
    assert deployment.due() == first
    deployment.to(first + late)
    assert crows(deployment) == 1
    assert deployment.due() == first + DAY + HOUR, "not half past two again, an hour later"
    deployment.to(first + HOUR + timedelta(minutes=10))
    assert crows(deployment) == 1


@pytest.mark.conformance("CRON-17")
def test_one_expression_in_two_zones_is_two_schedules(deployment: Deployment) -> None:
    deployment.app.actor(Baker, "b").hire()
    start, zones = deployment.now, ("Europe/Berlin", "Asia/Kolkata")
    dues = [deployment.due(zone) for zone in zones]
    assert [due.astimezone(ZoneInfo(zone)).strftime("%H:%M") for due, zone in zip(dues, zones, strict=True)] == ["04:00", "04:00"]
    assert all(due - start <= DAY + HOUR for due in dues)
    deployment.to(max(dues) + timedelta(seconds=1))
    assert inspect(deployment.app, deployment.app.actor(Baker, "b")).state == {"loaves": 2}
    assert len(deployment.sql("SELECT 1 FROM {akter}.actor_outbox")) == 2


def diary(deployment: Deployment) -> dict[str, Any]:
    return dict(inspect(deployment.app, deployment.app.actor(Diary, "d")).state or {})


@pytest.mark.parametrize(("month", "told"), [(3, "03:00:00+02:00"), (10, "02:30:00+02:00")], ids=["the gap", "the repeated hour"])
def test_a_handler_learns_which_time_it_was_meant_for_also_when_the_clock_changes(deployment: Deployment, month: int, told: str) -> None:
    changes = change(deployment.now, month)
    deployment.to(changes - 12 * HOUR)
    deployment.app.actor(Diary, "d").open()
    # It comes late: in autumn within the hour that is repeated.
    deployment.to((changes if month == 3 else changes - HOUR / 2) + timedelta(minutes=50))
    assert diary(deployment)["nights"] == [f"{changes:%Y-%m-%d}T{told} Europe/Berlin"]


@pytest.mark.conformance("CRON-07")
def test_a_late_tick_is_told_its_own_time_and_a_skipped_one_is_told_to_nobody(deployment: Deployment) -> None:
    deployment.app.actor(Diary, "d").open()
    late = deployment.due()
    deployment.to(late + 23 * HOUR)
    assert diary(deployment)["nights"] == [shown(late)]
    skipped = deployment.due()
    deployment.to(skipped + 25 * HOUR)
    assert diary(deployment)["nights"] == [shown(late)]
    after = deployment.due()
    deployment.to(after + timedelta(seconds=1))
    assert diary(deployment)["nights"] == [shown(late), shown(after)]


def shown(due: datetime) -> str:
    return f"{due.astimezone(ZoneInfo('Europe/Berlin')).isoformat()} Europe/Berlin"


def test_a_tick_that_fails_is_told_the_same_time_when_it_is_tried_again(deployment: Deployment) -> None:
    deployment.app.actor(Diary, "d").open(broken=True)
    due = deployment.due()
    deployment.to(due + timedelta(seconds=1))
    assert diary(deployment)["nights"] == []
    deployment.app.actor(Diary, "d").open()
    deployment.to(due + timedelta(minutes=5))
    assert diary(deployment)["nights"] == [shown(due)]


def test_the_time_of_an_interval_is_in_utc_and_a_call_by_hand_may_leave_it_away(deployment: Deployment) -> None:
    deployment.app.actor(Diary, "d").open()
    deployment.app.actor(Diary, "d").note()
    midnight = deployment.now.replace(hour=0, minute=0, second=0, microsecond=0) + DAY
    deployment.to(midnight + timedelta(seconds=1))
    assert diary(deployment)["hours"] == ["by hand", f"{midnight.isoformat()} UTC"]
    deployment.app.actor(Diary, "d").note(datetime(2026, 3, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")))
    assert diary(deployment)["hours"][2].startswith("2026-03-28T02:30:00+01:00")


TEN = {
    "30 2 * * *": (
        ["28 02:30+01", "29 03:00+02", "30 02:30+02", "31 02:30+02"],
        ["24 02:30+02", "25 02:30+02", "26 02:30+01", "27 02:30+01"],
    ),
    "0 * * * *": (
        ["29 00:00+01", "29 01:00+01", "29 03:00+02", "29 04:00+02", "29 05:00+02"],
        ["25 00:00+02", "25 01:00+02", "25 02:00+02", "25 03:00+01", "25 04:00+01"],
    ),
    "*/20 * * * *": (
        ["29 01:20+01", "29 01:40+01", "29 03:00+02", "29 03:20+02", "29 03:40+02"],
        ["25 02:00+02", "25 02:20+02", "25 02:40+02", "25 03:00+01", "25 03:20+01"],
    ),
    "@daily": (
        ["28 00:00+01", "29 00:00+01", "30 00:00+02", "31 00:00+02"],
        ["24 00:00+02", "25 00:00+02", "26 00:00+01", "27 00:00+01"],
    ),
}


@pytest.mark.parametrize("expression", TEN)
@pytest.mark.parametrize(("change", "since"), [(0, "2026-03-{}T{}+01:00"), (1, "2026-10-{}T{}+02:00")], ids=["gap", "fold"])
def test_the_dates_of_2026_in_berlin_written_out(expression: str, change: int, since: str) -> None:
    expected = TEN[expression][change]
    day, clock = expected[0][:2], expected[0][3:8]
    now = int(datetime.fromisoformat(since.format(day, clock)).timestamp() * 1000) - 1
    schedule, found = Wall(expression, "Europe/Berlin", "a test"), list[str]()
    for _ in expected:
        now = schedule.after(now)
        found.append(datetime.fromtimestamp(now / 1000, ZoneInfo("Europe/Berlin")).strftime("%d %H:%M%z")[:-2])
    assert found == expected


def test_the_zones_of_database_and_process_play_no_part(
    akter_app: Callable[..., Akter], akter_engine: Engine, akter_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with akter_engine.begin() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
        connection.execute(text(f"ALTER DATABASE \"{name}\" SET timezone TO 'Pacific/Apia'"))
        connection.execute(text(f"ALTER DATABASE \"{name}\" SET datestyle TO 'German'"))
    akter_engine.dispose()
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        there = Deployment(akter_app(Rooster, Baker, Diary), akter_engine)
        assert there.sql("SHOW timezone") == [("Pacific/Apia",)]
        there.app.actor(Rooster, "r").hatch()
        due = there.due()
        assert due.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") in ("02:30", "03:00")
        there.to(due + timedelta(seconds=1))
        assert crows(there) == 1
        there.runner.stop()
    finally:
        with akter_engine.begin() as connection:
            connection.execute(text(f'ALTER DATABASE "{name}" RESET timezone'))
            connection.execute(text(f'ALTER DATABASE "{name}" RESET datestyle'))
        monkeypatch.undo()
        time.tzset()


MISSING = """
import sys, zoneinfo
zoneinfo.reset_tzpath(to=[])
sys.modules["tzdata"] = None
from akter import Actor, cron
try:
    class Rooster(Actor):
        @cron("30 2 * * *", tz="Europe/Berlin")
        def crow(self) -> None: ...
except Exception as problem:
    print(type(problem).__name__, problem)
"""


def test_missing_zone_data_is_found_when_the_class_is_built() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONTZPATH": ""}
    )
    assert "DeclarationError @cron on Rooster.crow: there is no time zone 'Europe/Berlin'" in done.stdout, done.stderr


def skewed(url: str, schema: str, by: float) -> int:
    """Be a process whose clock is wrong, and that jumps while it runs."""
    real = time.time
    time.time = lambda: real() + by
    with Akter(url, actors=[Rooster, Baker], schema=schema) as app:
        app.actor(Rooster, f"r{by}").hatch()
        runner = Runner(app, listen=False)
        runner.drain()
        time.time = lambda: real() - by
        runner.drain()
        return runner.stop().delivered


def test_a_process_whose_clock_is_wrong_fires_no_tick_early_and_plans_none_wrongly(
    deployment: Deployment, akter_database: str, akter_schema: str
) -> None:
    deployment.app.actor(Rooster, "r").hatch()
    deployment.to(deployment.due() + timedelta(seconds=1))
    due = deployment.due()
    deployment.to(due - timedelta(minutes=5))
    for by in (600.0, -600.0):
        with child(skewed, akter_database, akter_schema, by) as process:
            assert process.wait() == 0
    assert {moment(row[0]) for row in deployment.sql("SELECT due_at_ms FROM {akter}.actor_outbox")} == {due}
    deployment.to(due + timedelta(seconds=1))
    assert [row[0] for row in deployment.sql("SELECT count(*) FROM {akter}.actor_receipts WHERE command = 'crow'")] == [4]
    with child(skewed, akter_database, akter_schema, 600.0) as process:
        assert process.wait() == 0
    settle(deployment.app, deployment.runner)
    assert crows(deployment) == 2
