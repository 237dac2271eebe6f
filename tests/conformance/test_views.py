"""VIEW, and what of OPS is a question of rights: read-only views with columns that stay, and who may read which."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Connection, text

from akter import Actor, Akter, Attempt, Event, Job, Rejection, command, schema
from akter.errors import SchemaError
from akter.operating import Operator
from akter.schema_state import VIEW_NAMES, views_schema
from akter.testing import advance, settle

conformance = pytest.mark.conformance
WHO = ["tenant", "type", "id", "routing_key", "placement"]


class Taken(Event):
    """Something was taken."""

    what: str


class Full(Rejection):
    """It is full."""


def weigh(attempt: Attempt, what: str) -> int:
    """Never run here."""
    raise AssertionError(what)


class Shelf(Actor):
    """Takes things, and asks for every kind of work."""

    things: tuple[str, ...] = ()
    weigh = Job(weigh)

    @command
    def take(self, what: str) -> int:
        if len(self.things) == 2:
            raise Full()
        self.things = (*self.things, what)
        self.emit(Taken(what=what))
        return len(self.things)

    @command
    def ask(self) -> None:
        self.send(self.actor(Shelf, "other").take, "a book")
        self.after(timedelta(hours=1), key="dust").send(self.take, "dust")
        self.enqueue(self.weigh, what="a book")


@pytest.fixture
def app(akter_app: Callable[..., Akter]) -> Akter:
    return akter_app(Shelf)


class Reader:
    """Reads views, as whoever its connection is."""

    def __init__(self, connection: Connection, place: str) -> None:
        self._connection, self.place = connection, place

    def __call__(self, view: str, columns: str = "*", more: str = "") -> list[dict[str, Any]]:
        found = self._connection.execute(text(f'SELECT {columns} FROM "{self.place}".{view} {more}'))
        return [dict(row) for row in found.mappings()]

    def refused(self, statement: str) -> str:
        """What PostgreSQL refuses a statement with; a statement that it lets pass fails the test."""
        with pytest.raises(sqlalchemy.exc.DBAPIError) as problem:
            self._connection.execute(text(statement))
        assert isinstance(problem.value.orig, psycopg.Error)
        return str(problem.value.orig.sqlstate)


@pytest.fixture
def view(akter_database: str, akter_schema: str) -> Iterator[Reader]:
    """The views as the owner of the tables sees them."""
    engine = sqlalchemy.create_engine(akter_database, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield Reader(connection, views_schema(akter_schema))


@pytest.fixture
def as_role(akter_database: str, akter_schema: str, view: Reader) -> Iterator[Callable[..., Reader]]:
    """A function that makes a role which may read these views (all unless told), and returns them as it sees them."""
    name = f"reader_{uuid4().hex[:8]}"
    engine = sqlalchemy.create_engine(akter_database, poolclass=sqlalchemy.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:

        def make(*views: str) -> Reader:
            view._connection.execute(text(f"CREATE ROLE {name}"))
            for line in schema.grants_of_views(name, views, schema=akter_schema).splitlines():
                view._connection.execute(text(line))
            connection.execute(text(f"SET ROLE {name}"))
            return Reader(connection, views_schema(akter_schema))

        yield make
        connection.execute(text("RESET ROLE"))
    view._connection.execute(text(f"DROP OWNED BY {name}; DROP ROLE {name}"))


@conformance("VIEW-01")
def test_the_views_show_what_is_committed_and_nothing_else(app: Akter, view: Reader) -> None:
    shelf = app.actor(Shelf, "s")
    with app.command_id("first"):
        shelf.take("a cup")
    shelf.take("a plate")
    with pytest.raises(Full):
        shelf.take("a bowl")
    shelf.ask()
    with app.engine.connect() as open_, open_.begin():
        app.within(open_).send(shelf.take, "a fork")
        assert view("outbox", "count(*)") == [{"count": 3}]
        open_.rollback()
    who = {"tenant": "default", "type": "Shelf", "id": "s", "routing_key": shelf._address.routing_key, "placement": "actor"}  # type: ignore[attr-defined]
    assert view("actors") == [{**who, "generation": 0, "created": False, "event_sequence": 2, "state_version": 2}]
    assert view("state") == [{**who, "version": 2, "payload_version": 0, "value": {"things": ["a cup", "a plate"]}}]
    order = "ORDER BY committed_at_ms, command_id"
    assert view("receipts", "command, rejected, caller_key", order) == [
        {"command": "take", "rejected": rejected, "caller_key": '["System","process",null,null]'} for rejected in (False, False, True)
    ] + [{"command": "ask", "rejected": False, "caller_key": '["System","process",null,null]'}]
    assert view("outcomes", "outcome", "WHERE command_id LIKE 'u:%'") == [{"outcome": {"ok": 1}}]
    assert view("events", "sequence, event, value", "ORDER BY sequence") == [
        {"sequence": 1, "event": "Taken", "value": {"what": "a cup"}},
        {"sequence": 2, "event": "Taken", "value": {"what": "a plate"}},
    ]
    waits = view("outbox", "kind, target_type, target_id, command, key, attempts, parked", "ORDER BY due_at_ms, kind DESC")
    asked = {"target_type": "Shelf", "attempts": 0, "parked": False}
    assert sorted(waits, key=lambda row: (row["kind"], row["command"], row["target_id"])) == [
        {**asked, "kind": "intent", "target_id": "other", "command": "take", "key": None},
        {**asked, "kind": "intent", "target_id": "s", "command": "take", "key": "dust"},
        {**asked, "kind": "job", "target_id": "s", "command": "weigh", "key": None},
    ]
    assert view("timers", "key, command, payload") == [{"key": "dust", "command": "take", "payload": '{"what":"dust"}'}]
    assert view("jobs", "job, running, payload") == [{"job": "weigh", "running": False, "payload": '{"what":"a book"}'}]
    assert view("dead_letters") == []


def test_a_message_from_outside_has_no_placement_and_is_shown(app: Akter, view: Reader) -> None:
    app.send(app.actor(Shelf, "s").take, "a cup")
    assert view("outbox", "type, placement, target_id") == [{"type": "$outside", "placement": None, "target_id": "s"}]


def test_a_time_is_there_twice_and_what_never_comes_has_no_date(app: Akter, view: Reader, beside: Any) -> None:
    app.actor(Shelf, "s").ask()
    (timer,) = view("timers", "due_at_ms, due_at")
    assert timer["due_at"] == datetime.fromtimestamp(timer["due_at_ms"] / 1000, UTC)
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = 9007199254740991")
    assert view("outbox", "due_at, parked") == [{"due_at": None, "parked": True}] * 3
    times = [
        (row["table_name"], row["column_name"])
        for row in Reader(view._connection, "information_schema")(
            "columns", "table_name, column_name", f"WHERE table_schema = '{view.place}' AND column_name LIKE '%\\_ms'"
        )
    ]
    assert len(times) == 14
    for name, column in times:
        assert view(name, f"{column.removesuffix('_ms')}", "LIMIT 0") == []


@conformance("VIEW-02")
def test_tenants_are_apart(app: Akter, view: Reader) -> None:
    for tenant in ("acme", "globex"):
        with app.tenant(tenant):
            app.actor(Shelf, "s").take(f"of {tenant}")
            app.actor(Shelf, "s").ask()
    numbers = {"actors": 1, "state": 1, "receipts": 2, "outcomes": 2, "events": 1, "outbox": 3, "timers": 1, "jobs": 1}
    for name, number in numbers.items():
        assert view(name, "tenant, count(*)", "GROUP BY tenant ORDER BY tenant") == [
            {"tenant": "acme", "count": number},
            {"tenant": "globex", "count": number},
        ], name
    assert view("state", "value", "WHERE tenant = 'acme'") == [{"value": {"things": ["of acme"]}}]


@conformance("VIEW-03")
@pytest.mark.parametrize("name", VIEW_NAMES)
def test_nobody_writes_through_a_view_not_even_the_owner(app: Akter, view: Reader, name: str) -> None:
    app.actor(Shelf, "s").take("a cup")
    (column, *_) = columns(view, name)
    for statement in (
        f"INSERT INTO \"{view.place}\".{name} ({column}) VALUES ('x')",
        f"UPDATE \"{view.place}\".{name} SET {column} = 'x'",
        f'DELETE FROM "{view.place}".{name}',
    ):
        assert view.refused(statement) == "55000", statement
    assert view.refused(f'TRUNCATE "{view.place}".{name}') == "42809"


@conformance("VIEW-04", "OPS-01")
def test_a_role_that_may_read_the_views_can_do_nothing_else(app: Akter, as_role: Callable[..., Reader]) -> None:
    app.actor(Shelf, "s").take("a cup")
    reader = as_role()
    for name in VIEW_NAMES:
        reader(name)
    assert reader("state", "value") == [{"value": {"things": ["a cup"]}}]
    for statement in (
        f'SELECT 1 FROM "{app.schema}".actor_state',
        f'DELETE FROM "{app.schema}".actor_receipts',
        f'INSERT INTO "{app.schema}".actor_operator_audit SELECT',
        f'CREATE VIEW "{reader.place}".more AS SELECT 1',
        f'DROP VIEW "{reader.place}".actors',
    ):
        assert reader.refused(statement) == "42501", statement
    # Nor by what an operator does.
    role = reader._connection.execute(text("SELECT current_user")).scalar_one()
    engine = sqlalchemy.create_engine(app.engine.url, poolclass=sqlalchemy.NullPool, connect_args={"options": f"-c role={role}"})
    operator = Operator(engine, schema=app.schema)
    for act in (
        lambda: operator.pause("intents"),
        lambda: operator.discard("an-id"),
        lambda: operator.redirect("an-id", to={"target_id": "x"}),
    ):
        with pytest.raises(SchemaError, match="this role may not read schema"):
            act()
    assert Operator(app.engine, schema=app.schema).overview().paused == []


@conformance("OPS-03")
def test_what_commands_answered_is_shown_to_those_who_may_read_outcomes(app: Akter, as_role: Callable[..., Reader]) -> None:
    app.actor(Shelf, "s").take("a cup")
    reader = as_role("receipts")
    assert reader("receipts", "id, command, rejected") == [{"id": "s", "command": "take", "rejected": False}]
    assert "ok" not in json.dumps(reader("receipts"), default=str)
    for name in ("outcomes", "state", "events", "outbox"):
        assert reader.refused(f'SELECT 1 FROM "{reader.place}".{name}') == "42501"


@conformance("OPS-10")
def test_a_role_for_outcomes_reads_the_receipts_answers_and_no_state(app: Akter, as_role: Callable[..., Reader]) -> None:
    app.actor(Shelf, "s").take("a cup")
    reader = as_role("outcomes")
    assert reader("outcomes", "id, command, outcome") == [{"id": "s", "command": "take", "outcome": {"ok": 1}}]
    assert reader.refused(f'SELECT 1 FROM "{reader.place}".state') == "42501"


COLUMNS = {
    "actors": "generation created event_sequence state_version",
    "state": "version payload_version value",
    "receipts": "command_id command caller_key rejected started_at_ms started_at committed_at_ms committed_at expires_at_ms expires_at",
    "outcomes": "command_id command outcome",
    "events": "sequence event command_id emitted_at_ms emitted_at payload_version value",
    "outbox": "intent_id kind target_type target_id command key attempts last_error parked due_at_ms due_at scheduled_at_ms scheduled_at "
    "running caller payload_version payload",
    "timers": "intent_id target_type target_id command key attempts last_error parked due_at_ms due_at scheduled_at_ms scheduled_at "
    "payload_version payload",
    "jobs": "job_id job key attempts last_error running waiting ambiguous maybe_applied final_failure due_at_ms due_at ready_at_ms "
    "ready_at cancelled_at_ms cancelled_at payload_version payload",
    "dead_letters": "job_id job cause attempts ambiguous dead_at_ms dead_at payload_version payload",
    "subscriptions": "subscriber_type subscription subscriber_id events active delivered behind attempts last_error gaps due_at_ms due_at",
    "operator_audit": "audit_id operator action target reason at_ms at outcome",
}
"""The columns there are, behind whom a row is of. Columns are only ever added, at the end; anything else is a new view."""


def columns(view: Reader, name: str) -> list[str]:
    where = f"WHERE table_schema = '{view.place}' AND table_name = '{name}' ORDER BY ordinal_position"
    return [row["column_name"] for row in Reader(view._connection, "information_schema")("columns", "column_name", where)]


@pytest.mark.parametrize("name", COLUMNS)
def test_the_columns_stay(view: Reader, name: str) -> None:
    wanted = [*WHO, *COLUMNS[name].split()]
    assert columns(view, name)[: len(wanted)] == wanted


def test_all_views_are_promised(view: Reader) -> None:
    assert sorted([*COLUMNS, "views"]) == list(VIEW_NAMES)


def test_a_timer_is_one_by_its_key_or_as_long_as_its_time_has_not_come(app: Akter, view: Reader) -> None:
    with app.engine.begin() as connection:
        app.within(connection).after(timedelta(hours=3)).send(app.actor(Shelf, "s").take, "a cup")
    assert view("timers", "key, target_id") == [{"key": None, "target_id": "s"}]
    advance(app, timedelta(hours=4))
    assert view("timers") == []
    assert view("outbox", "target_id") == [{"target_id": "s"}]
    settle(app)
    assert view("outbox") == []
