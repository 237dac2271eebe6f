"""A wake-up names the messages that are due: what is claimed by name, what is not, and that a wrong name does no harm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from post import LEASE, Mailbox, Node, Sender, eventually, handled, in_thread, letters, send_many

from akter.named import MOST, Gathered, Named, heard, said
from akter.operating import Operator
from akter.store import apart
from akter.testing import advance, crash_next, pause_next, settle

Make = Callable[..., Node]
ID = "v1.1000.2000.0c4d9b4e-63a8-4f6e-9b0a-3c7b8a2d1e5f"
ROW = Named(-3, -(2**60), ID, "Order")


class Wire:
    """What is said between the processes, heard and said by the test."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection, self._channel = connection, apart.channel(schema)
        connection.execute(f'LISTEN "{self._channel}"'.encode())

    def say(self, text: str) -> None:
        self._connection.execute("SELECT pg_notify(%s, %s)", [self._channel, text])

    def next(self) -> str:
        (found,) = self._connection.notifies(timeout=30, stop_after=1)
        return found.payload


@pytest.fixture
def wire(akter_database: str, akter_schema: str) -> Iterator[Wire]:
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as connection:
        yield Wire(connection, akter_schema)


class Looks:
    """How often a runner looks at everything that is due, not only at what was named or left."""

    def __init__(self, one: Node) -> None:
        self.count, self._look = 0, one.runner.relay.run_pass
        one.runner.relay.run_pass = self._counted  # type: ignore[method-assign]

    def _counted(self, *, only: Any = None, whole: bool = True) -> Any:
        self.count += only is None
        return self._look(only=only, whole=whole)


def listening(node: Make, **options: Any) -> Node:
    """A process that only hints wake, and that has heard one."""
    one = node(started=True, **{"listen": True, **options})
    assert one.runner._listener is not None
    eventually("it listens", lambda: one.runner._listener.connected_once)  # type: ignore[union-attr]
    return one


def name(beside: Any, where: str = "true") -> list[Named]:
    found = beside(f"SELECT bucket, routing_key, intent_id, target_type FROM {{akter}}.actor_outbox WHERE {where}")
    return [Named(*row) for row in found]


def test_what_is_said_is_heard() -> None:
    rows = [ROW, ROW._replace(bucket=127, target_type="v2.Order_Line-1")]
    assert said("me", rows) == f"me -3/-1152921504606846976/{ID}/Order 127/-1152921504606846976/{ID}/v2.Order_Line-1"
    assert heard(said("me", rows)) == ("me", rows)
    assert heard(said("me", [])) == heard("me") == ("me", [])


def test_too_many_too_long_or_an_id_of_the_applications_own_are_not_said() -> None:
    assert said("me", [ROW._replace(bucket=number) for number in range(MOST + 1)]) == "me"
    assert said("me", [ROW._replace(intent_id="x" * 600)] * 10) == "me"
    assert said("me", [ROW, ROW._replace(intent_id="u:ada:ada@example.org")]) == "me"
    assert said("me", [ROW._replace(target_type="It's")]) == "me"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "me  ",
        "me hello",
        f"me 1/2/{ID}",
        f"me 1/2/{ID}/Order/more",
        f"me 1/{2**63}/{ID}/Order",
        f"me 128/2/{ID}/Order",
        f"me one/2/{ID}/Order",
        "me 1/2//Order",
        f"me 1/2/{ID}/Or'der",
        f"me 1/2/{ID}/Order broken",
    ],
)
def test_what_nobody_can_read_means_everything(text: str) -> None:
    assert heard(text)[1] == []


def test_rows_that_come_in_together_are_taken_once_and_everything_outweighs_them() -> None:
    gathered = Gathered()
    assert (gathered.some, gathered.take()) == (False, [])
    gathered.add([ROW])
    gathered.add([ROW._replace(bucket=4)])
    assert (gathered.some, gathered.take(), gathered.some) == (True, [ROW, ROW._replace(bucket=4)], False)
    gathered.add([ROW])
    gathered.add([ROW])
    assert (gathered.some, gathered.take()) == (True, [ROW]), "said twice, it is one row all the same"
    gathered.add([ROW])
    gathered.add()
    assert (gathered.some, gathered.take(), gathered.some) == (True, None, False)
    gathered.add(ROW._replace(bucket=number) for number in range(MOST + 1))
    assert (gathered.some, gathered.take(), gathered.some) == (True, None, False)


