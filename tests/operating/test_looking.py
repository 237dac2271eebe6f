"""`akter status`, `doctor` and `outbox list`: every reason for not running is named."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click.testing
import pytest
from processes import Done, Started, until
from shop import Crate, Parcel
from sqlalchemy import Engine

from akter import Runner
from akter.app import Akter
from akter.cli import main
from akter.operating import SILENT_MS, Operator
from akter.testing import settle

Rows = Callable[..., list[Any]]
HOUR = timedelta(hours=1)


@pytest.fixture
def cli(environment: dict[str, str]) -> Callable[..., click.testing.Result]:
    def invoke(*arguments: str) -> click.testing.Result:
        return click.testing.CliRunner().invoke(main, arguments, env=environment)

    return invoke


def runner(app: Akter, **options: Any) -> Runner:
    return Runner(app, **{"listen": False, "poll": 0.05, "heartbeat": 0.1, "lanes": {"intents": 2}, **options})


def reasons(operator: Operator) -> dict[str, str]:
    return {row.target_id: row.reason for row in operator.waiting()}


def test_a_deployment_where_nobody_runs(cli: Callable[..., Any], app: Akter) -> None:
    app.send(app.actor(Parcel, "p").move)
    said = cli("status")
    assert said.exit_code == 0
    assert "nobody is running a Runner: start one with `akter run module:app`" in said.output
    assert "intent  Parcel       unknown type  1" in said.output
    wrong = cli("doctor")
    assert wrong.exit_code == 1
    assert "nobody is running a Runner\n    start one: akter run module:app\n" in wrong.output
    assert "1 intent row for Parcel due and no live runner serves that type" in wrong.output


def test_a_deployment_where_all_is_well(cli: Callable[..., Any], app: Akter, operator: Operator) -> None:
    with runner(app, label="the only one"):
        until(operator.runners)
        said, well = cli("status"), cli("doctor")
    assert "the only one" in said.output
    assert "Crate, Parcel" in said.output
    assert "nothing waits" in said.output
    assert (well.exit_code, well.output) == (0, "akter: nothing is wrong\n")


def test_every_reason_for_not_running_is_named(app: Akter, operator: Operator, rows: Rows) -> None:
    app.send(app.actor(Parcel, "due").move)
    app.send(app.actor(Crate, "paused").move)
    with app.engine.begin() as connection:
        app.within(connection).after(HOUR).send(app.actor(Parcel, "future").move)
    for name in ("unknown", "claimed", "backoff", "parked"):
        app.send(app.actor(Parcel, name).move)
    later = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint + 60000"
    rows("UPDATE {akter}.actor_outbox SET target_type = 'Ghost' WHERE target_id = 'unknown'")
    rows(f"UPDATE {{akter}}.actor_outbox SET attempts = 1, due_at_ms = {later} WHERE target_id = 'claimed'")
    rows(f"UPDATE {{akter}}.actor_outbox SET attempts = 9, last_error = 'torn', due_at_ms = {later} WHERE target_id = 'backoff'")
    rows("UPDATE {akter}.actor_outbox SET attempts = 1, last_error = 'parked: x', due_at_ms = 9007199254740991 WHERE target_id = 'parked'")
    operator.pause("intents", "Crate", why="broken crates")
    rows(
        "INSERT INTO {akter}.actor_runners "
        "(incarnation_id, label, library, types, lanes, started_at_ms, heartbeat_at_ms, passed_at_ms) "
        "SELECT 'r', 'r', '1', '{Parcel,Crate}', '{}', t, t, t "
        "FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS _ (t)"
    )
    expected = {
        "due": "due",
        "paused": "paused",
        "future": "future",
        "unknown": "unknown type",
        "claimed": "claimed",
        "backoff": "backoff",
        "parked": "parked",
    }
    assert reasons(operator) == expected
    for target, reason in expected.items():
        assert [row.target_id for row in operator.waiting(reason=reason)] == [target]  # type: ignore[arg-type]
    counted = {(count.target_type, count.reason): (count.rows, count.stuck) for count in operator.overview().waiting}
    assert counted == {
        ("Parcel", "due"): (1, 0),
        ("Crate", "paused"): (1, 0),
        ("Parcel", "future"): (1, 0),
        ("Ghost", "unknown type"): (1, 0),
        ("Parcel", "claimed"): (1, 0),
        ("Parcel", "backoff"): (1, 1),
        ("Parcel", "parked"): (1, 1),
    }
    found = {one.name: one.finding for one in operator.findings()}
    assert set(found) == {"unknown type", "parked", "paused", "stuck"}
    assert "was tried 9 times: torn" in found["stuck"]


def test_what_the_code_of_an_application_is_too_old_to_read_is_a_finding(
    app: Akter, operator: Operator, rows: Rows, akter: Callable[..., Done]
) -> None:
    app.actor(Parcel, "p").move()
    assert "too new" not in {one.name for one in operator.findings(app)}
    rows("UPDATE {akter}.actor_state SET payload_version = 3")
    (found,) = [one for one in operator.findings(app) if one.name == "too new"]
    assert found.finding == "states of Parcel are stored as version 3, and this code reads up to 0"
    assert "too new" not in {one.name for one in operator.findings()}
    done = akter("doctor", "--app", "shop:app")
    assert done.code == 1
    assert "states of Parcel are stored as version 3" in done.out
    assert "states of Parcel" not in akter("doctor").out
    started = akter("run", "shop:app")
    assert started.code != 0
    assert "states of Parcel are stored as version 3" in started.err


def test_a_whole_family_can_be_paused(app: Akter, operator: Operator) -> None:
    app.send(app.actor(Parcel, "p").move)
    operator.pause("intents")
    assert reasons(operator) == {"p": "paused"}
    assert [row.target_id for row in operator.waiting(reason="paused")] == ["p"]
    assert operator.waiting(reason="unknown type") == []


def test_what_is_late_although_somebody_runs_is_a_finding(app: Akter, operator: Operator, rows: Rows) -> None:
    with runner(app):
        until(operator.runners)
        operator.pause("intents")
        time.sleep(0.2)
        app.send(app.actor(Parcel, "p").move)
        rows("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms - 3600000")
        rows("ALTER TABLE {akter}.actor_outbox ADD CONSTRAINT stays CHECK (attempts = 0)")
        operator.resume("intents")
        assert [one.finding for one in operator.findings()] == ["1 intent row for Parcel due, the oldest for 1h 0m"]


def test_json_has_the_same_fields_always(cli: Callable[..., Any], app: Akter, operator: Operator) -> None:
    app.send(app.actor(Parcel, "p").move)
    operator.pause("jobs", why="for now")
    with runner(app, label="one"):
        until(operator.runners)
        until(lambda: not operator.waiting())
        app.actor(Parcel, "q")
        with app.engine.begin() as connection:
            app.within(connection).after(HOUR).send(app.actor(Parcel, "p").move)
        seen = json.loads(cli("status", "--json").output)
        (listed,) = [json.loads(line) for line in cli("outbox", "list", "--json").stdout.splitlines()]
    assert list(seen) == ["runners", "waiting", "paused"]
    assert list(seen["runners"][0]) == [
        "incarnation_id",
        "label",
        "library",
        "types",
        "lanes",
        "started_at_ms",
        "silent_ms",
        "idle_ms",
        "stopping",
        "overdue",
        "hung",
        "running",
        "alive",
    ]
    assert seen["waiting"] == [{"kind": "intent", "target_type": "Parcel", "reason": "future", "rows": 1, "late_ms": 0, "stuck": 0}]
    assert [(pause["family"], pause["target"], pause["reason"]) for pause in seen["paused"]] == [("jobs", "", "for now")]
    assert list(listed) == [
        "intent_id",
        "kind",
        "reason",
        "tenant",
        "sender",
        "target_type",
        "target_id",
        "command",
        "due_in_ms",
        "attempts",
        "key",
        "last_error",
        "cursor",
    ]
    assert "payload" not in listed


def test_pages_follow_each_other_and_miss_nothing(cli: Callable[..., Any], app: Akter, operator: Operator) -> None:
    wanted = {app.send(app.actor(Parcel, f"p-{number}").move) for number in range(25)}
    found: list[str] = []
    after = None
    while page := operator.waiting(limit=7, after=after):
        found += [row.intent_id for row in page]
        after = page[-1].cursor
    assert (len(found), set(found)) == (25, wanted)
    said = cli("outbox", "list", "--limit", "20")
    cursor = said.stderr.split("more: --after ")[1].strip()
    rest = cli("outbox", "list", "--after", cursor)
    assert len(said.stdout.splitlines()) + len(rest.stdout.splitlines()) == 27
    assert cli("outbox", "list", "--after", "x").exit_code == 2


def test_one_row_is_found_by_its_id(app: Akter, operator: Operator) -> None:
    ids = [app.send(app.actor(Parcel, f"p-{number}").move) for number in range(3)]
    assert [row.intent_id for row in operator.waiting(intent_id=ids[1])] == [ids[1]]


def test_future_timers_hide_nothing_and_are_not_read_to_find_what_is_due(app: Akter, operator: Operator, rows: Rows) -> None:
    app.send(app.actor(Parcel, "p").move)
    rows(
        "INSERT INTO {akter}.actor_outbox (bucket, routing_key, tenant_id, actor_type, actor_id, intent_id, target_type, target_id,"
        " command, payload, caller, due_at_ms, scheduled_at_ms)"
        " SELECT b, b::bigint << 56, '', 'Parcel', 'x', 't-' || n, 'Parcel', 'x', 'move', '{}', '{}', 4000000000000, 4000000000000"
        " FROM (SELECT n, (n % 256) - 128 AS b FROM generate_series(1, 20000) AS n) AS _"
    )
    rows("ANALYZE {akter}.actor_outbox")
    counted = {count.reason: count.rows for count in operator.overview().waiting}
    assert counted == {"unknown type": 1, "future": 20000}
    assert len(operator.waiting(limit=50)) == 50
    statement = (
        "EXPLAIN (FORMAT JSON) SELECT * FROM {akter}.actor_outbox WHERE (bucket, kind, due_at_ms, intent_id) > (-1, 'intent', 0, '') "
        "ORDER BY bucket, kind, due_at_ms, intent_id LIMIT 50"
    )
    assert "actor_outbox_due_kind" in json.dumps(rows(statement)[0][0])


def test_a_killed_runner_vanishes_and_its_label_keeps_nobody_alive(
    cli: Callable[..., Any], start: Callable[..., Started], operator: Operator, rows: Rows, app: Akter
) -> None:
    process = start("run", "shop:app", "--label", "worker")
    until(operator.runners)
    process.signal(signal.SIGKILL)
    process.ended()
    assert "worker" in cli("status").output
    rows("UPDATE {akter}.actor_runners SET heartbeat_at_ms = heartbeat_at_ms - :silent", silent=SILENT_MS)
    assert "nobody is running a Runner" in cli("status").output
    assert operator.health(label="worker") == (False, "nobody is running a Runner whose label begins with 'worker'")
    with runner(app, label="worker"):
        until(lambda: operator.health(label="worker").good)
        assert operator.health(label="worker").said == "live runners whose label begins with 'worker': 1, looking for work: 1"
        assert [one.alive for one in operator.runners()] == [True, False]


def test_two_runners_of_one_label_are_two(app: Akter, operator: Operator) -> None:
    with runner(app, label="same"), runner(app, label="same"):
        until(lambda: len(operator.runners()) == 2)
        assert len({one.incarnation_id for one in operator.runners()}) == 2
    assert operator.runners() == []


def test_a_runner_that_never_came_through_a_pass_is_not_healthy(app: Akter, operator: Operator, rows: Rows) -> None:
    settle(app)
    rows("ALTER TABLE {akter}.actor_outbox RENAME COLUMN attempts TO tries")
    with runner(app):
        until(operator.runners)
        until(lambda: not operator.health(idle=1.0).good)
        assert "stuck: none of the live runners looked for work within 1 seconds: 1" in operator.health(idle=1.0).said
        rows("ALTER TABLE {akter}.actor_outbox RENAME COLUMN tries TO attempts")
        until(lambda: operator.health(idle=1.0).good)


def test_a_blocked_claim_is_seen_and_so_is_its_end(app: Akter, operator: Operator, akter_schema: str) -> None:
    with runner(app) as relay:
        until(lambda: operator.health(idle=0.5).good)
        with app.engine.connect() as beside, beside.begin():
            beside.exec_driver_sql(f'LOCK TABLE "{akter_schema}".actor_outbox IN EXCLUSIVE MODE')
            app.surroundings.wake()
            until(lambda: not operator.health(idle=0.5).good)
            assert [one.alive for one in operator.runners()] == [True]
        until(lambda: operator.health(idle=0.5).good)
        assert relay.lost == ()


def test_a_silent_heartbeat_is_seen_and_so_is_its_return(app: Akter, operator: Operator, akter_schema: str) -> None:
    with runner(app):
        until(lambda: operator.health(silent=0.5).good)
        with app.engine.connect() as beside, beside.begin():
            beside.exec_driver_sql(f'LOCK TABLE "{akter_schema}".actor_runners IN EXCLUSIVE MODE')
            until(lambda: not operator.health(silent=0.5).good)
        until(lambda: operator.health(silent=0.5).good)


def test_a_heartbeat_without_its_right_makes_health_bad_until_it_has_it_again(
    akter_app: Callable[..., Akter], akter_database: str, operator: Operator, rows: Rows, akter_engine: Engine, akter_schema: str
) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.engine import make_url

    from akter import schema

    name = f"worker_{os.getpid()}"
    rows(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    try:
        for statement in schema.grants(name, schema=akter_schema).split(";"):
            if statement.strip():
                rows(statement)
        url = make_url(akter_database).set(username=name, password="pw")
        app = akter_app(Parcel, engine=create_engine(url, pool_size=8, max_overflow=0))
        with runner(app):
            until(lambda: operator.health(silent=0.5).good)
            rows(f"REVOKE UPDATE ON {{akter}}.actor_runners FROM {name}")
            until(lambda: not operator.health(silent=0.5).good)
            app.send(app.actor(Parcel, "p").move)
            until(lambda: not operator.waiting())
            rows(f"GRANT UPDATE ON {{akter}}.actor_runners TO {name}")
            until(lambda: operator.health(silent=0.5).good)
        app.engine.dispose()
    finally:
        rows(f"DROP OWNED BY {name}")
        rows(f"DROP ROLE {name}")


def test_busy_is_not_stuck(app: Akter, operator: Operator, tmp_path: Path) -> None:
    app.send(app.actor(Parcel, "p").hold_until, str(tmp_path / "go"))
    with runner(app, lanes={"intents": 1}):
        until(lambda: [row.reason for row in operator.waiting()] == ["claimed"])
        busy_since = time.monotonic()
        # If it did not look while it is busy, the time since it looked would only grow.
        until(lambda: time.monotonic() > busy_since + 1.0 and operator.health(idle=1.0).good)
        assert [row.reason for row in operator.waiting()] == ["claimed"], "it is still busy"
        (tmp_path / "go").touch()


def test_health_needs_no_application_and_little_time(environment: dict[str, str], akter: Callable[..., Any]) -> None:
    before = os.times().children_user + os.times().children_system
    done = akter("health")
    took = os.times().children_user + os.times().children_system - before
    assert (done.code, done.out) == (1, "akter: nobody is running a Runner\n")
    assert took < 2.0


def test_health_says_when_there_is_no_way_to_the_database(akter: Callable[..., Any]) -> None:
    done = akter("health", AKTER_DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert (done.code, done.err.startswith("Error: there is no way to the database")) == (1, True)


def test_an_old_transaction_and_a_moved_clock_are_findings(
    app: Akter, operator: Operator, monkeypatch: pytest.MonkeyPatch, rows: Rows
) -> None:
    from akter import finding

    settle(app)
    monkeypatch.setattr(finding, "_OLD_TRANSACTION", 0)
    rows("UPDATE {akter}.actor_deployment SET clock_offset_ms = 7200000")
    with app.engine.connect() as beside, beside.begin():
        beside.exec_driver_sql("SELECT pg_current_xact_id()")
        time.sleep(0.1)
        found = {one.name: one.finding for one in operator.findings()}
    assert found["test clock"] == "a test moved this database's clock forward by 2h 0m"
    assert "(unnamed) is open for" in found["old transaction"]
