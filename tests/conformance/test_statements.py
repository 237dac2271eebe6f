"""The statements of a turn by themselves: which indexes they use, and that many commands are as good as one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy

from akter import Actor, command
from akter.identity import Address, address
from akter.store import listing, log, reading
from akter.store import turn as statements
from akter.store.flight import Compiled, Line, Rows, StatementFailed, compile_core, fly, raw
from akter.store.link import Link
from akter.store.rows import key, parameters
from akter.store.turn import FENCE, Admitted

BEGIN, COMMIT, ROLLBACK = (Line(raw(verb), {}) for verb in ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", "COMMIT", "ROLLBACK"))


class Counted(Actor):
    """Counts."""

    count: int = 0

    @command
    def add(self) -> int:
        self.count += 1
        return self.count


class Client:
    """One connection that sends statements of turns."""

    def __init__(self, url: str, schema: str) -> None:
        made = sqlalchemy.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self.driver = psycopg.connect(made, autocommit=True)
        self.link, self.schema = Link(pooled=False), schema

    def compiled(self, build: Any, *options: bool) -> Compiled:
        return compile_core(build(*options), self.schema)

    def fly(self, *lines: Line) -> list[Rows]:
        return fly(self.driver, self.link, lines, 20.0)

    def lock(self, places: Sequence[Address], many: bool = True) -> None:
        self.fly(Line(self.compiled(statements.lock, many), parameters("", [key(place) for place in places], many)))

    def read(self, places: Sequence[Address], id: str = "a", many: bool = True) -> list[Admitted]:
        rows = [{**key(place), "command_id": id, "ord": position} for position, place in enumerate(places)]
        answer = self.fly(Line(self.compiled(statements.read, many), parameters("", rows, many)))[0].rows
        return sorted((Admitted(*row) for row in answer), key=lambda found: found.ord)

    def writing(
        self, places: Sequence[Address], found: Sequence[Admitted], id: str = "a", many: bool = True, states: int | None = None
    ) -> Line:
        """The write of a receipt for every actor, and a state and a mark for the first `states` of them."""
        saved = len(places) if states is None else states
        receipts = [
            {
                **key(place),
                "command_id": id,
                "command": "add",
                "payload_hash": "hash",
                "caller_key": "key",
                "outcome": '{"ok":1}',
                "expires_at_ms": 5_000,
                "started_at_ms": seen.now_ms,
            }
            for place, seen in zip(places, found, strict=True)
        ]
        rows = [
            {**key(place), "value": f'{{"number":{seen.ord}}}', "version": (seen.version or 0) + 1, "payload_version": 0}
            for place, seen in list(zip(places, found, strict=True))[:saved]
        ]
        marks = [key(place) for place in places[:saved]]
        values: dict[str, Any] = {"transaction": found[0].transaction, "receipts": len(receipts), "states": len(rows), "marks": len(marks)}
        values |= parameters("receipt_", receipts, many)
        if saved:
            values |= {**parameters("state_", rows, many), **parameters("mark_", marks, many)}
        return Line(self.compiled(statements.write, many, saved > 0, saved > 0), values)


@pytest.fixture
def client(akter_database: str, akter_schema: str) -> Iterator[Client]:
    made = Client(akter_database, akter_schema)
    with made.driver:
        yield made


@pytest.fixture
def narrow_engine(akter_database: str) -> Iterator[sqlalchemy.Engine]:
    """An engine with a single connection."""
    engine = sqlalchemy.create_engine(akter_database, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@contextmanager
def rival(akter_database: str, akter_schema: str) -> Iterator[Client]:
    made = Client(akter_database, akter_schema)
    with made.driver:
        yield made


def places(number: int = 3) -> list[Address]:
    """Actors that are not in the order of their keys."""
    found = [address("actor", "default", "Stock", f"s-{position}") for position in range(number)]
    return sorted(found, key=lambda place: (place.routing_key % 7, place.actor_id))


@pytest.mark.parametrize(("number", "many"), [(1, False), (1, True), (3, True)])
def test_lock_read_and_write_take_one_command_or_many_in_one_transaction(client, beside, number, many) -> None:
    three = places(number)
    for round in (1, 2):
        client.fly(BEGIN)
        client.lock(three, many)
        found = client.read(three, f"c-{round}", many)
        assert [seen.ord for seen in found] == list(range(number))
        assert [(seen.version, seen.created, seen.command) for seen in found] == [(round - 1 or None, round > 1, None)] * number
        assert len({seen.transaction for seen in found}) == 1
        client.fly(client.writing(three, found, f"c-{round}", many), COMMIT)
    assert beside("SELECT count(*), min(version), max(version) FROM {akter}.actor_state") == [(number, 2, 2)]
    assert beside("SELECT command_id, count(*) FROM {akter}.actor_receipts GROUP BY 1 ORDER BY 1") == [("c-1", number), ("c-2", number)]
    assert beside("SELECT created, count(*) FROM {akter}.actor_generations GROUP BY 1") == [(True, number)]
    stored = dict(beside("SELECT actor_id, value::text FROM {akter}.actor_state"))
    assert stored == {place.actor_id: f'{{"number":{position}}}' for position, place in enumerate(three)}
    client.fly(BEGIN)
    client.lock(three, many)
    assert [(seen.command, seen.payload_hash, seen.caller_key, seen.outcome) for seen in client.read(three, "c-1", many)] == [
        ("add", "hash", "key", '{"ok":1}')
    ] * number
    client.fly(ROLLBACK)


def test_each_command_of_many_sees_its_own_receipt_and_the_state_of_its_actor(client) -> None:
    three = places()
    client.fly(BEGIN)
    client.lock(three)
    client.fly(client.writing(three[:1], client.read(three[:1], "a"), "a"), COMMIT)
    client.fly(BEGIN)
    client.lock(three)
    found = client.read(three, "a")
    client.fly(ROLLBACK)
    assert [seen.outcome for seen in found] == ['{"ok":1}', None, None]
    assert [seen.value for seen in found] == [b'{"number":0}', None, None]


def test_many_are_locked_in_the_order_of_their_keys_so_that_two_groups_cannot_deadlock(
    client, beside, akter_database, akter_schema
) -> None:
    three = places()
    client.fly(BEGIN)
    client.lock(three)
    client.fly(client.writing(three, client.read(three)), COMMIT)
    first, middle, last = sorted(three)
    assert [three[0], three[-1]] != [first, last]
    client.fly(BEGIN)
    client.lock([middle])
    with rival(akter_database, akter_schema) as other:
        other.fly(BEGIN)
        waiting = threading.Thread(target=other.lock, args=([last, first, middle],))
        waiting.start()
        beside.until_waiting()
        free = "SELECT actor_id FROM {akter}.actor_generations FOR NO KEY UPDATE SKIP LOCKED"
        assert beside(free) == [(last.actor_id,)]
        client.fly(COMMIT)
        waiting.join(20)
        assert not waiting.is_alive()
        assert beside(free) == []


def test_a_lock_that_is_asked_for_twice_in_one_statement_is_taken_once(client, beside) -> None:
    place = places(1)[0]
    client.fly(BEGIN)
    client.lock([place, place])
    found = client.read([place, place])
    assert [seen.ord for seen in found] == [0, 1]
    client.fly(COMMIT)
    assert beside.count("actor_generations") == 1


@pytest.mark.conformance("TURN-26")
@pytest.mark.parametrize("number", [1, 3])
def test_one_state_that_moved_fences_the_whole_write(client, beside, number) -> None:
    three, many = places(number), number > 1
    client.fly(BEGIN)
    client.lock(three, many)
    client.fly(client.writing(three, client.read(three, "first", many), "first", many), COMMIT)
    client.fly(BEGIN)
    client.lock(three, many)
    found = client.read(three, "a", many)
    beside("UPDATE {akter}.actor_state SET version = version + 1 WHERE actor_id = :id", id=three[-1].actor_id)
    with pytest.raises(StatementFailed, match=f"{FENCE}: the state changed") as caught:
        client.fly(client.writing(three, found, "a", many), COMMIT)
    assert caught.value.position == 0
    client.fly(ROLLBACK)
    assert beside("SELECT DISTINCT command_id FROM {akter}.actor_receipts") == [("first",)]
    assert beside("SELECT DISTINCT version FROM {akter}.actor_state WHERE actor_id <> :id", id=three[-1].actor_id) in ([], [(1,)])


@pytest.mark.conformance("TURN-26")
def test_a_write_in_another_transaction_than_the_admitted_one_is_fenced(client, beside) -> None:
    three = places()
    client.fly(BEGIN)
    client.lock(three)
    found = client.read(three)
    client.fly(COMMIT, BEGIN)
    for states in (0, 3):
        with pytest.raises(StatementFailed, match=f"{FENCE}: another transaction"):
            client.fly(client.writing(three, found, states=states), COMMIT)
        client.fly(ROLLBACK, BEGIN)
    client.fly(ROLLBACK)
    assert [beside.count(table) for table in ("actor_receipts", "actor_state")] == [0, 0]


def test_a_refused_statement_makes_the_commit_behind_it_roll_back(client, beside) -> None:
    place = places(1)
    client.fly(BEGIN)
    client.lock(place)
    found = client.read(place)
    client.fly(client.writing(place, found))
    with pytest.raises(StatementFailed):
        client.fly(Line(raw("SELECT 1 / 0"), {}), COMMIT)
    client.fly(ROLLBACK)
    assert beside.count("actor_receipts") == 0


@pytest.mark.conformance("TURN-08")
@pytest.mark.parametrize("kind", ["custom", "generic"])
@pytest.mark.parametrize("number", [1, 3, 32])
def test_the_statements_of_a_turn_find_their_rows_by_primary_key(client, beside, kind, number) -> None:
    _fill(beside)
    many = number > 1
    chosen = [address("actor", "default", "Stock", f"{position}") for position in range(1, number + 1)]
    rows = [{**key(place), "command_id": "c", "ord": position} for position, place in enumerate(chosen)]
    found = [Admitted(0, True, 0, None, 1, 0, None, None, None, None, 0, "1", position) for position in range(number)]
    client.driver.execute(f"SET plan_cache_mode = force_{kind}_plan")
    lines = {
        "lock": Line(client.compiled(statements.lock, many), parameters("", [key(place) for place in chosen], many)),
        "read": Line(client.compiled(statements.read, many), parameters("", rows, many)),
        "write": client.writing(chosen, found, many=many),
    }
    if not many:
        lines["query"] = Line(client.compiled(reading.state_of), key(chosen[0]))
        lines["receipt"] = Line(client.compiled(reading.receipt_of), {**key(chosen[0]), "command_id": "c"})
        asked = {"after": 0, "upto": 2, "names": ["Made"], "limit": 10}
        lines["events"] = Line(client.compiled(log.read), {**key(chosen[0]), **asked})
    wanted = {
        "lock": {"actor_generations_pkey"},
        "read": {"actor_generations_pkey", "actor_state_pkey", "actor_receipts_pkey"},
        "write": {"actor_generations_pkey", "actor_state_pkey"},
        "query": {"actor_generations_pkey", "actor_state_pkey"},
        "receipt": {"actor_receipts_pkey"},
        "events": {"actor_generations_pkey", "actor_events_pkey"},
    }
    for name, line in lines.items():
        nodes = list(_nodes(_explain(client, line)))
        scanned = [node["Relation Name"] for node in nodes if node["Node Type"] in ("Seq Scan", "Parallel Seq Scan")]
        assert set(scanned) <= {"actor_deployment"}, name
        used = {node["Index Name"] for node in nodes if "Index Name" in node}
        used |= {index for node in nodes for index in node.get("Conflict Arbiter Indexes", ())}
        assert used == wanted[name], name


@pytest.mark.parametrize("emptied", [False, True], ids=["new tables", "emptied tables"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_plan_made_while_the_tables_are_empty_finds_a_receipt_by_its_key(client, beside, many, emptied) -> None:
    """Such a plan lives on. It read all receipts of an actor's type for each member of a group, until the table was analyzed."""
    if emptied:
        beside("VACUUM ANALYZE {akter}.actor_receipts")
    client.driver.execute("SET plan_cache_mode = force_generic_plan")
    client.driver.execute("SET enable_seqscan = off")
    chosen = [address("actor", "default", "Stock", str(number)) for number in range(3 if many else 1)]
    rows = [{**key(place), "command_id": "c", "ord": position} for position, place in enumerate(chosen)]
    lines = [Line(client.compiled(statements.read, many), parameters("", rows, many))]
    if not many:
        lines.append(Line(client.compiled(reading.receipt_of), {**key(chosen[0]), "command_id": "c"}))
    for line in lines:
        used = {node["Index Name"] for node in _nodes(_explain(client, line)) if node.get("Relation Name") == "actor_receipts"}
        assert used == {"actor_receipts_pkey"}