@pytest.mark.parametrize("how", ["from a turn", "from outside"])
def test_another_process_takes_what_a_hint_names_without_looking_at_everything(node: Make, wire: Wire, how: str) -> None:
    sender, receiver = node(), listening(node)
    looks = Looks(receiver)
    for number in range(10):
        before = looks.count
        if how == "from a turn":
            sender.app.actor(Sender, "s").send_all([f"{number}"], ["m"])
        else:
            sender.app.send(sender.app.actor(Mailbox, "m").take, f"{number}")
        (row,) = heard(wire.next())[1]
        assert row.target_type == "Mailbox"
        eventually("it came", lambda number=number: handled.taken[f"{number}"] == 1)
        # The first looks, of the start and of the listener, may still have been under way.
        if number > 2 and looks.count == before:
            return
    pytest.fail("it looked at everything each time")


def test_a_runner_of_this_process_takes_what_a_turn_named_without_looking_at_everything(node: Make) -> None:
    one = node(started=True, app={"hint": False})
    one.app.actor(Sender, "s").send_all(["first"], ["m"])
    eventually("it came", lambda: handled.taken["first"] == 1)
    looks = Looks(one)
    one.app.actor(Sender, "s").send_all(["a", "b"], ["m", "n"])
    eventually("they came", lambda: handled.taken["a"] == handled.taken["b"] == 1)
    assert looks.count == 0
    send_many(one.app, [f"many-{number}" for number in range(MOST + 1)])
    eventually("they came", lambda: sum(handled.taken.values()) == MOST + 4)
    assert looks.count > 0


def test_a_process_that_does_not_serve_the_type_of_what_is_named_does_not_look_at_all(node: Make) -> None:
    one = node()
    assert one.runner.relay.ask([ROW, ROW._replace(bucket=4)]) is False
    assert not one.runner.relay.wanted.some
    assert one.runner.relay.ask([ROW, ROW._replace(target_type="Mailbox")]) is True
    assert one.runner.relay.wanted.take() == [ROW._replace(target_type="Mailbox")]
    assert one.runner.relay.ask() is True


def test_an_own_id_is_not_shown_to_others_and_arrives(node: Make, wire: Wire) -> None:
    sender = node()
    listening(node)
    with sender.app.command_id("ada@example.org"):
        sender.app.send(sender.app.actor(Mailbox, "m").take, "a")
    assert wire.next() == sender.app.wakes.me
    eventually("it came", lambda: letters(sender.app, "m") == ["a"])


def test_hints_that_are_stale_doubled_foreign_or_broken_do_no_harm(node: Make, wire: Wire, beside: Any) -> None:
    sender, receiver = node(app={"hint": False}), listening(node)
    sender.app.actor(Sender, "s").send_all(["a"], ["m"])
    (row,) = name(beside)
    other = row._replace(intent_id=ID)
    for text in (said("x", [row, row]), said("x", [row]), said("x", [other]), said("x", [row._replace(target_type="Unknown")])):
        wire.say(text)
    eventually("it came", lambda: handled.taken["a"] == 1 and beside.count("actor_outbox") == 0)
    for text in ("", "x y", "x 1/2/3", f"x 1/{2**70}/{ID}/Mailbox", f"x 1/2/{ID}'/Mailbox", said("x", [row]), "\N{SNOWMAN}"):
        wire.say(text)
    sender.app.actor(Sender, "s").send_all(["b"], ["m"])
    # An older version says no more than who it is.
    wire.say("8f14e45f-ceea-467f-9d5b-2f8a3f0e4b6d")
    eventually("it came", lambda: handled.taken["b"] == 1 and beside.count("actor_outbox") == 0)
    assert dict(handled.taken) == {"a": 1, "b": 1}
    assert not receiver.runner.failed


def test_what_a_hint_names_is_claimed_under_the_same_conditions_as_ever(node: Make, beside: Any) -> None:
    one, other = node(), node(app={"hint": False})
    send = other.app.actor(Sender, "s").send_all
    operator = Operator(one.app.engine, schema=one.app.schema)

    def claims() -> int:
        (made,) = name(beside)
        one.runner.relay.wanted.add([made])
        one.runner.relay._look_by = float("inf")
        one.runner.relay.wait()
        assert one.runner._lane.wait_idle(20.0)
        return len(handled.taken)

    send(["later"], ["m"], after_ms=60_000)
    assert claims() == 0
    operator.pause("intents", "Mailbox")
    advance(one.app, timedelta(minutes=1))
    assert claims() == 0
    operator.resume("intents", "Mailbox")
    with pause_next(other.app, "after_claim") as pause:
        claimer = in_thread(other.runner.relay.run_pass)
        pause.wait()
        assert claims() == 0, "it is another one's"
    claimer.join(20)
    eventually("it came", lambda: dict(handled.taken) == {"later": 1} and beside.count("actor_outbox") == 0)


