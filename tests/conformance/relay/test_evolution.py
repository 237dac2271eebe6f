"""Code changes while what it stored stays: what older code wrote is brought up to date, what newer code wrote is refused and kept.

Two processes of different releases are two classes of one stored name, each with an app of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from post import Node
from sqlalchemy import Engine

from akter import (
    Actor,
    Akter,
    Attempt,
    CommandConflict,
    Defect,
    Event,
    Job,
    Payload,
    PayloadTooNew,
    command,
    query,
)
from akter.codec import Upcast
from akter.errors import DeclarationError
from akter.store import versions
from akter.tables import SCHEMA
from akter.testing import advance, inspect, settle

Make = Callable[..., Node]


def call(attempt: Attempt, number: str) -> None:
    """Call somebody."""


class Named(Event, name="named"):
    """What older code emits."""

    name: str


class Known(Event, name="known", aliases=["named"], migrations=[lambda old: {"first": old["name"], "last": ""}]):
    """What the same fact is called since, and says."""

    first: str
    last: str


class Person(Actor):
    """The first release."""

    name: str = ""
    age: int = 0
    phone = Job(call)

    @command
    def rename(self, name: str) -> str:
        self.name = name
        self.emit(Named(name=name))
        return name

    @command
    def ring(self, number: str) -> str:
        return self.enqueue(self.phone, number)

    @command
    def birthday(self) -> int:
        self.age += 1
        return self.age

    @query
    def known(self) -> str:
        return self.name

    @query
    def told(self) -> list[str]:
        return [entry.event.name for entry in self.events(Named)]


def split(old: dict[str, Any]) -> dict[str, Any]:
    """Two names instead of one."""
    first, _, last = old.pop("name").partition(" ")
    return {**old, "first": first, "last": last}


class Second(Actor, name="Person", migrations=[split]):
    """The second release: two names, a command that takes them, and an event that tells them."""

    first: str = ""
    last: str = ""
    age: int = 0
    phone = Job(call, migrations=[lambda old: {"number": "+" + old["number"]}])

    @command(migrations=[split])
    def rename(self, first: str, last: str) -> str:
        self.first, self.last = first, last
        self.emit(Known(first=first, last=last))
        return f"{first} {last}"

    @command
    def ring(self, number: str) -> str:
        return self.enqueue(self.phone, number)

    @command
    def birthday(self) -> int:
        self.age += 1
        return self.age

    @command
    def nothing(self) -> None:
        """Leaves everything as it is."""

    @query
    def known(self) -> tuple[str, str]:
        return self.first, self.last

    @query
    def told(self) -> list[tuple[str, str]]:
        return [(entry.event.first, entry.event.last) for entry in self.events(Known)]


@pytest.fixture
def first(node: Make) -> Node:
    return node(Person)


@pytest.fixture
def second(node: Make) -> Node:
    return node(Second)


def old(one: Node) -> Person:
    return one.app.actor(Person, "p-1")


def new(one: Node) -> Second:
    return one.app.actor(Second, "p-1")


def stored(beside: Any) -> dict[str, Any]:
    """Everything of the actors, as it is in the database."""
    tables = ("actor_state", "actor_events", "actor_receipts", "actor_outbox", "actor_generations")
    return {table: beside(f"SELECT t.*::text FROM {{akter}}.{table} t ORDER BY 1") for table in tables}


@pytest.mark.conformance("EVO-02")
def test_the_version_stands_beside_every_state_event_message_and_job(first: Node, second: Node, beside: Any) -> None:
    versions = """SELECT 'state', payload_version FROM {akter}.actor_state
        UNION ALL SELECT 'event', payload_version FROM {akter}.actor_events
        UNION ALL SELECT kind, payload_version FROM {akter}.actor_outbox ORDER BY 1, 2"""
    old(first).rename("Ada Lovelace")
    old(first).ring("112")
    first.app.send(old(first).rename, "Ada King")
    assert beside(versions) == [("event", 0), ("intent", 0), ("job", 0), ("state", 0)]
    new(second).rename("Ada", "Byron")
    new(second).ring("+112")
    second.app.send(new(second).rename, "Ada", "King")
    assert beside(versions) == [("event", 0), ("event", 1), ("intent", 0), ("intent", 1), ("job", 0), ("job", 1), ("state", 1)]


@pytest.mark.conformance("EVO-02")
def test_messages_from_a_turn_and_from_a_transaction_of_the_applications_carry_their_version(second: Node, beside: Any) -> None:
    class Caller(Actor):
        @command
        def ask(self) -> None:
            self.send(self.actor(Second, "p-1").rename, "Ada", "Byron")
            self.after(timedelta(hours=1)).send(self.actor(Second, "p-1").rename, "Ada", "King")

    app = Akter(second.app.engine, actors=[Caller, Second], schema=second.app.schema)
    app.actor(Caller, "c-1").ask()
    with app.engine.begin() as connection:
        app.within(connection).send(app.actor(Second, "p-1").rename, "Ada", "Lovelace")
    assert beside("SELECT payload_version, count(*) FROM {akter}.actor_outbox GROUP BY 1") == [(1, 3)]


def test_old_state_is_brought_up_to_date_and_rewritten_by_the_next_turn_that_succeeds(first: Node, second: Node) -> None:
    old(first).rename("Ada Lovelace")
    assert new(second).known() == ("Ada", "Lovelace")
    assert inspect(first.app, old(first)).payload_version == 0
    new(second).nothing()
    found = inspect(first.app, old(first))
    assert (found.payload_version, found.state) == (1, {"first": "Ada", "last": "Lovelace", "age": 0})


@pytest.mark.conformance("EVO-03")
def test_old_events_are_read_as_the_class_is_now_inside_and_outside(first: Node, second: Node) -> None:
    old(first).rename("Ada")
    new(second).rename("Ada", "Byron")
    assert new(second).told() == [("Ada", ""), ("Ada", "Byron")]
    assert [(entry.cursor, entry.event) for entry in second.app.events(new(second), Known)] == [
        ("1", Known(first="Ada", last="")),
        ("2", Known(first="Ada", last="Byron")),
    ]


def test_a_waiting_message_is_delivered_with_its_arguments_up_to_date(first: Node, second: Node, beside: Any) -> None:
    first.app.send(old(first).rename, "Ada Lovelace")
    settle(second.app, second.runner)
    assert new(second).known() == ("Ada", "Lovelace")
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("EVO-07")
@pytest.mark.parametrize(
    ("step", "said"),
    [
        pytest.param(lambda value: value["missing"], "the migration from version 0 failed with KeyError", id="raises"),
        pytest.param(lambda value: [value], "returned list, not a mapping", id="no mapping"),
        pytest.param(lambda value: {**value, "name": 5}, "Expected `str`, got `int`", id="another type"),
    ],
)
def test_a_failing_step_is_a_defect_and_skips_nothing(first: Node, node: Make, beside: Any, step: Upcast, said: str) -> None:
    old(first).rename("Ada")
    first.app.send(old(first).rename, "Eve")
    before = stored(beside)

    class Broken(Event, name="broken", aliases=["named"], migrations=[step]):
        name: str

    class Failing(Actor, name="Person", migrations=[step]):
        name: str = ""
        age: int = 0

        @command(migrations=[step])
        def rename(self, name: str) -> str:
            return name

        @query
        def known(self) -> str:
            return self.name

    other = node(Failing)
    person = other.app.actor(Failing, "p-1")
    with pytest.raises(Defect, match=said):
        person.known()
    with pytest.raises(Defect, match=said):
        person.rename("Bob")
    with pytest.raises(Defect, match=said):
        other.app.events(person, Broken)
    assert stored(beside) == before
    settle(other.app, other.runner)
    ((attempts, error, payload),) = beside("SELECT attempts, last_error, payload FROM {akter}.actor_outbox")
    assert (attempts, json.loads(payload)) == (1, {"name": "Eve"})
    assert said in error
    assert stored(beside)["actor_state"] == before["actor_state"]
    # Mended, nothing is lost.
    advance(first.app, timedelta(minutes=5), first.runner)
    assert old(first).known() == "Eve"


def advance_to(one: Node, kind: str, beside: Any) -> None:
    """Let newer code write one kind of payload, and nothing else of that kind's siblings."""
    if kind == "state":
        new(one).birthday()
    elif kind == "event":
        beside("UPDATE {akter}.actor_events SET payload_version = 7")
    elif kind == "intent":
        one.app.send(new(one).rename, "Ada", "Byron")
    else:
        beside("UPDATE {akter}.actor_outbox SET payload_version = 7 WHERE kind = 'job'")


