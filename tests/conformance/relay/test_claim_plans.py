"""What the claim reads, however much lies in the outbox: EXPLAIN, under both ways in which PostgreSQL plans a prepared statement."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from post import Mailbox, Node, handled

from akter.store import claim
from akter.store.flight import compile_core
from akter.testing import settle

Make = Callable[..., Node]
MODES = ("force_custom_plan", "force_generic_plan")
PLANS = pytest.mark.parametrize("mode", MODES)
LIMIT, EACH = 16, 4
VALUES = {
    "first": -128,
    "last": 127,
    "served": "{Mailbox,Sender}",
    "limit": LIMIT,
    "probe": 2 * LIMIT,
    "each": EACH,
    "lease_ms": 37_000,
    "max_backoff_ms": 256_000,
}

FILL = """
    INSERT INTO {schema}.actor_outbox (bucket, routing_key, tenant_id, actor_type, actor_id, intent_id, kind, target_type, target_id,
        command, payload, caller, due_at_ms, scheduled_at_ms, ready_at_ms)
    SELECT (i %% 256) - 128, ((i %% 256) - 128)::bigint << 56 | i, 'ghost', 'Ghost', i::text, %(name)s || i, %(kind)s, %(target)s, i::text,
        'haunt', '{{}}', '{{}}', due, due, CASE WHEN %(kind)s = 'job' THEN 0 END
    FROM generate_series(1, %(rows)s) AS i, LATERAL (SELECT (%(due)s + i)::bigint AS due) AS when_due"""


class Plan:
    """The claim as PostgreSQL carried it out, rolled back."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self.nodes = nodes
        self.due = [node for node in nodes if node.get("Index Name") == "actor_outbox_due_kind"]

    @property
    def read(self) -> int:
        """Rows that the due index gave."""
        return sum(round(node["Actual Rows"] * node["Actual Loops"]) for node in self.due)

    @property
    def filtered(self) -> int:
        """Rows that were read from the due index only to be thrown away."""
        return sum(round(node.get("Rows Removed by Filter", 0) * node["Actual Loops"]) for node in self.due)

    @property
    def looked_up(self) -> tuple[int, int]:
        """Rows that were found by their key or id, and at their place: each once to lock it, and once to move it."""
        keyed = [node for node in self.nodes if node.get("Index Name") in ("actor_outbox_pkey", "actor_outbox_intent")]
        placed = [node for node in self.nodes if node["Node Type"] == "Tid Scan"]
        by_key, by_place = (sum(round(node["Actual Rows"] * node["Actual Loops"]) for node in found) for found in (keyed, placed))
        return by_key, by_place

    @property
    def touched(self) -> int:
        """Pages that were looked at."""
        return sum(int(self.nodes[0][f"Shared {how} Blocks"]) for how in ("Hit", "Read"))

    def check(self) -> None:
        """The due time bounds the index range, rows are looked up one by one, and nothing of size is read from end to end."""
        assert self.due
        for node in self.due:
            assert "due_at_ms <=" in node["Index Cond"], node
            assert "bucket =" in node["Index Cond"], node
        self.check_scans()

    def check_scans(self) -> None:
        """Nothing of size is read from end to end."""
        scans = [node for node in self.nodes if node["Node Type"] == "Seq Scan"]
        assert {node["Relation Name"] for node in scans} <= {"actor_deployment", "actor_pauses"}, scans


class Explain:
    def __init__(self, connection: psycopg.Connection[Any], schema: str) -> None:
        self._connection, self._schema = connection, f'"{schema}"'
        self._claims = {made: compile_core(made(), schema) for made in (claim.intents, claim.named)}

    def fill(self, rows: int, *, kind: str = "intent", target: str = "Ghost", due: int = 0, name: str = "ghost-") -> None:
        values = {"rows": rows, "kind": kind, "target": target, "due": due, "name": name}
        self._connection.execute(FILL.format(schema=self._schema).encode(), values)

    def delete(self) -> None:
        self._connection.execute(f"DELETE FROM {self._schema}.actor_outbox".encode())

    def analyze(self) -> None:
        self._connection.execute(f"ANALYZE {self._schema}.actor_outbox".encode())

    def run(self, mode: str, made: Any = claim.intents, **changed: Any) -> Plan:
        statement = self._claims[made]
        values = {**statement.constants, **VALUES, **changed}
        arguments = ", ".join(psycopg.sql.quote(str(values[name])) for name in statement.parameters)
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
            self._connection.execute(b"PREPARE claim AS " + statement.sql)
            row = self._connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim({arguments})".encode()).fetchone()
            self._connection.execute(b"DEALLOCATE claim")
        assert row is not None
        found = row[0] if isinstance(row[0], list) else json.loads(row[0])
        return Plan(list(nodes_of(found[0]["Plan"])))


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes_of(inner)