@pytest.mark.parametrize("kind", ["custom", "generic"])
def test_an_actor_type_that_statistics_do_not_know_is_found_by_its_key(client, beside, kind) -> None:
    """Statistics of a large table are renewed after a tenth of it changed, and until then a new type seems to have no rows."""
    _fill(beside)
    client.driver.execute(f"SET plan_cache_mode = force_{kind}_plan")
    place = address("actor", "default", "Young", "1")
    read = Line(client.compiled(statements.read, False), {**key(place), "command_id": "c", "ord": 0})
    asked = {"after": 0, "upto": 2, "names": ["Made"], "limit": 10}
    events = Line(client.compiled(log.read), {**key(place), **asked})
    used = {node["Index Name"] for line in (read, events) for node in _nodes(_explain(client, line)) if "Index Name" in node}
    assert used == {"actor_generations_pkey", "actor_state_pkey", "actor_receipts_pkey", "actor_events_pkey"}


def test_what_was_planned_for_empty_tables_is_planned_anew_once_they_have_grown(akter_app, narrow_engine, beside, monkeypatch) -> None:
    """PostgreSQL keeps such a plan until the table is analyzed, which a busy or a careful server puts off."""
    monkeypatch.setattr("akter.store.link._PLANNED_FOR", 8)
    app = akter_app(Counted, engine=narrow_engine)
    beside("ALTER TABLE {akter}.actor_receipts SET (autovacuum_enabled = off)")
    beside("VACUUM {akter}.actor_receipts")
    counted = app.actor(Counted, "a")
    for _ in range(7):
        counted.add()
    read = compile_core(statements.read(False), app.schema)
    place = {**key(address("actor", "default", "Counted", "a")), "command_id": "c", "ord": 0}
    asked = f"EXPLAIN EXECUTE {read.name.decode()}({', '.join(_literal(place[name]) for name in read.parameters)})"

    def scan() -> str:
        with narrow_engine.connect() as connection:
            return next(str(line) for (line,) in connection.exec_driver_sql(asked) if " on actor_receipts" in line)

    assert "Seq Scan" in scan()
    identity = "bucket, routing_key, tenant_id, actor_type, actor_id"
    beside(
        f"INSERT INTO {{akter}}.actor_receipts ({identity}, command_id, command, payload_hash, caller_key, outcome, expires_at_ms, "
        f"committed_at_ms) SELECT {identity}, 'x' || n, 'add', 'h', 'k', 'o', 0, 0 "
        "FROM {akter}.actor_generations, generate_series(1, 20000) n"
    )
    for _ in range(8):
        counted.add()
    assert "Index Scan using actor_receipts_pkey" in scan()