NEWER = [
    pytest.param("state", "states of Person are stored as version 1, and this code reads up to 0", id="state"),
    pytest.param("event", r"events named of Person are stored as version 7, and this code reads up to 1", id="event"),
    pytest.param("intent", r"messages to Person\.rename are stored as version 1, and this code reads up to 0", id="message"),
    pytest.param("job", r"jobs Person\.phone are stored as version 7, and this code reads up to 0", id="job"),
]


@pytest.mark.conformance("EVO-09")
@pytest.mark.parametrize(("kind", "said"), NEWER)
def test_older_code_refuses_to_start_when_it_would_strand_what_is_stored(
    first: Node, second: Node, node: Make, beside: Any, kind: str, said: str
) -> None:
    old(first).rename("Ada")
    old(first).ring("112")
    node(Person).app.verify()
    advance_to(second, kind, beside)
    before = stored(beside)
    rolled_back = node(Person)
    with pytest.raises(PayloadTooNew, match=said):
        rolled_back.app.verify()
    with pytest.raises(PayloadTooNew, match=said):
        rolled_back.app.actor(Person, "p-1").birthday()
    with pytest.raises(PayloadTooNew, match="Deploy that code again"):
        rolled_back.runner.start()
    assert stored(beside) == before
    # What it registers is what it has to read.
    node(Bystander).app.verify()


