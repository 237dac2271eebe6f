"""Schedules: when their rows are written, that each of their times counts once, and what becomes of them when the code changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from belfry import DAILY, DAY, HOUR, HOURLY, Bell, Chime, Closed, Quiet, Rows, Second, Sun, Tower, rings, rung
from post import LEASE, Mailbox, Node, in_thread

from akter import NotCreated, PayloadInvalid
from akter.identity import CommandId
from akter.operating import Operator
from akter.testing import advance, crash_next, inspect, pause_next, receipts, settle

Make = Callable[..., Node]
THREE = 3 * 3_600_000
LATER = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    rung.clear()
    yield
    rung.clear()


@pytest.fixture
def rows(beside: Any) -> Rows:
    return Rows(beside)


@pytest.mark.conformance("CRON-01")
@pytest.mark.parametrize("refused", [False, True], ids=["a success", "a rejection"])
def test_the_first_turn_writes_one_row_for_each_schedule_and_later_ones_none(node: Make, rows: Rows, refused: bool) -> None:
    app = node(Bell).app
    bell = app.actor(Bell, "b")
    if refused:
        with pytest.raises(Closed):
            bell.refuse()
    else:
        bell.hang()
    first = rows()
    assert [(row.actor, row.key, row.command, row.attempts) for row in first] == [("b", HOURLY, "strike", 0), ("b", DAILY, "ring", 0)]
    assert [row.due_at_ms % 3_600_000 for row in first] == [0, 0]
    assert first[1].due_at_ms % 86_400_000 == THREE
    assert all(0 < row.wait <= 86_400_000 for row in first)
    assert first[0].wait <= 3_600_000
    bell.hang()
    node(Bell).app.actor(Bell, "b").hang()
    assert [row.id for row in rows()] == [row.id for row in first]


@pytest.mark.conformance("CRON-02")
def test_an_actor_that_does_not_exist_has_no_schedule(node: Make, rows: Rows) -> None:
    tower = node(Tower).app.actor(Tower, "t")
    with pytest.raises(NotCreated):
        tower.visit()
    assert rows() == []
    with pytest.raises(Closed):
        tower.build(refuse=True)
    assert rows() == [], "a creation that was refused left no actor either"
    tower.build()
    assert [row.command for row in rows()] == ["light"]


@pytest.mark.conformance("CRON-03")
def test_the_first_time_is_counted_from_the_commit(node: Make, rows: Rows) -> None:
    one = node(Bell)
    with pause_next(one.app, "before_commit") as pause:
        turn = in_thread(one.app.actor(Bell, "b").hang)
        pause.wait()
        admitted = rows.now_ms
        # Past the next three o'clock, and not past the one after it.
        advance(one.app, timedelta(milliseconds=(THREE - admitted) % 86_400_000) + LATER)
        pause.release()
        turn.join(20)
    assert rows.of(DAILY).wait > 86_400_000 - 120_000, "the one that passed while the turn ran is not made up for"
    assert rows.of(DAILY).due_at_ms % 86_400_000 == THREE


@pytest.mark.conformance("CRON-04")
def test_a_pending_tick_runs_the_command_that_the_code_names_now(node: Make, rows: Rows) -> None:
    old, new = node(Bell), node(Chime)
    old.app.actor(Bell, "b").hang()
    tick = rows.when_due(old.app)
    settle(new.app, new.runner)
    settle(new.app, new.runner)
    assert rung.times == {"b chime": 1}
    assert [receipt.command_id for receipt in receipts(new.app, new.app.actor(Chime, "b"), "chime")] == [tick.id]
    assert rows.of(DAILY).command == "chime"


@pytest.mark.conformance("CRON-05")
def test_a_tick_that_fired_under_its_old_command_does_not_fire_under_the_new_one(node: Make, rows: Rows) -> None:
    old, new = node(Bell, ride=False), node(Chime)
    old.app.actor(Bell, "b").hang()
    tick = rows.when_due(old.app)
    crash_next(old.app, "before_outbox_delete", command_id=tick.id)
    settle(old.app, old.runner)
    assert (rung.times["b ring"], rows.of(DAILY).id) == (1, tick.id)
    advance(new.app, LEASE, new.runner)
    assert rung.times["b chime"] == 0
    after = rows.of(DAILY)
    assert (after.command, after.attempts, after.scheduled_at_ms - tick.scheduled_at_ms) == ("chime", 0, 86_400_000)


@pytest.mark.conformance("CRON-06")
@pytest.mark.parametrize("ride", [True, False], ids=["ride", "two steps"])
def test_a_due_tick_runs_once_as_the_system_and_its_row_moves_on(node: Make, rows: Rows, ride: bool) -> None:
    one = node(Bell, ride=ride)
    bell = one.app.actor(Bell, "b")
    bell.hang()
    tick = rows.when_due(one.app)
    settle(one.app, one.runner)
    settle(one.app, one.runner)
    assert (rung.times["b ring"], rings(one.app, bell)) == (1, 1)
    (receipt,) = receipts(one.app, bell, "ring")
    assert (receipt.command_id, receipt.caller_key) == (tick.id, '["System","cron",["default","Bell","b"],null]')
    assert receipt.expires_at_ms == tick.scheduled_at_ms + 86_400_000, "a day is the retry window"
    after = rows.of(DAILY)
    assert (after.scheduled_at_ms, after.due_at_ms) == (tick.scheduled_at_ms + 86_400_000,) * 2
    assert (after.attempts, after.last_error, after.command) == (0, None, "ring")
    assert after.id != tick.id
    assert CommandId.parse(after.id).expires_at_ms == after.due_at_ms + 86_400_000


@pytest.mark.conformance("CRON-07")
@pytest.mark.parametrize(
    ("down", "fired"), [(timedelta(hours=23, minutes=59), 1), (timedelta(hours=24, minutes=1), 0), (timedelta(days=30, hours=5), 0)]
)
def test_after_a_time_without_runners_a_tick_fires_once_or_is_skipped(
    node: Make, rows: Rows, down: timedelta, fired: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = node(Bell)
    one.app.actor(Bell, "b").hang()
    rows.when_due(one.app, late=down)
    settle(one.app, one.runner)
    assert rung.times["b ring"] == fired
    after = rows.of(DAILY)
    assert (0 < after.wait <= 86_400_000, after.due_at_ms % 86_400_000, after.attempts) == (True, THREE, 0)
    said = [getattr(record, "akter_schedules", []) for record in caplog.records if record.message == "schedule.skipped"]
    assert any(f"Bell {DAILY}" in schedules for schedules in said) is (not fired)


@pytest.mark.conformance("CRON-07")
def test_how_late_a_tick_may_be_is_a_setting_of_the_runner(node: Make, rows: Rows) -> None:
    one = node(Bell, skip_after=60.0)
    one.app.actor(Bell, "b").hang()
    rows.when_due(one.app, late=timedelta(seconds=90))
    settle(one.app, one.runner)
    assert rung.times["b ring"] == 0
    rows.when_due(one.app, late=timedelta(seconds=1))
    settle(one.app, one.runner)
    assert rung.times["b ring"] == 1


@pytest.mark.conformance("CRON-08")
@pytest.mark.parametrize(("ride", "point"), [(False, "before_outbox_delete"), (False, "after_commit"), (True, "before_commit")])
def test_after_a_crash_between_receipt_and_row_the_row_moves_on_once(node: Make, rows: Rows, ride: bool, point: Any) -> None:
    one = node(Bell, ride=ride)
    bell = one.app.actor(Bell, "b")
    bell.hang()
    tick = rows.when_due(one.app)
    crash_next(one.app, point, command_id=tick.id)
    settle(one.app, one.runner)
    assert rows.of(DAILY).id == tick.id
    advance(one.app, LEASE, one.runner)
    settle(one.app, one.runner)
    assert rings(one.app, bell) == 1
    after = rows.of(DAILY)
    assert (after.scheduled_at_ms - tick.scheduled_at_ms, after.attempts) == (86_400_000, 0)
    assert len(receipts(one.app, bell, "ring")) == 1


@pytest.mark.conformance("CRON-09")
def test_a_claimed_tick_fires_although_the_actor_was_stopped_meanwhile(node: Make, rows: Rows) -> None:
    one = node(Bell)
    bell = one.app.actor(Bell, "b")
    bell.hang()
    tick = rows.when_due(one.app)
    with pause_next(one.app, "after_claim", command_id=tick.id) as pause:
        relay = in_thread(lambda: settle(one.app, one.runner))
        pause.wait()
        bell.stop()
        pause.release()
        relay.join(20)
    assert (rung.times["b stopped"], rung.times["b ring"], rings(one.app, bell)) == (1, 0, 0)
    assert rows.of(DAILY).scheduled_at_ms > tick.scheduled_at_ms


@pytest.mark.conformance("CRON-10")
def test_an_application_cannot_touch_the_rows_of_schedules(node: Make, rows: Rows) -> None:
    one = node(Bell)
    bell = one.app.actor(Bell, "b")
    bell.hang()
    for misuse in (lambda actor: actor.after(HOUR, key=DAILY).send(actor.hang), lambda actor: actor.cancel(DAILY)):
        seen: list[BaseException] = []

        def inside(actor: Any, misuse: Any = misuse, seen: list[BaseException] = seen) -> None:
            with pytest.raises(PayloadInvalid, match="reserved") as refused:
                misuse(actor)
            seen.append(refused.value)

        rung.inside = inside
        rows.when_due(one.app, HOURLY)
        settle(one.app, one.runner)
        assert len(seen) >= 1
    assert [row.command for row in rows()] == ["strike", "ring"]


@pytest.mark.conformance("CRON-11")
def test_a_row_that_is_missing_is_written_again_by_the_next_process(node: Make, rows: Rows, beside: Any) -> None:
    node(Bell).app.actor(Bell, "b").hang()
    kept = rows.of(HOURLY)
    beside("DELETE FROM {akter}.actor_outbox WHERE timer_key = :key", key=DAILY)
    node(Bell).app.actor(Bell, "b").hang()
    assert rows.of(HOURLY).id == kept.id
    assert rows.of(DAILY).due_at_ms % 86_400_000 == THREE


@pytest.mark.conformance("CRON-11")
def test_the_process_that_wrote_it_writes_it_again_after_a_while(
    node: Make, rows: Rows, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell = node(Bell).app.actor(Bell, "b")
    bell.hang()
    beside("DELETE FROM {akter}.actor_outbox")
    bell.hang()
    assert rows() == [], "it remembers them"
    monkeypatch.setattr("akter.planting._LONG", 0.0)
    bell.hang()
    bell.hang()
    assert [row.key for row in rows()] == [HOURLY, DAILY]


def test_a_schedule_that_comes_with_a_deploy_is_written_by_the_next_turn(node: Make, rows: Rows) -> None:
    node(Quiet).app.actor(Quiet, "b").hang()
    assert rows() == []
    node(Bell).app.actor(Bell, "b").hang()
    assert [row.key for row in rows()] == [HOURLY, DAILY]


def test_an_actor_with_an_id_of_its_own_making_has_its_schedules_too(node: Make, rows: Rows) -> None:
    app = node(Bell).app
    bells = [app.new(Bell) for _ in range(2)]
    for bell in bells:
        bell.hang()
    assert sorted({row.actor for row in rows()}) == sorted(bell.id for bell in bells)
    assert len(rows()) == 4


def test_a_tick_that_is_rejected_has_happened(node: Make, rows: Rows) -> None:
    def refuse(actor: Any) -> None:
        raise Closed

    one = node(Bell)
    bell = one.app.actor(Bell, "b")
    bell.hang()
    tick = rows.when_due(one.app)
    rung.inside = refuse
    settle(one.app, one.runner)
    after = rows.of(DAILY)
    assert (rung.times["b ring"], rings(one.app, bell)) == (1, 0)
    assert (after.scheduled_at_ms - tick.scheduled_at_ms, after.attempts, after.last_error) == (86_400_000, 0, None)
    assert [receipt.command_id for receipt in receipts(one.app, bell, "ring")] == [tick.id]


def test_the_next_tick_of_a_schedule_does_not_begin_before_this_one_has_ended(node: Make, rows: Rows, beside: Any) -> None:
    one, other = node(Second), node(Second)
    second = one.app.actor(Second, "b")
    second.begin()
    (tick,) = rows()
    advance(one.app, timedelta(milliseconds=max(0, tick.wait) + 1))
    with pause_next(one.app, "before_commit", command_id=tick.id) as pause:
        relay = in_thread(one.runner.relay.run_pass)
        pause.wait()
        beside.until("three more of its times passed", lambda: rows.now_ms > tick.due_at_ms + 3_000)
        other.runner.drain()
        assert (rung.times["b tell"], other.runner._deliverer.counts.delivered) == (1, 0)
        pause.release()
        relay.join(20)
        assert one.runner.relay.wait_idle(20)
    (after,) = rows()
    assert rung.times["b tell"] == 1
    assert after.scheduled_at_ms - tick.scheduled_at_ms >= 4_000, "what was missed meanwhile is not made up for"


@pytest.mark.conformance("CRON-12")
def test_a_tick_whose_schedule_left_the_code_waits_for_a_process_that_knows_it(
    node: Make, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "akter.relay")
    old, new = node(Bell), node(Quiet)
    old.app.actor(Bell, "b").hang()
    tick = rows.when_due(new.app)
    settle(new.app, new.runner)
    left = rows.of(DAILY)
    assert (left.id, left.attempts, 0 < left.wait <= 60_000) == (tick.id, 0, True)
    assert left.last_error == "this schedule is not in the code of the runner that looked last"
    assert "schedule.unknown" in caplog.messages
    advance(old.app, timedelta(minutes=2), old.runner)
    assert rung.times["b ring"] == 1
    assert rows.of(DAILY).last_error is None


@pytest.mark.conformance("CRON-12")
def test_a_tick_that_nobody_knows_for_a_day_is_deleted(node: Make, rows: Rows, caplog: pytest.LogCaptureFixture) -> None:
    old, new = node(Bell), node(Quiet)
    old.app.actor(Bell, "b").hang()
    rows.when_due(new.app, late=DAY - HOUR)
    settle(new.app, new.runner)
    assert (rows.of(DAILY).attempts, rows.of(DAILY).late >= 23 * 3_600_000) == (0, True)
    advance(new.app, timedelta(hours=1, minutes=10), new.runner)
    assert (rows(), dict(rung.times)) == ([], {})
    assert "schedule.removed" in caplog.messages


@pytest.mark.conformance("CRON-13")
def test_a_runner_writes_the_rows_of_singletons_when_it_starts(node: Make, rows: Rows) -> None:
    one = node(Sun, Bell)
    one.app.verify()
    assert rows() == []
    one.runner.start()
    (row,) = rows()
    assert (row.actor, row.key, row.command, row.due_at_ms % 86_400_000) == ("singleton", DAILY, "rise", THREE)
    found = inspect(one.app, one.app.actor(Sun))
    assert (found.generation, found.created, found.receipts) == (0, False, ())
    with one.app.tenant("acme"):
        one.app.actor(Sun).shine()
    assert [found.id for found in rows()] == [row.id], "schedules of singletons are the default tenant's"


@pytest.mark.conformance("CRON-14")
def test_a_runner_without_the_type_does_not_claim_its_ticks(node: Make, rows: Rows) -> None:
    stranger, one = node(Mailbox), node(Bell)
    one.app.actor(Bell, "b").hang()
    tick = rows.when_due(one.app)
    settle(stranger.app, stranger.runner)
    assert (rows.of(DAILY).attempts, rows.of(DAILY).due_at_ms) == (0, tick.due_at_ms)
    settle(one.app, one.runner)
    assert rung.times["b ring"] == 1


@pytest.mark.conformance("CRON-18")
def test_an_interval_counts_from_the_epoch_and_missed_times_are_made_up_for_once(node: Make, rows: Rows) -> None:
    one = node(Bell)
    one.app.actor(Bell, "b").hang()
    tick = rows.when_due(one.app, HOURLY, late=timedelta(hours=7, minutes=30))
    settle(one.app, one.runner)
    settle(one.app, one.runner)
    assert rung.times["b strike"] == 1
    after = rows.of(HOURLY)
    assert after.due_at_ms - tick.due_at_ms == 8 * 3_600_000
    assert after.due_at_ms % 3_600_000 == 0


@pytest.mark.conformance("CRON-19")
def test_three_runners_share_one_row_of_a_singleton_and_each_time_fires_once(node: Make, rows: Rows, start: Any) -> None:
    nodes = [node(Sun) for _ in range(3)]
    together = threading.Barrier(3)

    def begin(one: Node) -> None:
        one.app.verify()
        together.wait(20)
        one.runner.start()

    for started in [start(begin, one) for one in nodes]:
        started.result(20)
    (row,) = rows()
    for day in range(1, 4):
        rows.when_due(nodes[0].app, actor="singleton")
        for drained in [start(one.runner.drain) for one in nodes]:
            drained.result(20)
        assert rung.times["singleton rise"] == day
    (after,) = rows()
    assert (after.scheduled_at_ms - row.scheduled_at_ms, after.id == row.id) == (3 * 86_400_000, False)


def test_a_tick_that_fails_is_tried_again_until_its_time_is_over(node: Make, rows: Rows) -> None:
    def broken(actor: Any) -> None:
        raise ValueError("cracked")

    one = node(Bell)
    one.app.actor(Bell, "b").hang()
    tick = rows.when_due(one.app)
    rung.inside = broken
    settle(one.app, one.runner)
    failed = rows.of(DAILY)
    assert (failed.id, failed.attempts, failed.scheduled_at_ms) == (tick.id, 1, tick.scheduled_at_ms)
    assert "cracked" in (failed.last_error or "")
    advance(one.app, HOUR, one.runner)
    assert (rung.times["b ring"], rows.of(DAILY).attempts) == (2, 2)
    advance(one.app, DAY, one.runner)
    after = rows.of(DAILY)
    assert (rung.times["b ring"], after.attempts, after.last_error) == (2, 0, None)
    assert after.wait > 0


def test_a_tick_of_an_actor_that_was_reset_is_skipped_until_it_exists_again(node: Make, rows: Rows) -> None:
    one = node(Tower)
    tower = one.app.actor(Tower, "b")
    tower.build()
    Operator(one.app.engine, schema=one.app.schema, by="ada").reset("Tower", "b")
    tick = rows.when_due(one.app)
    settle(one.app, one.runner)
    skipped = rows.of(DAILY)
    assert (skipped.scheduled_at_ms - tick.scheduled_at_ms, skipped.attempts, skipped.last_error) == (86_400_000, 0, None)
    assert dict(rung.times) == {}
    tower.build()
    rows.when_due(one.app)
    settle(one.app, one.runner)
    assert dict(rung.times) == {"b light": 1}


def test_a_deleted_actor_has_no_schedule_and_its_next_life_has_one(node: Make, rows: Rows) -> None:
    one = node(Bell)
    bell = one.app.actor(Bell, "b")
    bell.hang()
    Operator(one.app.engine, schema=one.app.schema, by="ada").delete("Bell", "b")
    assert rows() == []
    bell.hang()
    assert [row.key for row in rows()] == [HOURLY, DAILY]


def test_the_ticks_of_many_actors_share_transactions_and_each_fires_once(node: Make, rows: Rows) -> None:
    one = node(Bell)
    for number in range(40):
        one.app.actor(Bell, f"b{number:02}").hang()
    for day in (1, 2):
        rows.when_due(one.app, actor="b00")
        settle(one.app, one.runner)
        assert {rung.times[f"b{number:02} ring"] for number in range(40)} == {day}
    assert one.runner._deliverer.counts.groups > 0
    assert {(row.attempts, row.due_at_ms % 86_400_000) for row in rows() if row.key == DAILY} == {(0, THREE)}


def test_a_message_that_is_delivered_in_a_group_writes_the_rows_of_its_actor_too(node: Make, rows: Rows) -> None:
    one = node(Bell)
    one.runner._deliverer.pace.saw(one.app.actors["Bell"].members["hang"], 0.0, used_sql=False)
    with one.app.engine.begin() as connection:
        one.app.within(connection).send_many([(one.app.actor(Bell, f"b{number}").hang, {}) for number in range(5)])
    settle(one.app, one.runner)
    assert len(rows()) == 10
    assert one.runner._deliverer.counts.groups == 1
