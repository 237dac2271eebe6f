"""A message that is claimed by name is admitted in the flight of its claim, whatever the sender knew of its actor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from post import LEASE, Mailbox, Node, Returned, Sender, eventually, handled, letters
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from akter import Actor, command
from akter.identity import address
from akter.named import Named
from akter.runner.lane import Work
from akter.store import wire
from akter.store.flight import Line, StatementFailed, raw
from akter.store.link import Link
from akter.testing import advance, crash_next

Make = Callable[..., Node]


class Flights:
    """Which flights the wires of this process sent, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        for name in ("fly", "depart", "land"):
            monkeypatch.setattr(wire, name, self._counted(name, getattr(wire, name)))

    def _counted(self, name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.sent.append(name)
            return send(*arguments)

        return counted


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> Flights:
    return Flights(monkeypatch)


@pytest.fixture
def one(node: Make) -> Iterator[Node]:
    """A runner that takes what the test names, in the test's thread; nothing of it holds a connection at the end."""
    made = node()
    made.runner.relay._look_by = float("inf")
    yield made
    assert made.runner._engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def waiting(beside: Any, box: str = "m", **changes: Any) -> Named:
    """The one message that waits, as its sender names it."""
    ((bucket, key, id, kind),) = beside("SELECT bucket, routing_key, intent_id, target_type FROM {akter}.actor_outbox")
    return Named(bucket, key, id, kind, address("actor", "default", "Mailbox", box).routing_key)._replace(**changes)


def take(one: Node, row: Named) -> list[Work]:
    """Claim a message; returns what the thread that did has to do next."""
    works: list[Work] = []
    assert one.runner.relay.take([row], works.append)
    return works


def test_a_message_that_is_named_costs_two_flights(one: Node, beside: Any, flights: Flights) -> None:
    for letter in ("a", "b"):
        one.app.actor(Sender, "s").send_all([letter], ["m"])
        row = waiting(beside)
        flights.sent.clear()
        (work,) = take(one, row)
        assert flights.sent[-1] == "depart"
        work()
        assert flights.sent[-3:] == ["depart", "land", "fly"]
    assert letters(one.app, "m") == ["a", "b"]
    assert beside.count("actor_outbox") == 0


def test_the_actor_is_locked_before_the_claim_is_read(one: Node, beside: Any, other_engine: Engine) -> None:
    one.app.actor(Mailbox, "m").take("before")
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    (work,) = take(one, waiting(beside))
    locked = text(f"""SELECT 1 FROM "{one.app.schema}".actor_generations WHERE actor_id = 'm' FOR UPDATE NOWAIT""")
    with other_engine.connect() as rival:
        eventually("it is locked", lambda: _refused(rival, locked))
    work()
    assert letters(one.app, "m") == ["before", "a"]


def _refused(rival: Connection, statement: Any) -> bool:
    with rival.begin():
        try:
            rival.execute(statement)
        except OperationalError as problem:
            return "could not obtain lock" in str(problem)
    return False


@pytest.mark.parametrize("wrong", ["another actor's", "nobody's", "an older sender's"])
def test_a_message_whose_actor_was_named_wrongly_arrives_all_the_same(one: Node, beside: Any, wrong: str) -> None:
    one.app.actor(Mailbox, "n").take("before")
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    keys = {"another actor's": address("actor", "default", "Mailbox", "n").routing_key, "nobody's": 5, "an older sender's": None}
    (work,) = take(one, waiting(beside, target_key=keys[wrong]))
    work()
    assert letters(one.app, "m") == ["a"]
    assert letters(one.app, "n") == ["before"]
    places = beside("SELECT bucket, routing_key, actor_id FROM {akter}.actor_generations WHERE actor_type = 'Mailbox' ORDER BY actor_id")
    assert places == [(*address("actor", "default", "Mailbox", id)[:2], id) for id in ("m", "n")]


class East(Actor, placement="tenant"):
    """Lives where all of its tenant do."""

    count: int = 0

    @command
    def add(self, by: int) -> None:
        self.count += by


class West(East):
    """Another type in the same place."""


@pytest.mark.parametrize("exists", [True, False])
def test_a_message_that_is_named_under_another_type_is_its_own_actors(node: Make, beside: Any, exists: bool) -> None:
    one = node(East, West)
    one.runner.relay._look_by = float("inf")
    one.app.actor(East, "x").add(1)
    if exists:
        one.app.actor(West, "x").add(1000)
    one.app.send(one.app.actor(West, "x").add, 1)
    take(one, waiting(beside, target_type="East", target_key=address("tenant", "default", "West", "x").routing_key))[0]()
    found = dict(beside("SELECT actor_type, (value ->> 'count')::int FROM {akter}.actor_state"))
    assert found == {"East": 1, "West": 1001 if exists else 1}
    assert beside("SELECT actor_type, actor_id FROM {akter}.actor_generations ORDER BY 1") == [("East", "x"), ("West", "x")]
    assert beside.count("actor_outbox") == 0


def test_a_message_that_is_named_again_does_not_wait_for_its_actor(node: Make, beside: Any, other_engine: Engine) -> None:
    one = node(app={"lock": 30.0, "execution": 30.0})
    one.runner.relay._look_by = float("inf")
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    row = waiting(beside)
    take(one, row)[0]()
    with other_engine.begin() as rival:
        rival.execute(text(f"""SELECT 1 FROM "{one.app.schema}".actor_generations WHERE actor_id = 'm' FOR UPDATE"""))
        began = time.monotonic()
        assert take(one, row) == []
        # It would wait for five seconds before it gave up.
        assert time.monotonic() - began < 4.0
    assert letters(one.app, "m") == ["a"]


def test_a_message_that_somebody_else_has_locks_nothing_and_leaves_the_admission_out_next_time(
    one: Node, node: Make, beside: Any, flights: Flights, other_engine: Engine
) -> None:
    other = node()
    other.runner.relay._look_by = float("inf")
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    row = waiting(beside)
    (work,) = take(other, row)
    flights.sent.clear()
    assert take(one, row) == []
    assert [name for name in flights.sent if name != "fly"] == ["depart", "land"]
    work()
    for letter, sent in (("b", ["fly"]), ("c", ["depart"])):
        one.app.actor(Sender, "s").send_all([letter], ["m"])
        row = waiting(beside)
        flights.sent.clear()
        (work,) = take(one, row)
        assert flights.sent[-1:] == sent
        work()
    assert letters(one.app, "m") == ["a", "b", "c"]


def test_what_an_earlier_claim_left_on_the_connection_is_not_taken_for_this_ones(one: Node, node: Make, beside: Any) -> None:
    other = node()
    other.runner.relay._look_by = float("inf")
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    take(one, waiting(beside))[0]()
    one.app.actor(Sender, "s").send_all(["b"], ["m"])
    row = waiting(beside)
    (work,) = take(other, row)
    began = time.monotonic()
    assert take(one, row) == []
    assert time.monotonic() - began < 1.9, "its actor is the other one's, for whose lock it would wait two seconds"
    work()
    assert letters(one.app, "m") == ["a", "b"]


def test_an_admission_that_found_nothing_is_made_again(one: Node, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    family = one.runner.relay._messages
    admission = family.admission
    # As where a pooler nobody noticed had the two transactions on two connections.
    monkeypatch.setattr(family, "admission", lambda message, ticket: admission(message, f"not {ticket}"))
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    take(one, waiting(beside))[0]()
    assert letters(one.app, "m") == ["a"]
    assert beside.count("actor_outbox") == 0


def test_a_row_that_nobody_can_read_lets_the_connection_go(one: Node, beside: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    family = one.runner.relay._messages
    start = family.start_here

    def keeping(rows: Any, sent: float, ahead: Any) -> Any:
        kept.append(ahead)
        return start(rows, sent, ahead)

    monkeypatch.setattr(family, "start_here", keeping)
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    row = waiting(beside)
    beside("UPDATE {akter}.actor_outbox SET command = 'gone'")
    assert take(one, row) == []
    assert one.runner.relay.wait_idle(20.0)
    assert kept[0] is not None
    assert one.runner._engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_refused_claim_leaves_nothing_on_its_connection(one: Node) -> None:
    with wire.Wire(one.app.engine, one.runner.relay._statements) as used:
        with pytest.raises(StatementFailed, match="nowhere"):
            used.transact([Line(raw("TABLE nowhere"), {})], 5.0, [Line(raw("SELECT 1"), {})])
        assert not used.broken
        assert not used.under_way
        used.roll_back()
        assert len(used.transact([Line(raw("SELECT 1"), {})], 5.0)) == 1


class Clerk(Actor):
    """Says that it has SQL of its own, and changes its mind."""

    files: int = 0

    @command(sql=True)
    def refuse(self) -> None:
        self.connection.execute(text("CREATE TABLE refused (id int)"))
        self.files += 1
        raise Returned(letter="x")


def test_own_sql_behind_such_an_admission_is_undone_with_a_rejection(node: Make, beside: Any) -> None:
    one = node(Clerk)
    one.runner.relay._look_by = float("inf")
    one.app.send(one.app.actor(Clerk, "c").refuse)
    take(one, waiting(beside, target_key=address("actor", "default", "Clerk", "c").routing_key))[0]()
    assert beside("SELECT last_error FROM {akter}.actor_outbox") == []
    assert beside("SELECT to_regclass('refused')::text, count(*) FROM {akter}.actor_receipts WHERE actor_id = 'c'") == [(None, 1)]


def test_a_busy_actors_message_waits_for_it(one: Node, beside: Any, other_engine: Engine) -> None:
    one.app.actor(Mailbox, "m").take("before")
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    with other_engine.begin() as rival:
        rival.execute(text(f"""SELECT 1 FROM "{one.app.schema}".actor_generations WHERE actor_id = 'm' FOR UPDATE"""))
        (work,) = take(one, waiting(beside))
        beside.until_waiting()
    work()
    assert letters(one.app, "m") == ["before", "a"]


def test_a_message_for_an_actor_that_stays_busy_goes_back(node: Make, beside: Any, other_engine: Engine) -> None:
    one = node(app={"lock": 0.2})
    one.runner.relay._look_by = float("inf")
    one.app.actor(Mailbox, "m").take("before")
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    with other_engine.begin() as rival:
        rival.execute(text(f"""SELECT 1 FROM "{one.app.schema}".actor_generations WHERE actor_id = 'm' FOR UPDATE"""))
        (work,) = take(one, waiting(beside))
        work()
        ((attempts, error),) = beside("SELECT attempts, last_error FROM {akter}.actor_outbox")
        assert attempts == 1
        assert "busy with another turn" in error
    advance(one.app, timedelta(seconds=5), one.runner)
    assert letters(one.app, "m") == ["before", "a"]


@pytest.mark.parametrize("member", ["hit", "refuse", "file"])
def test_what_a_handler_does_has_the_same_end_as_ever(one: Node, beside: Any, member: str) -> None:
    one.app.actor(Sender, "s").send_all(["a"], ["m"], member=member)
    (work,) = take(one, waiting(beside))
    work()
    if member == "hit":
        ((attempts, error),) = beside("SELECT attempts, last_error FROM {akter}.actor_outbox")
        assert (attempts, error) == (1, "Defect: Mailbox.hit of Mailbox/m failed and nothing was saved: ValueError: a is torn")
    else:
        assert beside.count("actor_outbox") == 0
        assert letters(one.app, "m") == (["a"] if member == "file" else [])
    assert handled.taken == {"a": 1}


def test_a_message_that_came_before_is_not_handled_again(one: Node, beside: Any) -> None:
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    beside("CREATE TABLE kept AS SELECT * FROM {akter}.actor_outbox")
    row = waiting(beside)
    take(one, row)[0]()
    beside("INSERT INTO {akter}.actor_outbox SELECT * FROM kept")
    take(one, row)[0]()
    assert beside.count("actor_outbox") == 0
    assert handled.taken == {"a": 1}


class Patient(Actor):
    """Has more time than others, and looks at it."""

    limit: str = ""
    idle: str = ""

    @command(timeout=90.0)
    def look(self) -> None:
        self.limit = self.connection.execute(text("SHOW statement_timeout")).scalar_one()
        self.idle = self.connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()


def test_a_command_with_a_time_limit_of_its_own_has_it(node: Make, beside: Any) -> None:
    one = node(Patient)
    one.runner.relay._look_by = float("inf")
    one.app.send(one.app.actor(Patient, "p").look)
    (work,) = take(one, waiting(beside, target_key=address("actor", "default", "Patient", "p").routing_key))
    work()
    ((value,),) = beside("SELECT value ->> 'limit' FROM {akter}.actor_state WHERE actor_id = 'p'")
    assert value.startswith(("89", "90")), "those of its turn, in seconds or milliseconds"


def test_a_runner_that_stops_lets_the_actor_go(one: Node, beside: Any) -> None:
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    (work,) = take(one, waiting(beside))
    one.runner.relay.stop_claiming(5)
    work()
    assert not handled.taken
    assert beside("SELECT attempts FROM {akter}.actor_outbox") == [(0,)]
    assert one.app.actor(Mailbox, "m").take("b") == 1


def test_a_crash_after_the_claim_leaves_it_to_the_lease(one: Node, beside: Any) -> None:
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    crash_next(one.app, "after_claim")
    (work,) = take(one, waiting(beside))
    work()
    assert one.runner._engine.pool.checkedout() == 0, "while the work is still known"  # type: ignore[attr-defined]
    assert not handled.taken
    assert one.app.actor(Mailbox, "m").take("b") == 1
    advance(one.app, LEASE * 2, one.runner)
    assert letters(one.app, "m") == ["b", "a"]


def test_through_a_pooler_the_admission_is_a_flight_of_its_own(
    one: Node, beside: Any, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "Link", lambda pooled: _pooled(Link(pooled)))
    monkeypatch.setattr(wire.Wire, "pooled", property(lambda self: True))
    one.app.actor(Sender, "s").send_all(["a"], ["m"])
    (work,) = take(one, waiting(beside))
    work()
    assert set(flights.sent) == {"fly"}
    assert letters(one.app, "m") == ["a"]


def _pooled(link: Link) -> Link:
    link.pooled = True
    return link