class Bystander(Actor):
    """Of no concern."""

    @command
    def wave(self) -> None: ...


@pytest.mark.conformance("EVO-09")
def test_a_shortened_chain_is_refused_and_a_longer_one_is_not(second: Node, node: Make) -> None:
    new(second).rename("Ada", "Byron")

    class Shorter(Actor, name="Person", migrations=[]):
        first: str = ""
        last: str = ""

        @command
        def nothing(self) -> None: ...

    class Longer(Actor, name="Person", migrations=[split, lambda value: {"called": value["first"]}]):
        called: str = ""

        @query
        def known(self) -> str:
            return self.called

    with pytest.raises(PayloadTooNew):
        node(Shorter).app.verify()
    longer = node(Longer).app
    assert longer.actor(Longer, "p-1").known() == "Ada"


@pytest.mark.conformance("EVO-10")
def test_it_starts_once_nothing_newer_is_left_and_is_refused_again_when_a_backup_brings_it_back(
    first: Node, second: Node, node: Make, beside: Any
) -> None:
    new(second).birthday()
    with pytest.raises(PayloadTooNew):
        node(Person).app.verify()
    beside("CREATE TABLE backup AS SELECT * FROM {akter}.actor_state")
    beside("DELETE FROM {akter}.actor_state")
    node(Person).app.verify()
    beside("INSERT INTO {akter}.actor_state SELECT * FROM backup")
    with pytest.raises(PayloadTooNew):
        node(Person).app.verify()


