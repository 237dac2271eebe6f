"""One runner: how long a claimed row stays its own, what it does with rows it cannot deliver, and what it refuses to be told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from post import LEASE, Ledger, Mailbox, Node, Sender, eventually, handled, in_thread, letters, send_many

from akter import Actor, Akter, command
from akter.errors import AkterError, ConfigurationError
from akter.runner import Runner
from akter.store import presence
from akter.testing import advance, clear_faults, crash_next, inspect, pause_next, settle

Make = Callable[..., Node]
Outbox = Callable[[], list[Any]]
MINUTE = timedelta(minutes=1)
RIDING = pytest.mark.parametrize("ride", [True, False], ids=["ride", "two steps"])


class Stranger(Actor):
    """Is served by another application."""

    @command
    def greet(self) -> None: ...


@pytest.mark.conformance("REL-S-01", "REL-S-02", "DRAIN-09")
@pytest.mark.parametrize("point", ["after_claim", "before_delivery"])
def test_what_was_claimed_and_not_begun_is_given_back_by_a_stop(node: Make, beside: Any, outbox: Outbox, point: Any) -> None:
    one, other = node(started=True), node()
    with pause_next(one.app, point) as pause:
        one.app.send(one.app.actor(Mailbox, "m").take, "a")
        pause.wait()
        stopping = in_thread(lambda: one.runner.stop(grace=15.0))
        eventually("it is due again", lambda: outbox()[0][1] <= 0, seconds=12.0)
        assert outbox()[0][0] == 0, "an attempt that was not made"
        settle(other.app, other.runner)
        assert letters(other.app, "m") == ["a"]
    stopping.join(20)
    report = one.runner.stop()
    assert (report.clean, report.delivered, report.released, report.left) == (True, 0, 1, ())
    assert (handled.taken["a"], beside.count("actor_outbox")) == (1, 0)


@pytest.mark.conformance("REL-S-03")
def test_a_row_remembers_when_it_was_meant_for(node: Make, beside: Any) -> None:
    one = node()
    one.app.actor(Sender, "s").send_all(["a"], ["m"], after_ms=60_000, member="hit")
    ((meant,),) = beside("SELECT scheduled_at_ms FROM {akter}.actor_outbox")
    for attempt in (1, 2, 3):
        advance(one.app, MINUTE, one.runner)
        ((attempts, scheduled, due),) = beside("SELECT attempts, scheduled_at_ms, due_at_ms FROM {akter}.actor_outbox")
        assert (attempts, scheduled) == (attempt, meant)
        assert due > meant


@pytest.mark.conformance("REL-S-04")
def test_a_row_whose_settle_dies_waits_its_lease_or_its_backoff(node: Make, beside: Any, outbox: Outbox) -> None:
    one = node(ride=False)
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    crash_next(one.app, "before_outbox_delete")
    settle(one.app, one.runner)
    assert outbox()[0][0] == 1
    assert 35_000 < outbox()[0][1] <= 37_000
    beside("UPDATE {akter}.actor_outbox SET attempts = 12, due_at_ms = 0")
    crash_next(one.app, "before_outbox_delete")
    settle(one.app, one.runner)
    assert outbox()[0][0] == 13
    assert 254_000 < outbox()[0][1] <= 256_000
    advance(one.app, timedelta(seconds=256), one.runner)
    assert (handled.taken["a"], outbox()) == (1, [])


@pytest.mark.conformance("REL-S-05")
def test_the_longest_backoff_is_met_exactly(node: Make, beside: Any, ledger: Ledger) -> None:
    one = node(max_backoff=2_147_483.647)
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    beside("UPDATE {akter}.actor_outbox SET attempts = 30")
    crash_next(one.app, "before_delivery")
    settle(one.app, one.runner)
    assert ledger.waits()[-1] == ("claimed", 31, 2_147_483_647)


@pytest.mark.conformance("REL-S-06")
def test_later_messages_are_claimed_while_the_earliest_are_locked(node: Make, beside: Any, akter_database: str, akter_schema: str) -> None:
    one = node(lanes={"intents": 1})
    for letter in ("locked-1", "locked-2", "locked-3", "free-4"):
        one.app.send(one.app.actor(Mailbox, "one bucket").take, letter)
    engine = sqlalchemy.create_engine(akter_database, poolclass=sqlalchemy.NullPool)
    with engine.connect() as holder:
        earliest = f'SELECT payload FROM "{akter_schema}".actor_outbox ORDER BY due_at_ms, intent_id LIMIT 3 FOR UPDATE'
        locked = str([payload for (payload,) in holder.exec_driver_sql(earliest)])
        settle(one.app, one.runner)
        (free,) = handled.taken
        assert free not in locked
    engine.dispose()
    settle(one.app, one.runner)
    assert set(handled.taken.values()) == {1}
    assert len(handled.taken) == 4


@pytest.mark.conformance("REL-S-10")
def test_two_thousand_due_rows_drain_in_one_advance(node: Make, beside: Any) -> None:
    one = node(lanes={"intents": 16})
    names = [f"letter-{number}" for number in range(2000)]
    one.app.actor(Sender, "s").send_all(names, [f"box-{number % 100}" for number in range(2000)], after_ms=60_000)
    settle(one.app, one.runner)
    assert not handled.taken
    advance(one.app, MINUTE, one.runner)
    assert handled.taken == dict.fromkeys(names, 1)
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("REL-S-11")
@pytest.mark.parametrize(
    "options",
    [
        {"lanes": {"intents": -1}},
        {"lanes": {"intents": 0, "jobs": 0}},
        {"lanes": {"intents": 1_000_001}},
        {"lanes": {"intents": True}},
        {"lanes": {"letters": 1}},
        {"lanes": 5},
        {"poll": 0.0},
        {"poll": float("nan")},
        {"poll": "1"},
        {"poll": 2_147_483.648},
        {"claim_lease": 0.0},
        {"claim_lease": 9.9},
        {"max_backoff": 0.0},
        {"max_backoff": None},
        {"heartbeat": -1.0},
        {"pass_limit": 0},
        {"group": 33},
        {"ranges": ()},
        {"ranges": ((0, 128),)},
        {"ranges": ((1, 0),)},
        {"ranges": ((-128, 0), (0, 127))},
        {"seats": 3},
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_refused(node: Make, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Runner: "):
        node(**options)


@pytest.mark.conformance("REL-S-11")
def test_settings_at_the_edge_are_taken(node: Make) -> None:
    one = node(lanes={"intents": 1}, poll=0.001, claim_lease=2_147_483.647, max_backoff=0.001, pass_limit=1, group=1, ranges=((-128, 127),))
    assert one.runner.lease == 2_147_483.647


class Night(Actor):
    """Takes its time, and says so."""

    @command(timeout=45.0)
    def pass_by(self) -> None: ...


def test_a_lease_that_ends_before_a_command_may_is_refused_with_the_remedy(node: Make) -> None:
    said = (
        r"^Runner: claim_lease is 44\.5 seconds, and Night\.pass_by may run for 45, so its messages could never be finished: "
        r"make claim_lease longer, or leave it out, or declare a shorter timeout=$"
    )
    with pytest.raises(ConfigurationError, match=said):
        node(Mailbox, Night, claim_lease=44.5)
    assert node(Mailbox, Night, claim_lease=45.0).runner.lease == 45.0
    assert node(Mailbox, claim_lease=10.0).runner.lease == 10.0
    # 37 seconds at least; longer, by the wait for the lock and some, when a command may run longer.
    assert (node(Mailbox).runner.lease, node(Mailbox, Night).runner.lease) == (37.0, 52.0)


def test_a_pool_too_small_for_a_runner_is_refused_with_the_numbers(node: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"holds 2 connections, and a runner needs 3"):
        node(pool=2)


def test_more_seats_than_connections_neither_lock_up_nor_time_out(node: Make, beside: Any) -> None:
    one = node(pool=3, lanes={"intents": 64})
    running, most, lock = [0], [0], threading.Lock()

    def slow(mailbox: Mailbox, letter: str) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most)
            most.append(running[0])
        time.sleep(0.03)
        with lock:
            running[0] -= 1

    handled.on_take = slow
    send_many(one.app, [f"letter-{number}" for number in range(20)])
    settle(one.app, one.runner)
    assert set(handled.taken.values()) == {1}
    assert (len(handled.taken), max(most)) == (20, 1)
    assert beside.count("actor_outbox") == 0


def test_rows_of_types_nobody_serves_here_stay_due_and_unclaimed(node: Make, beside: Any) -> None:
    one, elsewhere = node(), node(Stranger, Mailbox, Sender)
    with one.app.engine.begin() as connection:
        elsewhere.app.within(connection).send_many([(elsewhere.app.actor(Stranger, f"s{n}").greet, {}) for n in range(600)])
    one.app.send(one.app.actor(Mailbox, "m").take, "mine")
    settle(one.app, one.runner)
    assert handled.taken == {"mine": 1}
    assert beside("SELECT count(*), max(attempts) FROM {akter}.actor_outbox") == [(600, 0)]


@pytest.mark.parametrize("target", ["", "Mailbox"])
def test_what_is_paused_is_not_claimed(node: Make, beside: Any, target: str) -> None:
    one = node()
    translated = {"schema_translate_map": {"akter": one.app.schema}}
    with one.app.engine.begin() as connection:
        assert presence.pause(connection.execution_options(**translated), "intents", target, "repair")
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    one.app.actor(Sender, "s").send_all([], [])
    settle(one.app, one.runner)
    assert not handled.taken
    assert beside("SELECT attempts FROM {akter}.actor_outbox") == [(0,)]
    with one.app.engine.begin() as connection:
        assert presence.resume(connection.execution_options(**translated), "intents", target)
    settle(one.app, one.runner)
    assert handled.taken == {"a": 1}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("payload = '{'", "PayloadInvalid"),
        ("payload = '{\"letter\": 5}'", "PayloadInvalid"),
        ("command = 'gone'", "UnknownActor: Mailbox has no command 'gone'"),
        ("caller = 'nobody'", "DecodeError"),
        ('caller = \'{"source":"actor","on_behalf_of":[]}\'', "IndexError"),
    ],
    ids=["no json", "wrong type", "unknown command", "no caller", "half a caller"],
)
def test_a_row_that_cannot_be_read_waits_and_keeps_nobody_waiting(
    node: Make, beside: Any, outbox: Outbox, damage: str, reason: str
) -> None:
    one = node(lanes={"intents": 4})
    send_many(one.app, [f"bad-{number}" for number in range(12)])
    beside(f"UPDATE {{akter}}.actor_outbox SET {damage}".replace(":", r"\:"))
    one.app.send(one.app.actor(Mailbox, "m").take, "good")
    settle(one.app, one.runner)
    assert handled.taken == {"good": 1}
    rows = outbox()
    assert [row[0] for row in rows] == [1] * 12
    assert all(0 < row[1] <= 1000 and row[2].startswith(reason) for row in rows), rows


def test_an_id_used_for_something_else_is_parked_and_not_tried_again(node: Make, outbox: Outbox) -> None:
    one = node()
    with one.app.command_id("order-1", scope="shop"):
        one.app.send(one.app.actor(Mailbox, "m").take, "a")
    settle(one.app, one.runner)
    with one.app.command_id("order-1", scope="shop"):
        one.app.send(one.app.actor(Mailbox, "m").take, "b")
    settle(one.app, one.runner)
    advance(one.app, timedelta(days=300), one.runner)
    ((attempts, _, error),) = outbox()
    assert (attempts, dict(handled.taken)) == (1, {"a": 1})
    assert error.startswith("parked: CommandConflict")


@RIDING
@pytest.mark.parametrize("together", [1, 3], ids=["alone", "together"])
@pytest.mark.parametrize(
    "point", ["after_claim", "before_delivery", "before_handler", "before_commit", "after_commit", "before_outbox_delete"]
)
@pytest.mark.conformance("OUT-06", "OUT-07", "PIPE-09")
def test_a_message_takes_effect_once_wherever_its_delivery_dies(
    node: Make, beside: Any, outbox: Outbox, point: Any, together: int, ride: bool
) -> None:
    one = node(ride=ride)
    # The first of a kind is delivered alone; from then on they share.
    one.app.send(one.app.actor(Mailbox, "first").take, "first")
    settle(one.app, one.runner)
    names = [f"letter-{number}" for number in range(together)]
    send_many(one.app, names)
    crash_next(one.app, point)
    settle(one.app, one.runner)
    rode = ride and point in ("after_commit", "before_outbox_delete")
    if rode:
        assert outbox() == []
    else:
        assert [attempts for attempts, _, _ in outbox()] == [1] * together
        advance(one.app, LEASE, one.runner)
    if ride and point == "before_outbox_delete":
        with pytest.raises(AkterError, match="before_outbox_delete"):
            clear_faults(one.app)
    else:
        clear_faults(one.app)
    assert outbox() == []
    for letter in names:
        found = inspect(one.app, one.app.actor(Mailbox, f"box-{letter}"))
        assert (found.state, len(found.receipts), len(found.events)) == ({"letters": [letter]}, 1, 1)
    runs = 1 if point in ("after_claim", "before_delivery", "before_handler", "after_commit", "before_outbox_delete") else 2
    assert handled.taken[names[0]] == runs


@pytest.mark.parametrize("exit", [False, True], ids=["error", "exit"])
def test_whatever_a_handler_raises_is_a_failed_delivery_and_no_dead_thread(node: Make, outbox: Outbox, exit: bool) -> None:
    one = node(lanes={"intents": 1})
    one.app.send(one.app.actor(Mailbox, "m").hit, "torn", exit)
    settle(one.app, one.runner)
    ((attempts, due_in, error),) = outbox()
    assert attempts == 1
    assert 0 < due_in <= 1000
    assert error.startswith("SystemExit" if exit else "Defect")
    one.app.send(one.app.actor(Mailbox, "m").take, "whole")
    settle(one.app, one.runner)
    assert handled.taken["whole"] == 1


@RIDING
def test_a_claim_that_outlived_its_lease_never_reaches_its_handler(node: Make, beside: Any, ride: bool) -> None:
    slow, other = node(ride=ride, claim_lease=0.4, app={"execution": 0.4}), node(ride=ride)
    slow.app.send(slow.app.actor(Mailbox, "m").hit, "a")
    with pause_next(slow.app, "before_delivery") as pause:
        thread = in_thread(lambda: settle(slow.app, slow.runner))
        pause.wait()
        ((until,),) = beside("SELECT due_at_ms FROM {akter}.actor_outbox")
        eventually("the lease is over", lambda: beside("SELECT extract(epoch FROM clock_timestamp()) * 1000 > :u", u=until + 5)[0][0])
        settle(other.app, other.runner)
        before = beside("SELECT attempts, due_at_ms, last_error FROM {akter}.actor_outbox")
    thread.join(20)
    assert before[0][0] == 2
    assert handled.taken == {"a": 1}
    assert slow.runner._deliverer.counts.stale >= 1


def test_messages_of_one_actor_that_are_claimed_together_keep_their_order(node: Make, beside: Any) -> None:
    one = node(lanes={"intents": 8})
    for round in ("alone", "together"):
        sent = [f"{round}-{number}" for number in range(4)]
        for letter in sent:
            one.app.send(one.app.actor(Mailbox, "busy").take, letter)
            beside("SELECT pg_sleep(0.002)")
        send_many(one.app, [f"{round}-other-{number}" for number in range(4)])
        settle(one.app, one.runner)
        assert letters(one.app, "busy")[-4:] == sent
    assert set(handled.taken.values()) == {1}
    assert one.runner._deliverer.counts.groups > 0


def test_messages_that_ask_for_messages_without_end_are_told_from_a_backlog(node: Make) -> None:
    one = node()
    one.app.send(one.app.actor(Sender, "s").ping)
    with pytest.raises(AkterError, match="the outbox does not settle"):
        settle(one.app, one.runner)


def test_a_stopped_runner_drains_nothing(node: Make) -> None:
    one = node()
    one.runner.stop()
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    with pytest.raises(AkterError, match="stopped"):
        one.runner.drain()
    with pytest.raises(AkterError, match="stopped"):
        one.runner.start()


def test_a_drain_beside_the_running_loop_ends_when_all_is_delivered(node: Make, beside: Any) -> None:
    one = node(started=True, lanes={"intents": 4})
    send_many(one.app, [f"letter-{number}" for number in range(200)])
    one.runner.wake()
    one.runner.drain()
    assert beside.count("actor_outbox") == 0
    assert set(handled.taken.values()) == {1}


def test_capacity_goes_round_the_ranges(node: Make) -> None:
    one = node(lanes={"intents": 1}, ranges=((-128, -1), (0, 127)))
    boxes = [f"box-{number}" for number in range(40)]
    low = [box for box in boxes if inspect_bucket(one.app, box) < 0]
    high = [box for box in boxes if inspect_bucket(one.app, box) >= 0]
    send_many(one.app, boxes, boxes)
    one.runner.drain()
    assert len(handled.taken) == 40
    first = [name in low for name in handled.order[: 2 * min(len(low), len(high))]]
    assert first == [first[0], not first[0]] * min(len(low), len(high))


def inspect_bucket(app: Akter, box: str) -> int:
    return int(getattr(app.actor(Mailbox, box), "_address").bucket)  # noqa: B009 - a handle's own attribute, untyped on purpose


def test_runners_of_one_process_get_their_threads_back(node: Make) -> None:
    one = node(started=True)
    send_many(one.app, [f"letter-{number}" for number in range(50)])
    one.runner.drain()
    one.runner.stop()
    eventually("no thread is left", lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("akter-intents")])
    assert isinstance(one.runner, Runner)