@pytest.fixture
def explain(akter_database: str, akter_schema: str) -> Iterator[Explain]:
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as connection:
        yield Explain(connection, akter_schema)


@PLANS
@pytest.mark.conformance("REL-S-08")
def test_due_jobs_that_nobody_executes_are_not_read(explain: Explain, mode: str) -> None:
    explain.fill(10_000, kind="job")
    explain.analyze()
    plan = explain.run(mode)
    plan.check()
    assert (plan.read, plan.filtered) == (0, 0)


@pytest.mark.conformance("OUT-11")
def test_future_timers_are_not_read(explain: Explain, node: Make) -> None:
    explain.fill(500_000, target="Mailbox", due=2**52)
    explain.analyze()
    for mode in MODES:
        plan = explain.run(mode)
        plan.check()
        assert (plan.read, plan.filtered) == (0, 0)
    one = node()
    one.app.send(one.app.actor(Mailbox, "m").take, "a")
    for mode in MODES:
        plan = explain.run(mode)
        plan.check()
        assert plan.read <= 2
        assert [found["Actual Rows"] for found in plan.nodes if found["Node Type"] == "ModifyTable"] == [1]
        assert plan.looked_up == (0, 2)
    settle(one.app, one.runner)
    assert handled.taken == {"a": 1}


@PLANS
def test_due_messages_of_types_not_served_here_are_passed_over_within_their_buckets(explain: Explain, mode: str) -> None:
    explain.fill(10_000)
    explain.analyze()
    plan = explain.run(mode)
    plan.check()
    assert plan.read == 0
    assert plan.filtered == pytest.approx(10_000, rel=0.01)


@PLANS
@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_a_backlog_is_not_read_from_end_to_end(explain: Explain, mode: str, analyzed: bool) -> None:
    explain.fill(20_000, target="Mailbox")
    if analyzed:
        explain.analyze()
    plan = explain.run(mode)
    plan.check()
    assert plan.read <= 256 * EACH
    assert plan.looked_up == (0, 2 * LIMIT)
    assert plan.filtered == 0


@PLANS
@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
def test_a_claim_by_name_reads_the_rows_that_are_named_and_no_others(explain: Explain, mode: str, analyzed: bool) -> None:
    explain.fill(20_000, target="Mailbox")
    if analyzed:
        explain.analyze()
    plan = explain.run(mode, claim.named, **names(7, 300, 19_999))
    assert plan.due == []
    assert plan.looked_up == (3, 3)
    assert plan.touched <= 60
    assert [node["Actual Rows"] for node in plan.nodes if node["Node Type"] == "ModifyTable"] == [3]
    plan.check_scans()


@contextmanager
def long_front(explain: Explain, mode: str, url: str) -> Iterator[None]:
    """At the front of the due index lie ten thousand dead rows, which an open transaction holds, and as many of a type nobody serves."""
    with psycopg.connect(url.replace("+psycopg", "")) as report:
        report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        report.execute("SELECT 1")
        explain.fill(10_000, target="Mailbox")
        explain.delete()
        explain.fill(10_000)
        assert explain.run(mode).touched > 10_000, "the case is no case"
        yield


@PLANS
def test_neither_due_rows_of_other_types_nor_dead_rows_that_a_transaction_holds_are_in_the_way_of_a_claim_by_name(
    explain: Explain, mode: str, akter_database: str
) -> None:
    with long_front(explain, mode, akter_database):
        explain.fill(1, target="Mailbox", name="mine-")
        plan = explain.run(mode, claim.named, **names(1, name="mine-"))
        assert plan.due == []
        assert plan.looked_up == (1, 1)
        assert plan.touched <= 40


@PLANS
def test_neither_dead_rows_nor_due_rows_of_other_types_are_read_before_the_floor(explain: Explain, mode: str, akter_database: str) -> None:
    with long_front(explain, mode, akter_database):
        explain.fill(1, target="Mailbox", name="mine-", due=int(time.time() * 1000) - 2_000)
        plan = explain.run(mode, age_ms=60_000)
        plan.check()
        assert plan.filtered == 0
        assert [node["Actual Rows"] for node in plan.nodes if node["Node Type"] == "ModifyTable"] == [1]
        assert plan.touched <= 900, "each of 256 buckets is looked into"


def names(*numbers: int, name: str = "ghost-") -> dict[str, str]:
    """The parameters that name rows of `fill`."""
    keys = [((number % 256) - 128, number) for number in numbers]
    columns = {
        "named_bucket": [bucket for bucket, _ in keys],
        "named_routing_key": [bucket << 56 | number for bucket, number in keys],
        "named_intent_id": [f"{name}{number}" for _, number in keys],
    }
    return {column: f"{{{','.join(map(str, values))}}}" for column, values in columns.items()}
