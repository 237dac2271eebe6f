"""RET: what a sweep prunes, and that no command runs twice because of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy import text

from akter import Actor, Akter, CommandExpired, Event, RetentionGap, Runner, Unavailable, command, query
from akter.errors import ConfigurationError, DeclarationError
from akter.fault import Point
from akter.runner import retention
from akter.runner.retention import kept
from akter.store.retention import begin, old_events, old_receipts, prune, take
from akter.tables import IDENTITY, SCHEMA
from akter.testing import advance, crash_next, inspect, pause_next, receipts, settle, sweep

DAY = timedelta(days=1)
conformance = pytest.mark.conformance


class Counted(Event):
    """It was counted to a number."""

    to: int


class Counter(Actor):
    """Counts its runs."""

    count: int = 0

    @command
    def add(self) -> int:
        self.count += 1
        return self.count

    @command
    def tell(self, times: int = 1) -> None:
        for _ in range(times):
            self.count += 1
            self.emit(Counted(to=self.count))

    @command
    def send_to(self, id: str) -> str:
        return self.send(self.actor(Counter, id).add)

    @query
    def value(self) -> int:
        return self.count

    @query(timeout=0.5)
    def sleep(self) -> None:
        self.connection.execute(text("SELECT pg_sleep(40)"))


class Brief(Actor, keep_receipts=timedelta(0), keep_events=timedelta(hours=1)):
    """Keeps nothing longer than it must."""

    count: int = 0

    @command
    def add(self) -> int:
        self.count += 1
        return self.count

    @command
    def tell(self) -> None:
        self.emit(Counted(to=1))

    @command(timeout=120.0)
    def slow(self) -> None:
        """A call of it may take 122 seconds."""


@pytest.fixture
def app(akter_app: Callable[..., Akter]) -> Akter:
    return akter_app(Counter, Brief)


def swept(app: Akter) -> dict[str, tuple[int, int]]:
    return {found.actor_type: (found.receipts, found.events) for found in sweep(app)}


def sequences(app: Akter, handle: Any) -> list[int]:
    return [row["sequence"] for row in inspect(app, handle).events]


@conformance("RET-01")
def test_receipts_go_when_their_time_is_over_and_the_id_stays_refused_after_a_restart(app: Akter, akter_app: Callable[..., Akter]) -> None:
    counter, id = app.actor(Counter, "c"), app.mint_command_id()
    with app.command_id(id):
        assert counter.add() == 1
    advance(app, 7 * DAY - timedelta(minutes=1))
    assert swept(app) == {"Counter": (0, 0), "Brief": (0, 0)}
    assert [receipt.command_id for receipt in receipts(app, counter)] == [str(id)]
    advance(app, timedelta(minutes=1, seconds=1))
    assert swept(app) == {"Counter": (1, 0), "Brief": (0, 0)}
    assert receipts(app, counter) == ()
    restarted = akter_app(Counter, Brief)
    with restarted.command_id(id), pytest.raises(CommandExpired):
        restarted.actor(Counter, "c").add()
    assert counter.value() == 1


@conformance("RET-02")
def test_an_id_that_expired_unused_is_refused_by_a_restarted_process(app: Akter, akter_app: Callable[..., Akter]) -> None:
    id = app.mint_command_id()
    advance(app, 8 * DAY)
    sweep(app)
    restarted = akter_app(Counter, Brief)
    with restarted.command_id(id), pytest.raises(CommandExpired):
        restarted.actor(Counter, "c").add()
    assert inspect(app, app.actor(Counter, "c")).state is None


@conformance("RET-03")
def test_the_receipt_of_a_message_stays_as_long_as_the_message_waits(app: Akter, beside: Any) -> None:
    target, runner = app.actor(Brief, "b"), Runner(app, listen=False, ride=False)
    sent = app.send(target.add)
    # The receiver commits, and its runner dies before it deletes the row.
    crash_next(app, "before_outbox_delete")
    settle(app, runner)
    assert inspect(app, target).state == {"count": 1}
    advance(app, 31 * DAY)
    assert swept(app)["Brief"] == (0, 0)
    assert [receipt.command_id for receipt in receipts(app, target)] == [sent]
    settle(app, runner)
    assert inspect(app, target).state == {"count": 1}, "the receipt answered the second delivery"
    assert beside.count("actor_outbox") == 0
    assert swept(app)["Brief"] == (1, 0)
    runner.stop()


@contextmanager
def _between_two_tries(app: Akter, start: Callable[..., Future[Any]], dies_at: Point) -> Iterator[None]:
    """A call under a minted id whose first try dies there; the block runs before the second, whose answer is that the id has expired."""
    brief, id = app.actor(Brief, "b"), app.mint_command_id()
    crash_next(app, dies_at)

    def call() -> int:
        with app.command_id(id):
            return brief.add()

    with pause_next(app, "queued", command_id=str(id)) as first:
        answer = start(call)
        first.wait()
        with pause_next(app, "queued", command_id=str(id)) as second:
            first.release()
            second.wait()
            yield
            second.release()
            with pytest.raises(CommandExpired):
                answer.result(20)


@conformance("RET-04")
def test_a_command_admitted_in_time_completes_although_receipts_are_kept_shortly(app: Akter, start: Callable[..., Future[Any]]) -> None:
    with _between_two_tries(app, start, "before_commit"):
        # Its id is over, its call is not. The effect stands, but the id was over when the answer was there.
        advance(app, DAY + timedelta(seconds=5))
        assert swept(app)["Brief"] == (0, 0)
    assert brief_count(app) == 1
    advance(app, timedelta(seconds=110))
    assert swept(app)["Brief"] == (0, 0), "a call may take 122 seconds"
    advance(app, timedelta(seconds=8))
    assert swept(app)["Brief"] == (1, 0)


def brief_count(app: Akter) -> int:
    state = inspect(app, app.actor(Brief, "b")).state
    return 0 if state is None else int(state["count"])


@conformance("RET-12")
def test_a_retry_that_comes_after_its_receipt_was_pruned_is_refused(app: Akter, start: Callable[..., Future[Any]]) -> None:
    with _between_two_tries(app, start, "after_commit"):
        # As when the machine slept between two tries.
        advance(app, DAY + timedelta(seconds=130))
        assert swept(app)["Brief"] == (1, 0)
    assert brief_count(app) == 1


@conformance("RET-05")
def test_only_the_oldest_events_go_and_their_numbers_are_never_given_again(app: Akter) -> None:
    counter = app.actor(Counter, "c")
    counter.tell(3)
    advance(app, 20 * DAY)
    counter.tell(2)
    advance(app, 10 * DAY)
    assert swept(app)["Counter"][1] == 3
    assert sequences(app, counter) == [4, 5]
    with pytest.raises(RetentionGap) as gap:
        app.events(counter, Counted, after="1")
    assert (gap.value.after, gap.value.resume_after) == ("1", "3")
    assert [entry.event.to for entry in app.events(counter, Counted, after="3")] == [4, 5]
    advance(app, 20 * DAY)
    assert swept(app)["Counter"][1] == 2
    assert sequences(app, counter) == []
    counter.tell()
    assert sequences(app, counter) == [6]
    assert inspect(app, counter).event_sequence == 6


@conformance("RET-06")
def test_what_is_left_is_whole_although_a_timestamp_is_out_of_line(app: Akter, beside: Any) -> None:
    counter, other = app.actor(Counter, "c"), app.actor(Counter, "d")
    counter.tell(5)
    other.tell(1)
    beside("UPDATE {akter}.actor_events SET emitted_at_ms = emitted_at_ms + :later WHERE sequence = 2", later=20 * 86_400_000)
    beside("UPDATE {akter}.actor_events SET emitted_at_ms = emitted_at_ms + :later WHERE sequence > 3", later=10 * 86_400_000)
    advance(app, 31 * DAY)
    assert swept(app)["Counter"][1] == 4
    assert (sequences(app, counter), sequences(app, other)) == ([4, 5], [])


@conformance("RET-07")
def test_batches_leave_whole_histories(app: Akter, monkeypatch: pytest.MonkeyPatch, beside: Any) -> None:
    monkeypatch.setattr(retention, "BATCH", 4)
    handles = [app.actor(Counter, f"c-{number}") for number in range(3)]
    for handle in handles:
        handle.tell(7)
    # In turn, so that every batch cuts through several histories.
    beside("UPDATE {akter}.actor_events SET emitted_at_ms = (SELECT min(emitted_at_ms) FROM {akter}.actor_events) - 100000 + sequence")
    advance(app, 30 * DAY - timedelta(seconds=50))
    seen: list[list[int]] = []

    class Stop:
        """Ends the sweep after two batches."""

        def is_set(self) -> bool:
            return len(seen) == 2

        def wait(self, seconds: float) -> None:
            seen.append([min(sequences(app, handle)) for handle in handles])

    stopped = retention.Sweeper(app, Stop()).sweep()  # type: ignore[arg-type]
    assert [found.events for found in stopped if found.actor_type == "Counter"] == [8]
    assert len(seen) == 2
    for handle in handles:
        left = sequences(app, handle)
        assert left == list(range(left[0], 8))
    assert sum(len(sequences(app, handle)) for handle in handles) == 21 - 8
    assert swept(app)["Counter"][1] == 13


def test_rows_that_must_be_kept_do_not_hold_up_the_others(app: Akter, monkeypatch: pytest.MonkeyPatch, beside: Any) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    brief = app.actor(Brief, "b")
    for _ in range(12):
        app.send(brief.add)
    settle(app)
    assert len(receipts(app, brief)) == 12
    # The ten oldest are of one age, and their messages wait again.
    app.actor(Counter, "c").send_to("other")
    beside(
        """WITH ranked AS (SELECT command_id, row_number() OVER (ORDER BY expires_at_ms, command_id) AS rank
                             FROM {akter}.actor_receipts WHERE actor_type = 'Brief')
           UPDATE {akter}.actor_receipts r SET expires_at_ms = 1000 + (rank > 10)::int
             FROM ranked WHERE ranked.command_id = r.command_id"""
    )
    columns = "bucket, routing_key, tenant_id, actor_type, actor_id, target_type, target_id, command, payload, caller, due_at_ms"
    beside(
        f"""INSERT INTO {{akter}}.actor_outbox ({columns}, scheduled_at_ms, intent_id)
            SELECT {", ".join(f"o.{name}" for name in columns.split(", "))}, o.scheduled_at_ms, r.command_id
              FROM {{akter}}.actor_receipts r, {{akter}}.actor_outbox o WHERE r.expires_at_ms = 1000"""
    )
    assert swept(app)["Brief"] == (2, 0)
    assert len(receipts(app, brief)) == 10


def test_each_type_says_how_long_and_the_app_says_it_for_the_others(akter_app: Callable[..., Akter]) -> None:
    app = akter_app(Counter, Brief, keep_receipts=3 * DAY, keep_events=timedelta.max, retry_window=DAY)
    hour, forever = 3_600_000, timedelta.max // timedelta(milliseconds=1)
    assert kept(app) == [retention.Kept("Brief", 122_000, hour), retention.Kept("Counter", 2 * 24 * hour, forever)]
    app.actor(Counter, "c").tell()
    advance(app, 10_000 * DAY)
    assert swept(app) == {"Counter": (1, 0), "Brief": (0, 0)}


def test_a_type_is_swept_by_one_process_at_a_time_and_not_again_at_once(app: Akter, akter_app: Callable[..., Akter], beside: Any) -> None:
    first, other = retention.Sweeper(app), retention.Sweeper(akter_app(Counter))
    assert [found.actor_type for found in first.sweep(every=60.0)] == ["Brief", "Counter"]
    assert [found.actor_type for found in other.sweep(every=60.0)] == []
    advance(app, timedelta(seconds=61))
    assert [found.actor_type for found in other.sweep(every=60.0)] == ["Counter"]
    assert beside("SELECT resource FROM {akter}.actor_coordination ORDER BY 1") == [("retention:Brief",), ("retention:Counter",)]


def test_two_sweeps_of_one_type_wait_for_each_other(app: Akter, beside: Any, start: Callable[..., Future[Any]]) -> None:
    app.actor(Brief, "b").tell()
    advance(app, 2 * DAY)
    sweep(app)
    app.actor(Brief, "b").tell()
    advance(app, 2 * DAY)
    with app.engine.connect() as held, held.begin():
        held.execute(text(f"SELECT 1 FROM \"{app.schema}\".actor_coordination WHERE resource = 'retention:Brief' FOR UPDATE"))
        waiting = start(sweep, app)
        beside.until_waiting()
        assert not waiting.done()
    assert {found.actor_type: (found.receipts, found.events) for found in waiting.result(20)}["Brief"] == (1, 1)


def test_a_batch_waits_for_the_batch_of_another_sweep_also_when_both_took_the_type(
    app: Akter, monkeypatch: pytest.MonkeyPatch, beside: Any, start: Callable[..., Future[Any]]
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    monkeypatch.setattr("akter.store.retention._PATIENCE_MS", 60_000)
    brief = app.actor(Brief, "b")
    for _ in range(5):
        brief.add()
    advance(app, 2 * DAY)
    between, go_on = threading.Event(), threading.Event()

    class Stop:
        """Holds the sweep between its first batch and its second."""

        def is_set(self) -> bool:
            return False

        def wait(self, seconds: float) -> None:
            between.set()
            assert go_on.wait(60)

    sweeping = start(retention.Sweeper(app, Stop()).sweep)  # type: ignore[arg-type]
    assert between.wait(60)
    try:
        with app.engine.connect().execution_options(schema_translate_map={SCHEMA: app.schema}) as other, other.begin():
            begin(other, "retention:Brief")
            go_on.set()
            beside.until_waiting()
            values = {"actor_type": "Brief", "from_ms": 0, "past_ms": 122_000, "limit": 2}
            assert prune(other, old_receipts(), **values)[:2] == (2, 2)
    finally:
        go_on.set()
    assert [found.receipts for found in sweeping.result(60) if found.actor_type == "Brief"] == [3]
    assert receipts(app, brief) == ()


@conformance("RET-13")
def test_a_query_past_its_time_is_ended_on_the_server(app: Akter, beside: Any) -> None:
    with pytest.raises(Unavailable):
        app.actor(Counter, "c").sleep()
    asked = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND query LIKE 'SELECT pg_sleep%'"""
    beside.until("the server stopped", lambda: beside(asked) == [(0,)])