def test_a_process_that_runs_while_newer_code_is_deployed_refuses_what_it_cannot_read_and_changes_nothing(
    first: Node, second: Node, beside: Any
) -> None:
    old(first).rename("Ada Lovelace")
    first.app.send(old(first).birthday)
    new(second).nothing()
    before = stored(beside)
    for use in (old(first).birthday, old(first).known):
        with pytest.raises(Defect, match="stored as version 1, but this code knows only 0: deploy the newer code again"):
            use()
    assert stored(beside) == before
    settle(first.app, first.runner)
    ((attempts, error),) = beside("SELECT attempts, last_error FROM {akter}.actor_outbox")
    assert attempts == 1
    assert "stored as version 1" in error
    # The message waits for the code that can read its receiver.
    advance(second.app, timedelta(minutes=5), second.runner)
    assert inspect(second.app, new(second)).state == {"first": "Ada", "last": "Lovelace", "age": 1}


def test_an_event_of_a_newer_version_is_a_defect_for_older_readers_and_others_are_still_read(first: Node, beside: Any) -> None:
    old(first).rename("Ada")
    old(first).rename("Eve")
    beside("UPDATE {akter}.actor_events SET payload_version = 1 WHERE sequence = 2")
    with pytest.raises(Defect, match="the event named: stored as version 1"):
        old(first).told()
    with pytest.raises(Defect, match="the event named: stored as version 1"):
        first.app.events(old(first), Named)
    assert [entry.event.name for entry in first.app.events(old(first), Named, limit=1)] == ["Ada"]


@pytest.mark.parametrize("kind", ["state", "event", "intent", "job"])
def test_the_check_reads_an_index_of_what_was_migrated_and_not_the_rows(
    first: Node, beside: Any, akter_engine: Engine, akter_schema: str, kind: Any
) -> None:
    old(first).rename("Ada")
    old(first).ring("112")
    first.app.send(old(first).birthday)
    table = {"state": "actor_state", "event": "actor_events"}.get(kind, "actor_outbox")
    columns = [
        row[0]
        for row in beside(
            "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:t AS regclass) AND attnum > 0", t=f"{akter_schema}.{table}"
        )
    ]
    kept = ", ".join(
        {"actor_id": "actor_id || n", "intent_id": "intent_id || n", "sequence": "sequence + n"}.get(name, name) for name in columns
    )
    beside(f"INSERT INTO {{akter}}.{table} ({', '.join(columns)}) SELECT {kept} FROM {{akter}}.{table}, generate_series(1, 10000) n")
    beside(f"ANALYZE {{akter}}.{table}")
    statement = versions._STATEMENTS[kind]
    options = {"schema_translate_map": {SCHEMA: akter_schema}, "render_schema_translate": True}
    compiled = cast(Any, statement).compile(dialect=akter_engine.dialect, **options)
    with akter_engine.connect() as connection:
        given = {"types": ["Person"] * 20, "names": ["named"] * 20}
        (plan,) = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled}", given).one()
    said = json.dumps(plan)
    assert f'"Index Name": "{table}_versions"' in said
    assert "Seq Scan" not in said


class Receipt(Payload):
    """What an order answers with."""

    number: int


class Order(Actor):
    """The first release."""

    orders: int = 0

    @command
    def place(self, item: str) -> Receipt:
        self.orders += 1
        return Receipt(number=self.orders)


@pytest.mark.conformance("EVO-14")
def test_a_retry_after_the_deploy_gets_the_first_answer_as_its_class_is_now(node: Make) -> None:
    before = node(Order)
    with before.app.command_id("o-1"):
        assert before.app.actor(Order, "o").place("tea") == Receipt(number=1)

    class Answer(Payload):
        number: int
        currency: str = "EUR"

    class Later(Actor, name="Order"):
        orders: int = 0

        @command
        def place(self, item: str, gift: bool = False) -> Answer:
            self.orders += 1
            return Answer(number=self.orders)

    after = node(Later)
    with after.app.command_id("o-1"):
        assert after.app.actor(Later, "o").place("tea") == Answer(number=1, currency="EUR")
    with after.app.command_id("o-1"), pytest.raises(CommandConflict):
        after.app.actor(Later, "o").place("tea", gift=True)
    assert inspect(after.app, after.app.actor(Later, "o")).state == {"orders": 1}


