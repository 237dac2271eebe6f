"""Several runners on one database: each row is one runner's at a time, and nobody's death or delay is another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from post import LEASE, NEVER, Ledger, Mailbox, Node, Sender, eventually, handled, in_thread, letters, send_many

from akter.testing import advance, crash_next, pause_next, receipts, settle

Make = Callable[..., Node]
MINUTE = timedelta(minutes=1)
RIDING = pytest.mark.parametrize("ride", [True, False], ids=["ride", "two steps"])


def takes(beside: Any) -> int:
    return int(beside("SELECT count(*) FROM {akter}.actor_receipts WHERE command = 'take'")[0][0])


@RIDING
@pytest.mark.conformance("REL-C-01", "MULTI-01")
def test_each_due_row_is_held_by_exactly_one_of_three_runners(node: Make, beside: Any, ledger: Ledger, ride: bool) -> None:
    nodes = [node(started=True, ride=ride, poll=0.05, lanes={"intents": 8}) for _ in range(3)]
    names = [f"claimed-{number}" for number in range(300)]
    claims: dict[str, int] = {}
    lock = threading.Lock()

    def watch(point: str, subject: Any) -> None:
        if point == "after_claim":
            with lock:
                claims[subject.id] = claims.get(subject.id, 0) + 1

    for one in nodes:
        one.app.faults.watch(watch)  # type: ignore[arg-type]
    for start in range(0, 300, 50):
        boxes = [f"box-{number % 32}" for number in range(start, start + 50)]
        nodes[0].app.actor(Sender, f"s-{start}").send_all(names[start : start + 50], boxes)
    eventually("the outbox is empty", lambda: beside.count("actor_outbox") == 0, seconds=60.0)
    assert ledger.broken() == []
    assert takes(beside) == 300
    given_back = sum(one.runner._deliverer.counts.released + one.runner._deliverer.counts.retried for one in nodes)
    if not given_back:
        assert set(claims.values()) == {1}
        assert set(handled.taken.values()) == {1}
    assert len(claims) == 300
    assert all(letters(nodes[0].app, f"box-{number}") for number in range(32))
    assert sum(one.runner._deliverer.counts.delivered > 0 for one in nodes) >= 2


@pytest.mark.conformance("REL-C-02")
def test_a_try_after_a_failure_is_the_rows_next_attempt_and_no_second_holder(node: Make, beside: Any, ledger: Ledger) -> None:
    nodes = [node(started=True, poll=0.05) for _ in range(3)]
    names = [f"letter-{number}" for number in range(30)]
    failing = {name for number, name in enumerate(names) if number % 10 == 0}

    def fail_first(mailbox: Mailbox, letter: str) -> None:
        if letter in failing and handled.taken[letter] == 1:
            raise ValueError("the first time")

    handled.on_take = fail_first
    send_many(nodes[0].app, names)
    eventually("the outbox is empty", lambda: beside.count("actor_outbox") == 0, seconds=60.0)
    stories = list(ledger.of_rows().values())
    assert ledger.broken() == []
    assert len(stories) == 30
    assert sum([what for what, _ in story] == ["claimed", "moved", "claimed", "gone"] for story in stories) == 3
    assert sum([what for what, _ in story] == ["claimed", "gone"] for story in stories) == 27
    assert takes(beside) == 30


@RIDING
@pytest.mark.conformance("REL-C-03", "MULTI-02")
def test_a_dead_claimers_row_is_delivered_after_its_lease(node: Make, outbox: Callable[[], list[Any]], beside: Any, ride: bool) -> None:
    dead, one, two = (node(ride=ride) for _ in range(3))
    one.app.actor(Sender, "s").send_all(["a"], ["m"], after_ms=60_000)
    crash_next(dead.app, "before_delivery")
    advance(dead.app, MINUTE, dead.runner)
    for other in (one, two):
        settle(other.app, other.runner)
    assert [attempts for attempts, _, _ in outbox()] == [1]
    assert not handled.taken
    advance(one.app, LEASE, one.runner)
    assert (handled.taken, takes(beside), outbox()) == ({"a": 1}, 1, [])


@RIDING
@pytest.mark.conformance("REL-C-04", "MULTI-03")
def test_a_claimer_dead_after_the_receivers_commit_leaves_one_transition(
    node: Make, outbox: Callable[[], list[Any]], beside: Any, ride: bool
) -> None:
    dead, other = node(ride=ride), node(ride=ride)
    other.app.actor(Sender, "s").send_all(["a"], ["m"], after_ms=60_000)
    crash_next(dead.app, "after_commit")
    advance(dead.app, MINUTE, dead.runner)
    assert takes(beside) == 1
    settle(other.app, other.runner)
    assert [attempts for attempts, _, _ in outbox()] == ([] if ride else [1])
    advance(other.app, LEASE, other.runner)
    assert (handled.taken, takes(beside), outbox(), letters(other.app, "m")) == ({"a": 1}, 1, [], ["a"])


@pytest.mark.conformance("REL-C-06")
def test_rows_that_die_unsettled_never_delay_newer_ones(node: Make, beside: Any) -> None:
    # Each by itself: what dies in a transaction with others would take them along until their leases end.
    nodes = [node(started=True, ride=False, poll=1.0, listen=True, claim_lease=120.0, group=1) for _ in range(2)]
    dead = [f"dead-{number}" for number in range(300)]
    for name in dead:
        for one in nodes:
            crash_next(one.app, "before_outbox_delete", command_id=name)
    with nodes[0].app.engine.begin() as connection:
        staging = nodes[0].app.within(connection)
        for name in dead:
            with nodes[0].app.command_id(name):
                staging.send(nodes[0].app.actor(Mailbox, f"box-{name}").take, name)
    eventually("every dead row's first delivery", lambda: takes(beside) == 300, seconds=60.0)
    settled = "SELECT count(*), min(attempts), max(attempts) FROM {akter}.actor_outbox WHERE due_at_ms > :now"
    now = beside("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")[0][0]
    assert beside(settled, now=now + 15_000) == [(300, 1, 1)], "none is claimed again while its lease lasts"
    sent = time.monotonic()
    nodes[1].app.send(nodes[1].app.actor(Mailbox, "fresh").take, "fresh")
    eventually("the fresh message", lambda: handled.taken["fresh"] == 1)
    # The leases of the dead end after two minutes.
    assert time.monotonic() - sent < 10.0
    beside("UPDATE {akter}.actor_outbox SET attempts = 9, due_at_ms = 0 WHERE payload LIKE '%\"dead-0\"%'")
    wait = "due_at_ms - floor(extract(epoch FROM clock_timestamp()) * 1000)"
    tenth = f"SELECT attempts, {wait} FROM {{akter}}.actor_outbox WHERE payload LIKE '%\"dead-0\"%'"
    for one in nodes:
        one.app.faults.clear()
        crash_next(one.app, "before_outbox_delete", command_id="dead-0")
        one.runner.wake()
    eventually("its tenth claim", lambda: beside(tenth)[0][0] == 10)
    assert 200_000 < beside(tenth)[0][1] <= 256_000
    for one in nodes:
        one.app.faults.clear()


@RIDING
@pytest.mark.conformance("REL-C-07", "MULTI-04")
def test_a_stale_runners_settle_changes_nothing_of_another_runners_claim(node: Make, beside: Any, ride: bool) -> None:
    stale, other = node(ride=ride), node(ride=ride)
    other.app.actor(Sender, "s").send_all(["a"], ["m"], after_ms=60_000)

    def first_fails(mailbox: Mailbox, letter: str) -> None:
        if handled.taken[letter] == 1:
            raise ValueError("the first time")

    handled.on_take = first_fails
    row = "SELECT attempts, due_at_ms FROM {akter}.actor_outbox"
    with pause_next(stale.app, "after_claim") as pause:
        thread = in_thread(lambda: advance(stale.app, MINUTE, stale.runner))
        pause.wait()
        advance(other.app, LEASE, other.runner)
        rescheduled = beside(row)
        assert rescheduled[0][0] == 2
    thread.join(20)
    assert takes(beside) == 1
    assert beside(row) == rescheduled
    assert stale.runner._deliverer.counts.stale == (0 if ride else 1)
    advance(other.app, timedelta(seconds=2), other.runner)
    assert (beside(row), takes(beside), handled.taken["a"]) == ([], 1, 2)


@pytest.mark.conformance("REL-C-07")
@pytest.mark.parametrize("fate", ["back off", "release"])
def test_a_stale_runner_neither_delays_nor_hastens_another_runners_row(node: Make, beside: Any, fate: str) -> None:
    stale, other = node(started=True), node()
    row = "SELECT attempts, due_at_ms, last_error FROM {akter}.actor_outbox"
    with pause_next(stale.app, "before_delivery") as pause:
        stale.app.send(stale.app.actor(Mailbox, "m").hit, "a")
        pause.wait()
        advance(other.app, LEASE, other.runner)
        claimed = beside(row)
        assert claimed[0][0] == 2
        if fate == "release":
            stopping = in_thread(lambda: stale.runner.stop(grace=10.0))
            eventually("it tried to give the row back", lambda: stale.runner._deliverer.counts.stale == 1)
    if fate == "release":
        stopping.join(20)
    eventually("it is done with the row", lambda: stale.runner.relay.held() == [])
    assert stale.runner._deliverer.counts.stale == 1
    assert beside(row) == claimed


@pytest.mark.conformance("REL-C-14")
def test_a_claim_takes_no_more_rows_than_there_are_free_seats(node: Make, beside: Any, ledger: Ledger) -> None:
    one = node(started=True, pool=12, poll=0.2, lanes={"intents": 8}, claim_lease=3.0, app={"execution": 3.0})
    claimed, started = dict[str, float](), dict[str, float]()

    def watch(point: str, subject: Any) -> None:
        moments = claimed if point == "after_claim" else started if point == "before_delivery" else {}
        moments[subject.id] = time.monotonic()

    one.app.faults.watch(watch)  # type: ignore[arg-type]
    handled.on_take = lambda mailbox, letter: time.sleep(0.5)
    samples = list[int]()
    names = [f"slow-{number}" for number in range(64)]
    one.app.actor(Sender, "s").send_all(names, [f"box-{name}" for name in names])

    def all_taken() -> bool:
        samples.append(beside("SELECT count(*) FROM {akter}.actor_outbox WHERE attempts > 0")[0][0])
        return len(handled.taken) == 64

    eventually("every slow delivery", all_taken, seconds=60.0)
    eventually("the outbox is empty", lambda: beside.count("actor_outbox") == 0)
    assert len(samples) > 20
    assert max(samples) <= 8
    assert set(handled.taken.values()) == {1}
    assert {tuple(what for what, _ in story) for story in ledger.of_rows().values()} == {("claimed", "gone")}
    assert len(claimed) == 64
    assert max(started[id] - claimed[id] for id in claimed) < 1.0


@pytest.mark.conformance("MULTI-05")
def test_events_of_one_actor_have_no_gap_when_three_runners_deliver(node: Make, beside: Any) -> None:
    nodes = [node(started=True, poll=0.05) for _ in range(3)]
    names = [f"letter-{number}" for number in range(60)]
    send_many(nodes[0].app, names, ["one"] * 60)
    eventually("the outbox is empty", lambda: beside.count("actor_outbox") == 0, seconds=60.0)
    sequences = [row[0] for row in beside("SELECT sequence FROM {akter}.actor_events WHERE actor_id = 'one' ORDER BY sequence")]
    assert sequences == list(range(1, 61))
    assert sorted(letters(nodes[0].app, "one")) == sorted(names)


@pytest.mark.conformance("MULTI-06")
def test_a_runner_that_starts_again_takes_up_its_work(node: Make, beside: Any) -> None:
    first = node()
    send_many(first.app, ["a", "b"])
    crash_next(first.app, "before_delivery")
    settle(first.app, first.runner)
    first.runner.stop()
    again = node()
    advance(again.app, LEASE, again.runner)
    assert handled.taken == {"a": 1, "b": 1}
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("MULTI-07")
def test_calls_from_three_processes_and_messages_meet_in_one_actor(node: Make, beside: Any) -> None:
    nodes = [node(started=True, poll=0.05) for _ in range(3)]
    send_many(nodes[0].app, [f"letter-{number}" for number in range(10)], ["one"] * 10)
    threads = [
        in_thread(lambda one=one, name=name: [one.app.actor(Mailbox, "one").take(f"{name}-{number}") for number in range(10)])
        for name, one in zip("abc", nodes, strict=True)
    ]
    for thread in threads:
        thread.join(30)
    eventually("the outbox is empty", lambda: beside.count("actor_outbox") == 0, seconds=30.0)
    assert len(letters(nodes[0].app, "one")) == len(set(letters(nodes[0].app, "one"))) == 40
    assert len(receipts(nodes[0].app, nodes[0].app.actor(Mailbox, "one"))) == 40


@pytest.mark.conformance("MULTI-08")
def test_a_subject_of_512_bytes_crosses_processes(node: Make) -> None:
    from akter import User

    policy = {"authorize": lambda access: True}
    one, other = node(app=policy), node(app=policy)
    subject = "ü" * 256
    with one.app.acting_as(User(subject)):
        one.app.actor(Sender, "s").send_all(["a"], ["m"])
    settle(other.app, other.runner)
    (receipt,) = receipts(other.app, other.app.actor(Mailbox, "m"))
    assert f'["User","{subject}"]' in receipt.caller_key


def test_a_hint_wakes_the_runners_of_other_processes(node: Make) -> None:
    one = node(started=True, poll=NEVER, listen=True)
    other = node()
    eventually("it listens", lambda: one.runner._listener is not None and one.runner._listener.connected_once)
    other.app.send(other.app.actor(Mailbox, "m").take, "a")
    eventually("it arrives", lambda: handled.taken["a"] == 1)
    # Whoever hears of a single message delivers it, unless the look at everything after it began to listen is still under way.
    assert handled.threads["a"] <= {"akter-listen", "akter-intents-1"}


@pytest.mark.parametrize("off", ["listen", "hint"])
def test_the_poll_alone_finds_what_others_sent(node: Make, off: str) -> None:
    node(started=True, poll=0.1, listen=off != "listen")
    other = node(app={"hint": off != "hint"})
    other.app.send(other.app.actor(Mailbox, "m").take, "a")
    eventually("it arrives", lambda: handled.taken["a"] == 1, seconds=10.0)


def test_a_listener_connects_again_and_looks_at_once(node: Make, beside: Any) -> None:
    node(started=True, poll=NEVER, listen=True)
    other = node(app={"hint": False})
    listening = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
    eventually("it listens", lambda: len(beside(listening)) == 1)
    other.app.send(other.app.actor(Mailbox, "m").take, "a")
    ((pid,),) = beside(listening)
    beside("SELECT pg_terminate_backend(:pid)", pid=pid)
    eventually("what was sent meanwhile arrives", lambda: handled.taken["a"] == 1, seconds=10.0)
    assert beside(listening) != [(pid,)]


def test_a_listener_that_hears_nothing_asks_itself_and_connects_again(node: Make, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from akter.runner import listener

    monkeypatch.setattr(listener, "_TICK", 0.05)
    monkeypatch.setattr(listener, "_CHECK", 0.1)
    monkeypatch.setattr(listener, "_ANSWER", 1.0)
    one = node(started=True, poll=NEVER, listen=True)
    found = one.runner._listener
    assert found is not None
    eventually("it asks itself", lambda: found._asked > 0)
    eventually("it hears the answer", lambda: found._heard > 0 and not found._asked)
    first = found._connection
    # As if a router had forgotten the connection: it is open, and nothing comes.
    monkeypatch.setattr(found, "_hear", lambda connection: None)
    eventually("it gives the connection up", lambda: found._connection is not first)
    monkeypatch.undo()
    eventually("it listens again", lambda: found._connection is not None and found.loop.failures == 0)


def test_behind_a_backlog_of_one_type_a_process_for_another_takes_its_messages_at_once(node: Make, beside: Any) -> None:
    mixed, apart = node(lanes={"intents": 2}), node(Sender)
    send_many(mixed.app, [f"old-{number}" for number in range(50)])
    mixed.app.send(mixed.app.actor(Sender, "s").forget, "k")
    mixed.runner.relay.run_pass()
    assert mixed.runner._lane.wait_idle(20.0)
    left = "SELECT target_type, count(*) FROM {akter}.actor_outbox GROUP BY 1 ORDER BY 1"
    assert beside(left) == [("Mailbox", 48), ("Sender", 1)], "what was due first came first"
    settle(apart.app, apart.runner)
    assert beside(left) == [("Mailbox", 48)]
