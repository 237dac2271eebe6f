"""Messages delivered in one transaction: what one of them does never becomes another's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from post import LEASE, Arrived, Mailbox, Node, eventually, handled, in_thread, letters, send_many

from akter import tables
from akter.testing import advance, inspect, pause_next, receipts, settle

Make = Callable[..., Node]
SLOW = 0.4
KINDS = ("take", "refuse", "hit", "file", "breaks_the_statement")


@pytest.fixture(params=[True, False], ids=["ride", "two steps"])
def one(request: pytest.FixtureRequest, node: Make, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A process whose runner takes every command for a quick one, as it would be after a while, on however busy a machine."""
    for module in ("runner.group", "pace"):
        monkeypatch.setattr(f"akter.{module}.SLOW", SLOW)
    fresh = node(ride=request.param, app={"lock": 20.0})
    members = fresh.app.actors["Mailbox"].members
    for kind in KINDS:
        fresh.runner._deliverer.pace.saw(members[kind], 0.0, used_sql=False)
    return fresh


def mixed(app: Any, **kinds: str) -> None:
    """Send letters to mailboxes of their own in one transaction, each to the command named."""
    with app.engine.begin() as connection:
        messages = [(getattr(app.actor(Mailbox, f"box-{letter}"), kind), {"letter": letter}) for letter, kind in kinds.items()]
        app.within(connection).send_many(messages)


def transactions(beside: Any) -> dict[str, str]:
    """The transaction that wrote each mailbox's receipt."""
    return dict(beside("SELECT actor_id, xmin::text FROM {akter}.actor_receipts WHERE actor_type = 'Mailbox'"))


def test_quick_messages_of_different_actors_share_a_transaction(one: Node, beside: Any) -> None:
    send_many(one.app, [f"letter-{number}" for number in range(20)])
    settle(one.app, one.runner)
    assert len(transactions(beside)) == 20
    # Eight threads, so eight rows; then as many as there are, because all of them may share.
    assert len(set(transactions(beside).values())) == 2
    assert beside.count("actor_outbox") == 0


