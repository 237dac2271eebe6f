"""Messages and timers: what a committed turn asked for arrives once, what another asked for never does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from post import LEASE, Mailbox, Node, Returned, Sender, eventually, handled, in_thread, letters, send_many

from akter import Actor, Defect, User, command
from akter.errors import TurnEnded
from akter.testing import advance, crash_next, inspect, pause_next, receipts, settle

Make = Callable[..., Node]
MINUTE = timedelta(minutes=1)


@pytest.mark.conformance("OUT-01")
def test_a_message_arrives_as_a_command_whose_id_is_the_messages(node: Make) -> None:
    one = node()
    one.app.actor(Sender, "s").send_all(["hello"], ["m"])
    (row,) = inspect(one.app, one.app.actor(Sender, "s")).outbox
    settle(one.app, one.runner)
    (receipt,) = receipts(one.app, one.app.actor(Mailbox, "m"), "take")
    assert receipt.command_id == row["intent_id"]
    assert receipt.outcome == {"ok": 1}
    assert json.loads(receipt.caller_key) == ["System", "actor", ["default", "Sender", "s"], None]
    assert (letters(one.app, "m"), handled.taken["hello"]) == (["hello"], 1)


@pytest.mark.conformance("OUT-01")
def test_a_message_knows_on_whose_behalf_it_was_sent(node: Make) -> None:
    one = node(app={"authorize": lambda access: True})
    with one.app.acting_as(User("ada")):
        one.app.actor(Sender, "s").send_all(["from a turn"], ["m"])
        sent = one.app.send(one.app.actor(Mailbox, "n").take, "from outside")
    settle(one.app, one.runner)
    (inside,) = receipts(one.app, one.app.actor(Mailbox, "m"))
    (outside,) = receipts(one.app, one.app.actor(Mailbox, "n"))
    assert json.loads(inside.caller_key)[-1] == ["User", "ada"]
    assert (json.loads(outside.caller_key)[:2], json.loads(outside.caller_key)[-1]) == (["System", "process"], ["User", "ada"])
    assert outside.command_id == sent
    assert one.app.outcome(one.app.actor(Mailbox, "n"), sent) == 1


@pytest.mark.conformance("OUT-02")
def test_a_refused_or_broken_turn_sends_nothing(node: Make, beside: Any) -> None:
    one = node()
    with pytest.raises(Returned):
        one.app.actor(Sender, "s").send_and_refuse("a")
    with pytest.raises(Defect):
        one.app.actor(Sender, "s").send_and_break("b")
    assert beside.count("actor_outbox") == 0
    settle(one.app, one.runner)
    assert not handled.taken


@pytest.mark.conformance("OUT-03")
def test_a_timer_waits_until_it_is_due(node: Make) -> None:
    one = node()
    one.app.actor(Sender, "s").remind("later", 60, "k")
    advance(one.app, 59 * MINUTE, one.runner)
    assert not handled.taken
    advance(one.app, MINUTE + timedelta(seconds=1), one.runner)
    assert handled.taken["later"] == 1


@pytest.mark.conformance("OUT-03")
def test_a_timer_outlives_its_senders_rights_and_the_retry_window(node: Make) -> None:
    allowed = [True]
    one = node(app={"authorize": lambda access: allowed[0], "retry_window": MINUTE})
    with one.app.acting_as(User("ada")):
        one.app.actor(Sender, "s").remind("later", 60, "k")
    allowed[0] = False
    advance(one.app, 24 * 60 * MINUTE, one.runner)
    assert handled.taken["later"] == 1


@pytest.mark.conformance("OUT-03")
def test_a_message_for_a_moment_comes_then_and_a_past_one_at_once(node: Make, beside: Any) -> None:
    one = node()
    with one.app.engine.begin() as connection:
        staging = one.app.within(connection)
        staging.at(datetime(2020, 1, 1, tzinfo=UTC)).send(one.app.actor(Mailbox, "m").take, "long ago")
        staging.at(datetime(2999, 1, 1, tzinfo=UTC)).send(one.app.actor(Mailbox, "m").take, "much later")
    settle(one.app, one.runner)
    assert letters(one.app, "m") == ["long ago"]
    assert beside("SELECT attempts FROM {akter}.actor_outbox") == [(0,)]


@pytest.mark.conformance("OUT-04")
def test_a_keyed_timer_is_replaced_and_cancelled_with_the_turn(node: Make) -> None:
    one = node()
    sender = one.app.actor(Sender, "s")
    sender.remind("first", 10, "k")
    sender.remind("second", 20, "k")
    sender.remind("other", 20, "another")
    with pytest.raises(Returned):
        sender.forget("another", refuse=True)
    advance(one.app, 15 * MINUTE, one.runner)
    assert not handled.taken
    advance(one.app, 10 * MINUTE, one.runner)
    assert handled.taken == {"second": 1, "other": 1}
    sender.remind("third", 10, "k")
    sender.forget("k")
    advance(one.app, 60 * MINUTE, one.runner)
    assert "third" not in handled.taken


@pytest.mark.conformance("OUT-04")
def test_a_key_is_its_senders_own(node: Make) -> None:
    one = node()
    one.app.actor(Sender, "s").remind("mine", 10, "k")
    one.app.actor(Sender, "t").remind("theirs", 10, "k")
    one.app.actor(Sender, "t").forget("k")
    advance(one.app, 11 * MINUTE, one.runner)
    assert handled.taken == {"mine": 1}


class Session(Actor):
    """Ends after half an hour in which nothing was done."""

    actions: int = 0
    ended: int = 0

    @command
    def act(self) -> None:
        self.actions += 1
        self.after(30 * MINUTE, key="idle").send(self.end)

    @command(internal=True)
    def end(self) -> None:
        self.ended += 1


@pytest.mark.conformance("OUT-05")
@pytest.mark.parametrize("point", ["before_handler", "before_commit", "after_commit"])
def test_an_idle_timer_is_pushed_back_and_ends_once_however_the_receiver_crashes(node: Make, point: Any, beside: Any) -> None:
    one = node(Session)
    session = one.app.actor(Session, "s")
    for _ in range(3):
        session.act()
        advance(one.app, 20 * MINUTE, one.runner)
    assert (inspect(one.app, session).state or {})["ended"] == 0
    crash_next(one.app, point)
    advance(one.app, 11 * MINUTE, one.runner)
    advance(one.app, LEASE, one.runner)
    assert inspect(one.app, session).state == {"actions": 3, "ended": 1}
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("OUT-08")
def test_a_timer_cancelled_after_it_was_picked_up_still_fires_once(node: Make, beside: Any) -> None:
    one = node()
    sender = one.app.actor(Sender, "s")
    sender.remind("too late", 10, "k")
    with pause_next(one.app, "before_delivery") as pause:
        thread = in_thread(lambda: advance(one.app, 11 * MINUTE, one.runner))
        pause.wait()
        one.app.faults.clear()
        sender.forget("k")
        assert beside.count("actor_outbox") == 0
    thread.join(20)
    advance(one.app, LEASE, one.runner)
    assert handled.taken == {"too late": 1}


@pytest.mark.conformance("OUT-09")
def test_a_receivers_defect_keeps_the_row_and_waits_longer_each_time(node: Make, outbox: Callable[[], list[Any]]) -> None:
    one = node()
    one.app.send(one.app.actor(Mailbox, "m").hit, "torn")
    settle(one.app, one.runner)
    for attempt, wait in enumerate((1, 2, 4, 8), start=1):
        ((attempts, due_in, error),) = outbox()
        assert (attempts, handled.taken["torn"]) == (attempt, attempt)
        assert wait * 1000 - 500 < due_in <= wait * 1000
        assert error.startswith("Defect: ")
        assert "torn is torn" in error
        advance(one.app, timedelta(seconds=wait), one.runner)


@pytest.mark.conformance("OUT-10")
def test_what_escaped_from_a_turn_sends_nothing(node: Make, beside: Any) -> None:
    one = node()
    escaped: list[Mailbox] = []
    handled.on_take = lambda mailbox, letter: escaped.append(mailbox)
    one.app.actor(Mailbox, "m").take("a")
    leaked = escaped[0]
    with pytest.raises(TurnEnded):
        leaked.send(leaked.actor(Mailbox, "n").take, "b")
    with pytest.raises(TurnEnded):
        leaked.after(MINUTE).send(leaked.actor(Mailbox, "n").take, "c")
    settle(one.app, one.runner)
    assert beside.count("actor_outbox") == 0
    assert handled.taken == {"a": 1}


@pytest.mark.conformance("OUT-12")
def test_a_message_is_seen_by_nobody_before_its_turn_commits(node: Make, beside: Any) -> None:
    one, other = node(), node()
    with pause_next(one.app, "before_commit") as pause:
        thread = in_thread(lambda: one.app.actor(Sender, "s").send_all(["a"], ["m"]))
        pause.wait()
        settle(other.app, other.runner)
        assert (beside.count("actor_outbox"), dict(handled.taken)) == (0, {})
    thread.join(20)
    settle(other.app, other.runner)
    assert handled.taken == {"a": 1}


@pytest.mark.conformance("OUT-13")
def test_a_freed_seat_is_taken_at_once_while_more_is_due(node: Make) -> None:
    one = node(started=True, lanes={"intents": 1})
    first, rest = threading.Event(), threading.Event()

    def hold(mailbox: Mailbox, letter: str) -> None:
        first.set()
        rest.wait(20)

    handled.on_take = hold
    send_many(one.app, ["a"])
    one.runner.wake()
    assert first.wait(20)
    # Committed, and woken for, while the only seat is taken: nobody polls, so whoever frees it must look again.
    one.app.send(one.app.actor(Mailbox, "late").take, "b")
    send_many(one.app, ["c", "d", "e"])
    eventually("the relay has looked", lambda: one.runner._lane.more)
    rest.set()
    eventually("all are delivered", lambda: len(handled.taken) == 5)


@pytest.mark.conformance("OUT-13", "REL-S-04")
def test_a_row_whose_settle_died_stays_out_until_its_lease_ends(node: Make, outbox: Callable[[], list[Any]]) -> None:
    one = node(ride=False)
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    crash_next(one.app, "before_outbox_delete")
    settle(one.app, one.runner)
    ((attempts, due_in, _),) = outbox()
    assert attempts == 1
    assert 35_000 < due_in <= 37_000
    advance(one.app, timedelta(seconds=35), one.runner)
    assert len(outbox()) == 1
    advance(one.app, timedelta(seconds=2), one.runner)
    assert (outbox(), dict(handled.taken)) == ([], {"a": 1})