def test_a_runner_sweeps_by_itself_and_counts_what_went(app: Akter, caplog: pytest.LogCaptureFixture, beside: Any) -> None:
    reader = InMemoryMetricReader()
    app.telemetry.use(meter_provider=MeterProvider([reader]))
    brief = app.actor(Brief, "b")
    brief.tell()
    brief.add()
    advance(app, 2 * DAY)
    with caplog.at_level(logging.INFO, "akter.runner"), Runner(app, sweep=0.05, listen=False) as runner:
        beside.until("it sweeps", lambda: beside.count("actor_receipts") + beside.count("actor_events") == 0)
        beside.until("it says so", lambda: any(record.message == "retention.swept" for record in caplog.records))
        assert not runner.failed
    (said,) = [vars(record) for record in caplog.records if record.message == "retention.swept"]
    assert (said["akter_type"], said["akter_receipts"], said["akter_events"]) == ("Brief", 2, 1)
    data = reader.get_metrics_data()
    assert data is not None
    found = {metric.name: metric.data for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics}
    assert [found[name].data_points[0].value for name in ("akter.receipts.pruned", "akter.events.pruned")] == [2, 1]  # type: ignore[union-attr]


def test_a_runner_that_shall_not_sweep_has_no_thread_for_it(app: Akter) -> None:
    with Runner(app, sweep=None, listen=False):
        assert "akter-retention" not in {thread.name for thread in threading.enumerate()}
    with Runner(app, listen=False):
        assert "akter-retention" in {thread.name for thread in threading.enumerate()}
    with pytest.raises(ConfigurationError, match="Runner: sweep is seconds between"):
        Runner(app, sweep=0)