def test_names_do_not_put_off_the_look_at_everything(node: Make, beside: Any) -> None:
    sender, receiver = node(app={"hint": False}), node(started=True, poll=0.5, app={"hint": False})
    stop = threading.Event()

    def babble() -> None:
        while not stop.is_set():
            receiver.runner.wake([ROW._replace(target_type="Mailbox")])

    babbling = in_thread(babble)
    for number in range(3):
        sender.app.actor(Sender, "s").send_all([f"{number}"], ["m"])
        eventually("it came", lambda number=number: handled.taken[f"{number}"] == 1)
    stop.set()
    babbling.join(20)


def test_where_more_is_due_than_there_are_seats_a_name_jumps_no_queue(node: Make, beside: Any) -> None:
    one = node(lanes={"intents": 2})
    send_many(one.app, ["old-1", "old-2", "old-3"])
    one.runner.relay.run_pass()
    assert one.runner._lane.wait_idle(20.0)
    assert one.runner._lane.more
    one.app.actor(Sender, "s").send_all(["new"], ["m"])
    one.runner.relay.wanted.add(name(beside, "actor_type = 'Sender'"))
    one.runner.relay._look_by = float("inf")
    handled.on_take = lambda mailbox, letter: order.append(letter)
    order: list[str] = []
    one.runner.relay.wait()
    assert one.runner._lane.wait_idle(20.0)
    assert order[0] == "old-3"
    settle(one.app, one.runner)


def test_a_claim_by_name_that_fails_is_made_up_for_by_a_look(node: Make, beside: Any) -> None:
    one = node()
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    one.runner.relay.wanted.add(name(beside))
    one.runner.relay._look_by = float("inf")
    beside("ALTER TABLE {akter}.actor_pauses RENAME TO actor_pauses_away")
    with pytest.raises(Exception, match="actor_pauses"):
        one.runner.relay.wait()
    beside("ALTER TABLE {akter}.actor_pauses_away RENAME TO actor_pauses")
    looks = Looks(one)
    one.runner.relay.wait()
    assert looks.count == 1
    assert one.runner._lane.wait_idle(20.0)
    assert dict(handled.taken) == {"a": 1}


def test_a_named_message_whose_claimer_dies_comes_after_its_lease(node: Make, beside: Any) -> None:
    one, other = node(), node()
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    crash_next(one.app, "before_delivery")
    one.runner.relay.wanted.add(name(beside))
    one.runner.relay._look_by = float("inf")
    one.runner.relay.wait()
    assert one.runner._lane.wait_idle(20.0)
    assert beside("SELECT attempts FROM {akter}.actor_outbox") == [(1,)]
    advance(other.app, LEASE, other.runner)
    assert (dict(handled.taken), beside.count("actor_outbox")) == ({"a": 1}, 0)


def test_the_thread_that_hears_claims_by_itself_unless_a_pass_is_under_way_or_it_fails(node: Make, beside: Any) -> None:
    one = node()
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    rows = name(beside)
    assert one.runner.relay.take([]) is False, "it means everything"
    assert one.runner.relay.take(rows) is False, "nobody has looked at everything yet"
    one.runner.relay._look_by = float("inf")
    with one.runner.relay._lock:
        results: list[bool] = []
        in_thread(lambda: results.append(one.runner.relay.take(rows)))
        eventually("it does not wait", lambda: results == [False])
    beside("ALTER TABLE {akter}.actor_pauses RENAME TO actor_pauses_away")
    assert one.runner.relay.take(rows) is False
    assert one.runner.relay.wanted.some
    beside("ALTER TABLE {akter}.actor_pauses_away RENAME TO actor_pauses")
    assert one.runner.relay.take([ROW]) is True, "it is for others"
    assert not handled.taken
    assert one.runner.relay.take(rows) is True
    assert one.runner._lane.wait_idle(20.0)
    assert (dict(handled.taken), beside.count("actor_outbox")) == ({"a": 1}, 0)