@pytest.mark.conformance("EVO-14")
def test_a_message_that_older_code_delivered_is_not_delivered_again_in_another_shape(first: Node, second: Node, beside: Any) -> None:
    first.app.send(old(first).rename, "Ada Lovelace")
    beside("CREATE TABLE kept AS SELECT * FROM {akter}.actor_outbox")
    settle(first.app, first.runner)
    # As if the row had outlived its delivery: its runner died in between, and the new code finds it.
    beside("INSERT INTO {akter}.actor_outbox SELECT * FROM kept")
    settle(second.app, second.runner)
    assert beside.count("actor_outbox") == 0
    assert len(inspect(second.app, new(second)).receipts) == 1
    assert [entry.event for entry in second.app.events(new(second), Known)] == [Known(first="Ada Lovelace", last="")]


class Sparse(Actor, name="Person"):
    """An earlier release that knows less of the state."""

    age: int = 0

    @command
    def birthday(self) -> int:
        self.age += 1
        return self.age

    @command
    def nothing(self) -> None: ...


def test_a_field_that_newer_code_added_outlives_the_turns_of_older_code(first: Node, node: Make) -> None:
    old(first).rename("Ada")
    sparse = node(Sparse).app.actor(Sparse, "p-1")
    version = inspect(first.app, old(first)).version
    sparse.birthday()
    assert (old(first).known(), inspect(first.app, old(first)).state) == ("Ada", {"age": 1, "name": "Ada"})
    sparse.nothing()
    assert inspect(first.app, old(first)).version == version + 1


def test_a_field_that_left_the_class_goes_with_a_migration(first: Node, node: Make) -> None:
    old(first).rename("Ada")

    class Cleaned(Actor, name="Person", migrations=[lambda value: {"age": value["age"]}]):
        age: int = 0

        @command
        def birthday(self) -> int:
            self.age += 1
            return self.age

    cleaned = node(Cleaned).app.actor(Cleaned, "p-1")
    cleaned.birthday()
    assert inspect(first.app, old(first)).state == {"age": 1}


def test_an_argument_that_this_code_does_not_take_keeps_the_message_waiting(node: Make, beside: Any) -> None:
    class Newer(Actor, name="Order"):
        @command
        def place(self, item: str, gift: bool = False) -> None: ...

    newer, older = node(Newer), node(Order)
    newer.app.send(newer.app.actor(Newer, "o").place, "tea", gift=True)
    settle(older.app, older.runner)
    ((attempts, error),) = beside("SELECT attempts, last_error FROM {akter}.actor_outbox")
    assert attempts == 1
    assert "Order.place(): Object contains unknown field `gift`" in error
    assert beside.count("actor_receipts") == 0
    advance(newer.app, timedelta(minutes=5), newer.runner)
    assert beside.count("actor_outbox") == 0


def test_a_renamed_command_takes_the_messages_of_its_old_name(node: Make, beside: Any) -> None:
    before = node(Order)
    before.app.send(before.app.actor(Order, "o").place, "tea")

    class Renamed(Actor, name="Order"):
        items: list[str] = []  # noqa: RUF012 - every actor gets its own copy

        @command(aliases=["place"])
        def buy(self, item: str) -> None:
            self.items.append(item)

    after = node(Renamed)
    settle(after.app, after.runner)
    assert inspect(after.app, after.app.actor(Renamed, "o")).state == {"items": ["tea"]}
    assert beside.count("actor_outbox") == 0


@pytest.mark.parametrize("steps", [[5], "split", split, [split, None]], ids=["number", "text", "function", "none"])
def test_a_chain_that_is_none_is_refused_when_the_class_is_built(steps: Any) -> None:
    with pytest.raises(DeclarationError, match="migrations is a list of functions"):
        command(migrations=steps)
    with pytest.raises(DeclarationError, match="migrations is a list of functions"):
        Job(call, migrations=steps)