@pytest.mark.parametrize("name", ["keep_receipts", "keep_events"])
def test_a_time_that_is_none_is_refused(akter_app: Callable[..., Akter], name: str) -> None:
    refused = f"{name} is a timedelta that is not negative, timedelta.max for ever, not "
    for wrong in (7, timedelta(seconds=-1), "a week"):
        with pytest.raises(ConfigurationError, match=f"Akter: {refused}"):
            akter_app(Counter, **{name: wrong})
        with pytest.raises(DeclarationError, match=f"Wrong: {refused}"):
            type("Wrong", (Actor,), {"__module__": __name__}, **{name: wrong})


@pytest.mark.parametrize("table", ["actor_receipts", "actor_events"])
def test_a_batch_reads_as_many_rows_as_it_takes_however_many_are_old(app: Akter, beside: Any, table: str) -> None:
    app.actor(Brief, "b").tell()
    row = ", ".join(f"r.{name}" for name in IDENTITY)
    if table == "actor_receipts":
        statement, past_ms, others = old_receipts(), 122_000, "'i-' || n, 'tell', '', '', '', n, n, n"
    else:
        statement, past_ms, others = old_events(), 3_600_000, "n + 1, 'Counted', '', r.value, 0, n"
    # Without statistics, as the first sweep after a busy day finds it.
    beside(f"INSERT INTO {{akter}}.{table} SELECT {row}, {others} FROM {{akter}}.{table} r, generate_series(1, 20000) n")
    translated: Any = {"schema_translate_map": {SCHEMA: app.schema}, "render_schema_translate": True}
    compiled = statement.compile(dialect=app.engine.dialect, **translated)
    with app.engine.connect().execution_options(schema_translate_map={SCHEMA: app.schema}) as connection, connection.begin():
        assert take(connection, "retention:Brief", 0)
        begin(connection, "retention:Brief")
        values = {"actor_type": "Brief", "from_ms": 0, "past_ms": past_ms, "limit": 1000}
        ((plan,),) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled}", values)
    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == table and "Scan" in node["Node Type"]]
    reads = [(node["Node Type"], node["Actual Rows"] * node["Actual Loops"]) for node in scans]
    assert len(reads) == 2
    assert all(kind != "Seq Scan" and rows <= 1001 for kind, rows in reads), reads


def nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)