def test_a_page_of_actors_is_read_off_its_own_index_in_the_order_of_their_ids(client, beside) -> None:
    _fill(beside)
    client.driver.execute("SET plan_cache_mode = force_custom_plan")
    wanted = {"actor_type": "Stock", "tenant_id": "default", "after": "1", "limit": 3}
    page = Line(client.compiled(listing.page), wanted)
    nodes = list(_nodes(_explain(client, page)))
    assert "actor_generations_type" in {node.get("Index Name") for node in nodes}
    assert "Sort" not in {node["Node Type"] for node in nodes}
    assert [row[0] for row in client.fly(page)[0].rows] == ["10", "11", "12"]


def _fill(beside: Any) -> None:
    """20 000 actors, among them the first ones of the test."""
    identity = "bucket, routing_key, tenant_id, actor_type, actor_id"
    real = [address("actor", "default", "Stock", f"{position}") for position in range(1, 33)]
    beside(
        f"INSERT INTO {{akter}}.actor_generations ({identity}) SELECT k >> 56, k, 'default', 'Stock', 'x' || n "
        "FROM (SELECT n, hashint8extended(n, 0) AS k FROM generate_series(1, 20000) n) made"
    )
    for place in real:
        names = ", ".join(f":{name}" for name in place._fields)
        beside(f"INSERT INTO {{akter}}.actor_generations ({identity}) VALUES ({names})", **place._asdict())
    beside(
        f"INSERT INTO {{akter}}.actor_state ({identity}, value, version) SELECT {identity}, to_json(1), 1 FROM {{akter}}.actor_generations"
    )
    names = "command_id, command, payload_hash, caller_key, outcome, expires_at_ms, committed_at_ms"
    beside(
        f"INSERT INTO {{akter}}.actor_receipts ({identity}, {names}) "
        f"SELECT {identity}, 'c' || n, 'add', 'h', 'k', 'o', 0, 0 FROM {{akter}}.actor_generations, generate_series(1, 2) n"
    )
    names = "sequence, event, command_id, value, emitted_at_ms"
    beside(
        f"INSERT INTO {{akter}}.actor_events ({identity}, {names}) "
        f"SELECT {identity}, n, 'Made', 'c', to_json(1), 0 FROM {{akter}}.actor_generations, generate_series(1, 2) n"
    )
    for table in ("actor_generations", "actor_state", "actor_receipts", "actor_events"):
        beside(f"ANALYZE {{akter}}.{table}")


def _explain(client: Client, line: Line) -> dict[str, Any]:
    statement, values = line
    given = {**statement.constants, **values}
    client.driver.execute("DEALLOCATE ALL")
    client.driver.execute(b"PREPARE explained AS " + statement.sql)
    literals = ", ".join(_literal(given[name]) for name in statement.parameters)
    (plan,) = client.driver.execute(f"EXPLAIN (FORMAT JSON) EXECUTE explained({literals})").fetchone() or ()  # type: ignore[arg-type]
    whole = json.loads(plan) if isinstance(plan, str) else plan
    return dict(whole[0]["Plan"])


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return "ARRAY[" + ", ".join(_literal(item) for item in value) + "]"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
