"""Field cases J01, J06, I09 and K02: missed ticks, everybody at minute zero, schedulers started twice, ticks around kills."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text

from akter import Actor, Akter, command, cron
from akter.runner import Runner
from akter.testing import advance, child, inspect, settle

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
LEASE = timedelta(seconds=37)


class Meter(Actor):
    """Is read every hour. Every run leaves a line in `journal`, a file that knows nothing of transactions."""

    journal: str = ""
    readings: int = 0

    @command
    def install(self, journal: str = "") -> None:
        self.journal = journal

    @cron("0 * * * *")
    def read(self) -> None:
        if self.journal:
            with open(self.journal, "a", encoding="utf-8") as file:
                file.write("read\n")
        self.readings += 1


class Canary(Actor):
    """Sings when it is told to."""

    songs: int = 0

    @command
    def sing(self) -> None:
        self.songs += 1


class Cluster:
    """Processes on one database, each an app with connections of its own, and what they left there."""

    def __init__(self, url: str, schema: str) -> None:
        self._url, self._schema = url, schema
        self._made: list[tuple[Akter, Runner, sqlalchemy.Engine]] = []
        self._engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")

    def node(self, **options: Any) -> tuple[Akter, Runner]:
        engine = sqlalchemy.create_engine(self._url, pool_size=6, max_overflow=0)
        app = Akter(engine, actors=[Meter, Canary], schema=self._schema)
        runner = Runner(app, listen=False, **options)
        self._made.append((app, runner, engine))
        return app, runner

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement.replace("{akter}", f'"{self._schema}"')))]

    def one(self, statement: str) -> Any:
        return self.sql(statement)[0][0]

    def to_the_hour(self, app: Akter, past: timedelta = timedelta(seconds=1)) -> None:
        clock = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + clock_offset_ms"
        wait = self.one(f"SELECT min(due_at_ms) - (SELECT {clock} FROM {{akter}}.actor_deployment) FROM {{akter}}.actor_outbox")
        advance(app, timedelta(milliseconds=wait) + past)

    def close(self) -> None:
        for app, runner, engine in self._made:
            runner.stop(grace=5.0)
            app.close()
            engine.dispose()
        self._engine.dispose()


@pytest.fixture
def cluster(akter_database: str, akter_schema: str) -> Iterator[Cluster]:
    made = Cluster(akter_database, akter_schema)
    yield made
    made.close()


def readings(app: Akter, actor: str) -> int:
    return int((inspect(app, app.actor(Meter, actor)).state or {"readings": 0})["readings"])


READS = "SELECT count(*) FROM {akter}.actor_receipts WHERE command = 'read'"


@pytest.mark.parametrize(
    ("paused", "options", "fired"),
    [
        pytest.param(10 * HOUR, {}, 1, id="one is made up for"),
        pytest.param(100 * HOUR, {}, 0, id="none after a day"),
        pytest.param(100 * HOUR, {"skip_after": 1_000_000.0}, 1, id="one, if that is asked for"),
        pytest.param(2 * MINUTE, {"skip_after": 60.0}, 0, id="none, if that is asked for"),
    ],
)
def test_after_a_pause_at_most_one_tick_is_made_up_for(cluster: Cluster, paused: timedelta, options: Any, fired: int) -> None:
    app, runner = cluster.node(**options)
    app.actor(Meter, "m").install()
    cluster.to_the_hour(app, paused)
    settle(app, runner)
    settle(app, runner)
    assert (readings(app, "m"), cluster.one(READS)) == (fired, fired)
    cluster.to_the_hour(app)
    settle(app, runner)
    assert readings(app, "m") == fired + 1, "and it goes on"


def test_a_runner_that_was_frozen_for_a_hundred_ticks_fires_once(cluster: Cluster) -> None:
    app, _ = cluster.node()
    app.actor(Meter, "m").install()
    _, frozen = cluster.node(poll=0.05)
    frozen.start()
    cluster.to_the_hour(app)
    _wait(lambda: readings(app, "m") == 1)
    frozen.relay._lock.acquire()
    try:
        cluster.to_the_hour(app, timedelta(hours=19))
    finally:
        frozen.relay._lock.release()
    _wait(lambda: readings(app, "m") == 2)
    cluster.to_the_hour(app)
    _wait(lambda: readings(app, "m") == 3)
    assert cluster.one(READS) == 3


def _wait(so: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if so():
            return
        pause.wait(0.02)
    raise AssertionError("not within 20 seconds")


SCHEDULES = 200


def test_five_runners_and_hundreds_of_schedules_at_one_moment_make_one_tick_each(
    cluster: Cluster, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [cluster.node() for _ in range(5)]
    app = nodes[0][0]
    for number in range(SCHEDULES):
        app.actor(Meter, f"m{number}").install()
    for hour in (1, 2):
        cluster.to_the_hour(app)
        app.send(app.actor(Canary, "c").sing)
        for drained in [start(runner.drain) for _, runner in nodes]:
            drained.result(60)
        assert cluster.one(READS) == hour * SCHEDULES
        assert inspect(app, app.actor(Canary, "c")).state == {"songs": hour}
    assert cluster.sql("SELECT count(*), count(DISTINCT due_at_ms), max(attempts) FROM {akter}.actor_outbox") == [(SCHEDULES, 1, 0)]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as threads:
        yield threads.submit


def deliver(url: str, schema: str, ride: bool) -> None:
    """What a killed process of these tests does."""
    with Akter(url, actors=[Meter, Canary], schema=schema) as app:
        runner = Runner(app, ride=ride, listen=False)
        runner.drain()
        runner.stop()


def test_when_a_runner_is_killed_at_the_tick_the_others_make_it_one_each(cluster: Cluster, akter_database: str, akter_schema: str) -> None:
    app, runner = cluster.node()
    for number in range(40):
        app.actor(Meter, f"m{number}").install()
    cluster.to_the_hour(app)
    with child(deliver, akter_database, akter_schema, True, stop_at="before_commit") as process:
        process.wait_reached()
        process.kill()
    settle(app, runner)
    advance(app, LEASE, runner)
    assert cluster.one(READS) == 40
    assert {readings(app, f"m{number}") for number in range(40)} == {1}
    assert cluster.sql("SELECT count(*), max(attempts) FROM {akter}.actor_outbox") == [(40, 0)]


def test_a_tick_is_stored_once_however_often_its_runner_is_killed(
    cluster: Cluster, akter_database: str, akter_schema: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    app, runner = cluster.node()
    app.actor(Meter, "m").install(str(journal))
    points: list[tuple[Any, bool]] = [
        ("after_claim", True),
        ("before_handler", True),
        ("before_commit", True),
        ("after_commit", True),
        ("before_commit", False),
        ("after_commit", False),
        ("before_outbox_delete", False),
    ]
    for number, (point, ride) in enumerate(points, start=1):
        cluster.to_the_hour(app)
        tick = cluster.one("SELECT intent_id FROM {akter}.actor_outbox")
        with child(deliver, akter_database, akter_schema, ride, stop_at=point, command_id=tick) as process:
            process.wait_reached()
            process.kill()
        advance(app, LEASE, runner)
        settle(app, runner)
        assert cluster.one(f"SELECT count(*) FROM {{akter}}.actor_receipts WHERE command_id = '{tick}'") == 1
        assert (readings(app, "m"), cluster.one(READS)) == (number, number)
    # The outside world may see a tick twice: where it was killed between the handler and the commit.
    assert journal.read_text().count("read") == len(points) + 2


def test_an_application_that_is_imported_twice_starts_no_schedule(cluster: Cluster) -> None:
    before = set(threading.enumerate())
    nodes = [cluster.node() for _ in range(4)]
    for app, _ in nodes:
        app.actor(Meter, "m").install()
    assert [thread.name for thread in set(threading.enumerate()) - before if "hint" not in thread.name] == []
    cluster.to_the_hour(nodes[0][0])
    assert readings(nodes[0][0], "m") == 0, "nobody runs a Runner"
    for app, runner in nodes:
        settle(app, runner)
    assert (readings(nodes[0][0], "m"), cluster.one(READS)) == (1, 1)