def test_a_command_is_delivered_alone_until_it_was_seen_to_be_quick(node: Make, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("runner.group", "pace"):
        monkeypatch.setattr(f"akter.{module}.SLOW", SLOW)
    one = node()
    send_many(one.app, ["a", "b"])
    settle(one.app, one.runner)
    assert len(set(transactions(beside).values())) == 2
    send_many(one.app, ["c", "d"])
    settle(one.app, one.runner)
    assert len({transactions(beside)[box] for box in ("box-c", "box-d")}) == 1


@pytest.mark.conformance("GRP-01")
def test_a_rejection_keeps_its_receipt_and_its_neighbours_stay(one: Node, beside: Any) -> None:
    mixed(one.app, a="take", b="refuse", c="take")
    settle(one.app, one.runner)
    assert [letters(one.app, f"box-{letter}") for letter in "abc"] == [["a"], [], ["c"]]
    (receipt,) = receipts(one.app, one.app.actor(Mailbox, "box-b"))
    assert "Returned" in str(receipt.outcome)
    assert len(set(transactions(beside).values())) == 1
    assert (beside.count("actor_outbox"), set(handled.taken.values())) == (0, {1})


@pytest.mark.conformance("GRP-01")
def test_a_defect_leaves_itself_out(one: Node, beside: Any, outbox: Any) -> None:
    mixed(one.app, a="take", b="hit", c="take")
    settle(one.app, one.runner)
    assert [letters(one.app, f"box-{letter}") for letter in "abc"] == [["a"], [], ["c"]]
    assert set(transactions(beside)) == {"box-a", "box-c"}
    assert len(set(transactions(beside).values())) == 1
    ((attempts, due_in, error),) = outbox()
    assert attempts == 1
    assert 0 < due_in <= 1000
    assert "b is torn" in error
    assert set(handled.taken.values()) == {1}


def test_an_exit_in_a_handler_leaves_only_itself_out(one: Node, beside: Any, outbox: Any) -> None:
    def leave(mailbox: Mailbox, letter: str) -> None:
        if letter == "b":
            raise SystemExit(3)

    handled.on_take = leave
    mixed(one.app, a="take", b="take", c="take")
    settle(one.app, one.runner)
    assert set(transactions(beside)) == {"box-a", "box-c"}
    assert [row[2][:10] for row in outbox()] == ["SystemExit"]


@pytest.mark.conformance("GRP-05")
def test_a_statements_error_makes_the_members_run_again_alone(one: Node, beside: Any, outbox: Any) -> None:
    beside("CREATE FUNCTION no_more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no more'; END $$")
    beside(
        "CREATE TRIGGER no_more BEFORE INSERT ON {akter}.actor_events FOR EACH ROW WHEN (NEW.actor_id = 'box-b') EXECUTE FUNCTION no_more()"
    )
    mixed(one.app, a="take", b="breaks_the_statement", c="take")
    settle(one.app, one.runner)
    assert [letters(one.app, f"box-{letter}") for letter in "ac"] == [["a"], ["c"]]
    assert set(transactions(beside)) == {"box-a", "box-c"}
    assert len(set(transactions(beside).values())) == 2
    ((attempts, _, error),) = outbox()
    assert attempts == 1
    assert "no more" in error
    assert handled.taken == {"a": 2, "b": 2, "c": 2}


def test_a_member_with_sql_of_its_own_runs_again_alone_and_is_remembered(one: Node, beside: Any) -> None:
    mixed(one.app, a="take", b="file", c="take")
    settle(one.app, one.runner)
    assert [letters(one.app, f"box-{letter}") for letter in "abc"] == [["a"], ["b"], ["c"]]
    found = transactions(beside)
    assert found["box-a"] == found["box-c"] != found["box-b"]
    assert handled.taken == {"a": 1, "b": 2, "c": 1}
    mixed(one.app, d="take", e="file", f="take")
    settle(one.app, one.runner)
    assert handled.taken["e"] == 1
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("GRP-04")
def test_a_slow_member_closes_the_group_behind_it(one: Node, beside: Any) -> None:
    def slow(mailbox: Mailbox, letter: str) -> None:
        if len(handled.order) == 1:
            time.sleep(SLOW + 0.1)

    handled.on_take = slow
    mixed(one.app, a="take", b="take", c="take")
    settle(one.app, one.runner)
    first, *rest = handled.order
    found = transactions(beside)
    assert all(found[f"box-{letter}"] != found[f"box-{first}"] for letter in rest)
    assert (set(handled.taken.values()), beside.count("actor_outbox")) == ({1}, 0)


@pytest.mark.conformance("GRP-07")
def test_a_member_whose_actor_is_busy_does_not_hold_up_its_neighbours(one: Node, other_engine: Any, beside: Any, akter_app: Any) -> None:
    second = akter_app(Mailbox, engine=other_engine)
    with pause_next(second, "before_commit") as pause:
        busy = in_thread(lambda: second.actor(Mailbox, "box-b").take("direct"))
        pause.wait()
        mixed(one.app, a="take", b="take", c="take")
        settling = in_thread(lambda: settle(one.app, one.runner))
        # Long before a wait for the busy one's lock, or its turn, could end.
        eventually("the neighbours arrive", lambda: [letters(one.app, box) for box in ("box-a", "box-c")] == [["a"], ["c"]], seconds=8.0)
        assert letters(one.app, "box-b") == []
    busy.join(20)
    settling.join(20)
    advance(one.app, LEASE, one.runner)
    assert letters(one.app, "box-b") == ["direct", "b"]
    assert handled.taken["b"] == 1


@pytest.mark.conformance("GRP-02")
def test_a_member_that_lost_its_fence_leaves_and_runs_again_alone(one: Node, beside: Any) -> None:
    one.app.actor(Mailbox, "box-b").take("earlier")
    beside("CREATE TABLE stolen (id text)")

    def steal(mailbox: Mailbox, letter: str) -> None:
        # Somebody writes the state without the lock, as no turn would.
        if mailbox.id == "box-b" and not beside("SELECT 1 FROM stolen"):
            beside("INSERT INTO stolen VALUES ('b')")
            beside("UPDATE {akter}.actor_state SET version = version + 1 WHERE actor_id = 'box-b'")

    handled.on_take = steal
    mixed(one.app, a="take", b="take", c="take")
    settle(one.app, one.runner)
    assert [letters(one.app, f"box-{letter}") for letter in "abc"] == [["a"], ["earlier", "b"], ["c"]]
    assert beside.count("actor_outbox") == 0
    assert inspect(one.app, one.app.actor(Mailbox, "box-b")).version == 3


@pytest.mark.conformance("PIPE-03")
def test_every_actor_takes_its_messages_in_their_order_and_none_twice(one: Node, beside: Any) -> None:
    for number in range(3):
        mixed(one.app, **{f"x{number}": "take", f"y{number}": "take"})
        beside("UPDATE {akter}.actor_outbox SET target_id = 'x' WHERE payload LIKE '%\"x_\"%'")
        beside("UPDATE {akter}.actor_outbox SET target_id = 'y' WHERE payload LIKE '%\"y_\"%'")
        beside("SELECT pg_sleep(0.002)")
    settle(one.app, one.runner)
    assert letters(one.app, "x") == ["x0", "x1", "x2"]
    assert letters(one.app, "y") == ["y0", "y1", "y2"]
    assert set(handled.taken.values()) == {1}


def test_messages_for_one_actor_share_a_transaction_each_on_what_the_one_before_left(one: Node, beside: Any) -> None:
    one.app.actor(Mailbox, "m").take("before")
    kinds = ["take", "refuse", "hit", "take"]
    with one.app.engine.begin() as connection:
        staging = one.app.within(connection)
        for number, kind in enumerate(kinds):
            staging.send(getattr(one.app.actor(Mailbox, "m"), kind), f"{kind}-{number}")
            connection.exec_driver_sql("SELECT pg_sleep(0.002)")
    settle(one.app, one.runner)
    found = inspect(one.app, one.app.actor(Mailbox, "m"))
    assert found.state == {"letters": ["before", "take-0", "take-3"]}
    assert (found.version, found.event_sequence, [event["sequence"] for event in found.events]) == (2, 3, [1, 2, 3])
    assert [event["value"] for event in found.events] == [f'{{"letter":"{name}"}}' for name in found.state["letters"]]
    assert [receipt.outcome for receipt in found.receipts if receipt.command == "take"] == [{"ok": count} for count in (1, 2, 3)]
    assert len(found.receipts) == 4
    assert beside("SELECT attempts FROM {akter}.actor_outbox") == [(1,)]
    assert handled.order == ["before", *(f"{kind}-{number}" for number, kind in enumerate(kinds))]


def test_a_member_that_reads_events_leaves_and_finds_those_of_the_members_before_it(one: Node, beside: Any) -> None:
    read: dict[str, list[str]] = {}
    cursors: dict[str, str] = {}

    def look(mailbox: Mailbox, letter: str) -> None:
        cursors[letter] = mailbox.event_cursor
        if letter == "c":
            read[letter] = [entry.event.letter for entry in mailbox.events(Arrived)]

    handled.on_take = look
    for letter in "abcd":
        mixed(one.app, **{letter: "take"})
        beside("UPDATE {akter}.actor_outbox SET target_id = 'm'")
        beside("SELECT pg_sleep(0.002)")
    settle(one.app, one.runner)
    assert read == {"c": letters(one.app, "m")[: letters(one.app, "m").index("c")]}
    assert cursors == {letter: str(letters(one.app, "m").index(letter)) for letter in "abcd"}
    assert [entry.event.letter for entry in one.app.events(one.app.actor(Mailbox, "m"), Arrived)] == letters(one.app, "m")


def test_followers_of_a_member_that_left_follow_it(one: Node, beside: Any) -> None:
    kinds = ["take", "file", "take", "take"]
    with one.app.engine.begin() as connection:
        staging = one.app.within(connection)
        for number, kind in enumerate(kinds):
            staging.send(getattr(one.app.actor(Mailbox, "m"), kind), f"{kind}-{number}")
            connection.exec_driver_sql("SELECT pg_sleep(0.002)")
    send_many(one.app, ["other"])
    settle(one.app, one.runner)
    assert letters(one.app, "m")[0] == "take-0"
    assert sorted(letters(one.app, "m")) == sorted(f"{kind}-{number}" for number, kind in enumerate(kinds))
    assert letters(one.app, "box-other") == ["other"]
    assert beside.count("actor_outbox") == 0


def test_a_message_delivered_twice_in_a_group_takes_effect_once(one: Node, beside: Any) -> None:
    send_many(one.app, ["a", "b", "c"])
    kept = beside("SELECT * FROM {akter}.actor_outbox")
    settle(one.app, one.runner)
    columns = [column.name for column in tables.outbox.c]
    for row in kept:
        values = dict(zip(columns, row, strict=True))
        beside(f"INSERT INTO {{akter}}.actor_outbox VALUES ({', '.join(f':{name}' for name in columns)})", **values)
    settle(one.app, one.runner)
    assert beside.count("actor_outbox") == 0
    assert [letters(one.app, f"box-{letter}") for letter in "abc"] == [["a"], ["b"], ["c"]]
    assert set(handled.taken.values()) == {1}


def test_a_group_whose_database_goes_away_keeps_every_row(one: Node, beside: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "akter.relay")
    killed = threading.Event()

    def kill(mailbox: Mailbox, letter: str) -> None:
        if not killed.is_set():
            killed.set()
            beside(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND state = 'idle in transaction'"
            )

    handled.on_take = kill
    mixed(one.app, a="take", b="take", c="take")
    settle(one.app, one.runner)
    advance(one.app, LEASE, one.runner)
    assert [letters(one.app, f"box-{letter}") for letter in "abc"] == [["a"], ["b"], ["c"]]
    assert beside.count("actor_outbox") == 0
    assert any(record.message == "relay.group_fell_apart" for record in caplog.records)
