"""OBS: what turns and the relay tell OpenTelemetry."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from akter import Actor, Akter, Defect, Rejection, Runner, User, command
from akter.store import backlog, presence
from akter.tables import SCHEMA
from akter.testing import settle

conformance = pytest.mark.conformance


class Full(Rejection):
    """It is full."""


class Box(Actor):
    """Holds things, and passes them on."""

    held: int = 0

    @command
    def put(self, thing: str) -> int:
        if thing == "elephant":
            raise Full()
        if thing == "bomb":
            raise ValueError(f"a {thing} may not be put here")
        self.held += 1
        return self.held

    @command
    def pass_on(self, thing: str, to: str) -> None:
        self.send(self.actor(Box, to).put, thing)

    @command
    def pass_later(self, thing: str, to: str) -> None:
        self.after(timedelta(milliseconds=1), key="later").send(self.actor(Box, to).put, thing)


class Seen:
    """The spans and metrics of one app."""

    def __init__(self, app: Akter) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])
        app.telemetry.use(tracer_provider=self.tracers, meter_provider=self.meters)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        found = [span for span in self.exporter.get_finished_spans() if name is None or span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans())

    def metrics(self) -> dict[str, dict[tuple[tuple[str, str], ...], Any]]:
        data = self.reader.get_metrics_data()
        found: dict[str, dict[tuple[tuple[str, str], ...], Any]] = {}
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        value = getattr(point, "value", None)
                        labels = tuple(sorted((str(key), str(value)) for key, value in (point.attributes or {}).items()))
                        found.setdefault(metric.name, {})[labels] = getattr(point, "count", None) if value is None else value
        return found


@pytest.fixture
def app(akter_app: Callable[..., Akter]) -> Akter:
    return akter_app(Box)


@pytest.fixture
def seen(app: Akter) -> Iterator[Seen]:
    found = Seen(app)
    yield found
    found.tracers.shutdown()
    found.meters.shutdown()


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {})[name]


@conformance("OBS-01")
def test_a_turn_is_three_spans_that_name_the_command_and_nobody(app: Akter, seen: Seen) -> None:
    with app.acting_as(User("ada@example.org")), app.tenant("acme"), app.command_id("request-7", scope="web"):
        app.authorize = lambda access: True
        app.actor(Box, "b").put("the secret")
    assert seen.names() == ["akter.Box/put", "akter.admission", "akter.commit"]
    for span in seen.spans():
        assert dict(span.attributes or {}) == {
            "actor.type": "Box",
            "actor.tenant": "acme",
            "actor.id": "b",
            "command.name": "put",
            "command.id": "request-7",
            "caller.kind": "user",
            "turn.trigger": "call",
            **({"turn.outcome": "success"} if span.name == "akter.Box/put" else {}),
        }
    admission, turn, commit = (seen.spans(name)[0] for name in ("akter.admission", "akter.Box/put", "akter.commit"))
    assert {span.context.trace_id for span in (admission, turn, commit) if span.context} == {admission.context.trace_id}
    assert commit.parent is not None
    assert commit.parent.span_id == turn.context.span_id
    told = " ".join(span.to_json() for span in seen.spans())
    assert "ada" not in told
    assert "secret" not in told


@conformance("OBS-01")
def test_a_turn_stands_below_the_span_of_its_caller_and_above_those_of_its_handler(app: Akter, seen: Seen) -> None:
    tracer = seen.tracers.get_tracer("web")

    class Inner(Actor):
        """Has a span of its own."""

        @command
        def work(self) -> None:
            with tracer.start_as_current_span("mine"):
                pass

    inner = Akter(app.engine, actors=[Inner], schema=app.schema)
    inner.telemetry.use(tracer_provider=seen.tracers)
    with tracer.start_as_current_span("request") as request:
        inner.actor(Inner, "i").work()
    (turn,), (admission,), (mine,) = (seen.spans(name) for name in ("akter.Inner/work", "akter.admission", "mine"))
    parents = [span.parent.span_id if span.parent else None for span in (admission, turn, mine)]
    assert parents == [request.get_span_context().span_id, request.get_span_context().span_id, turn.context.span_id]


@conformance("OBS-01")
def test_the_number_of_spans_does_not_follow_what_a_turn_does(app: Akter, seen: Seen) -> None:
    for number in range(3):
        app.actor(Box, "b").pass_on("pen", f"to-{number}")
    assert len(seen.spans()) == 9


@conformance("OBS-02")
def test_a_retried_id_is_answered_without_a_second_turn(app: Akter, seen: Seen) -> None:
    for _ in range(2):
        with app.command_id("once"):
            app.actor(Box, "b").put("pen")
    assert seen.names() == ["akter.Box/put", "akter.admission", "akter.admission", "akter.commit"]
    metrics = seen.metrics()
    assert metrics["akter.receipts.written"] == {(): 1}
    assert metrics["akter.receipts.replayed"] == {(): 1}


@conformance("OBS-03")
def test_a_defect_fails_its_span_is_kept_and_counted(app: Akter, seen: Seen) -> None:
    with pytest.raises(Defect):
        app.actor(Box, "b").put("bomb")
    (turn,) = seen.spans("akter.Box/put")
    assert (turn.status.status_code, turn.status.description) == (StatusCode.ERROR, "Defect")
    assert (attribute(turn, "error.type"), attribute(turn, "turn.outcome")) == ("ValueError", "defect")
    assert not turn.events
    assert seen.spans("akter.commit") == []
    assert seen.metrics()["akter.turns"] == {(("actor_type", "Box"), ("outcome", "defect")): 1}
    (kept,) = app.telemetry.defects
    assert (kept.actor, kept.command, kept.error) == (str(app.actor(Box, "b")._address), "put", "ValueError")  # type: ignore[attr-defined]
    assert "may not be put" not in str(kept)


@conformance("OBS-03")
def test_a_process_remembers_a_thousand_defects(app: Akter) -> None:
    call: Any = type("Call", (), {"address": "Box/b", "command": type("Command", (), {"name": "put"}), "id": "1"})
    for _ in range(1001):
        app.telemetry.defect(call, ValueError())
    assert len(app.telemetry.defects) == 1000


@conformance("OBS-04")
def test_a_hop_is_a_trace_of_its_own_from_the_claim_to_the_settling(app: Akter, seen: Seen) -> None:
    with app.command_id("first"):
        app.actor(Box, "a").pass_on("pen", "b")
    settle(app)
    (sender,), (relay,), (receiver,) = (seen.spans(name) for name in ("akter.Box/pass_on", "akter.relay.intent", "akter.Box/put"))
    assert relay.parent is None
    assert relay.context.trace_id != sender.context.trace_id
    assert receiver.context.trace_id == relay.context.trace_id
    assert receiver.parent is not None
    assert receiver.parent.span_id == relay.context.span_id
    assert attribute(relay, "command.id") == attribute(receiver, "command.id")
    assert (attribute(relay, "relay.attempt"), attribute(relay, "relay.timer")) == (1, False)
    assert (attribute(receiver, "turn.trigger"), attribute(receiver, "caller.kind")) == ("message", "system")
    assert relay.end_time is not None
    assert receiver.end_time is not None
    assert relay.end_time >= receiver.end_time
    assert len(seen.spans()) == 7


@conformance("OBS-04")
def test_a_timer_says_so(app: Akter, seen: Seen) -> None:
    app.actor(Box, "a").pass_later("pen", "b")
    time.sleep(0.01)
    settle(app)
    (relay,), (turn,) = seen.spans("akter.relay.intent"), seen.spans("akter.Box/put")
    assert (attribute(relay, "relay.timer"), attribute(turn, "turn.trigger")) == (True, "timer")


@conformance("OBS-04")
def test_members_of_a_group_have_the_spans_of_a_turn_alone(app: Akter, seen: Seen) -> None:
    app.send(app.actor(Box, "first").put, "pen")
    settle(app)
    seen.exporter.clear()
    for number in range(5):
        app.send(app.actor(Box, f"b-{number}").put, "pen")
    settle(app)
    each = {name: len(seen.spans(name)) for name in set(seen.names())}
    assert each == {"akter.relay.intent": 5, "akter.admission": 5, "akter.Box/put": 5, "akter.commit": 5}
    assert len({span.context.trace_id for span in seen.spans() if span.context}) == 5


@conformance("OBS-05")
def test_turns_receipts_and_the_relay_are_counted_without_ids(app: Akter, seen: Seen) -> None:
    with app.tenant("acme"):
        app.actor(Box, "a").pass_on("pen", "b")
    with pytest.raises(Full):
        app.actor(Box, "c").put("elephant")
    app.send(app.actor(Box, "c").put, "bomb")
    settle(app)
    metrics = seen.metrics()

    def of(outcome: str) -> tuple[tuple[str, str], ...]:
        return (("actor_type", "Box"), ("outcome", outcome))

    kind = (("kind", "intent"),)
    assert metrics["akter.turns"] == {of("success"): 2, of("rejection"): 1, of("defect"): 1}
    assert metrics["akter.receipts.written"] == {(): 3}
    assert metrics["akter.outbox.staged"][kind] >= 1
    assert (metrics["akter.relay.delivered"], metrics["akter.relay.retried"]) == ({kind: 1}, {kind: 1})
    assert metrics["akter.turn.duration_ms"] == {(("actor_type", "Box"),): 4}
    assert metrics["akter.pool.wait_ms"][(("pool", "turn"),)] == 2
    labels = {name for series in metrics.values() for labels in series for name, _ in labels}
    assert labels <= {"actor_type", "outcome", "kind", "pool"}


@conformance("OBS-05")
def test_what_is_staged_is_counted_wherever_it_was_sent_from(app: Akter, seen: Seen) -> None:
    box = app.actor(Box, "b")
    app.send(box.put, "pen")
    with app.engine.begin() as connection:
        staging = app.within(connection)
        staging.send(box.put, "ink")
        staging.after(timedelta(hours=1)).send(box.put, "cap")
        staging.send_many([(box.put, {"thing": str(number)}) for number in range(10)])
    assert seen.metrics()["akter.outbox.staged"] == {(("kind", "intent"),): 13}


@conformance("OBS-05")
def test_the_metrics_are_prometheus_text_by_opentelemetrys_exporter(app: Akter) -> None:
    exporter = pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra `test` has it")
    from prometheus_client import REGISTRY, generate_latest

    meters = MeterProvider([exporter.PrometheusMetricReader()])
    app.telemetry.use(meter_provider=meters)
    try:
        app.actor(Box, "b").put("pen")
        with pytest.raises(Full):
            app.actor(Box, "b").put("elephant")
        app.telemetry.sampled([backlog.Count("intent", "Box", "due", 3, 1500, 1)])
        text = generate_latest(REGISTRY).decode()
    finally:
        meters.shutdown()
    said = {re.sub(r'otel_scope_\w+="[^"]*",?', "", line).replace(",}", "}") for line in text.splitlines() if line.startswith("akter_")}
    assert {
        'akter_turns_total{actor_type="Box",outcome="success"} 1.0',
        'akter_turns_total{actor_type="Box",outcome="rejection"} 1.0',
        "akter_receipts_written_total{} 2.0",
        'akter_outbox_rows{kind="intent"} 3.0',
        'akter_relay_lag_ms_milliseconds{kind="intent"} 1500.0',
        'akter_relay_stuck_rows{kind="intent"} 1.0',
    } <= said, text


def test_no_record_of_the_log_names_the_caller(app: Akter, caplog: pytest.LogCaptureFixture) -> None:
    app.authorize = lambda access: True
    box = app.actor(Box, "b")
    with app.acting_as(User("ada@example.org")):
        with app.command_id("request-7"), pytest.raises(Defect):
            app.actor(Box, "b").put("bomb")
        with app.command_id("request-8"):
            app.send(box.put, "bomb")
    with Runner(app, listen=False) as runner:
        runner.drain()
    told = {(record.getMessage(), getattr(record, "akter_command_id", None)) for record in caplog.records if record.name != "akter.runner"}
    assert told == {("turn.defect", "request-7"), ("turn.defect", "request-8"), ("relay.retry", "request-8")}
    assert "ada" not in "".join(str(vars(record)) for record in caplog.records if record.name.startswith("akter"))


@conformance("OBS-06")
def test_the_outbox_is_measured_and_what_vanished_is_told_once_as_zero(app: Akter, seen: Seen, beside: Any) -> None:
    for number in range(3):
        app.send(app.actor(Box, f"b-{number}").put, "pen")
    beside(
        "INSERT INTO {akter}.actor_outbox (bucket, routing_key, tenant_id, actor_type, actor_id, intent_id, kind, target_type, target_id,"
        " command, payload, caller, due_at_ms, scheduled_at_ms, ready_at_ms) VALUES (0, 0, '', 'Ghost', 'g', 'j-1', 'job', 'Ghost', 'g',"
        " 'haunt', '{}', '{}', (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 60000, 0, 0)"
    )
    beside("UPDATE {akter}.actor_outbox SET attempts = 8, last_error = 'it failed' WHERE target_id = 'b-0'")
    job, intent = (("kind", "job"),), (("kind", "intent"),)

    def sampled() -> dict[str, dict[tuple[tuple[str, str], ...], Any]]:
        with app.engine.connect() as connection:
            app.telemetry.sampled(backlog.counts(connection.execution_options(schema_translate_map={SCHEMA: app.schema}), (), frozenset()))
        return seen.metrics()

    first = sampled()
    assert first["akter.outbox.rows"] == {job: 1, intent: 3}
    assert first["akter.relay.lag_ms"][job] >= 60_000
    assert first["akter.relay.stuck_rows"] == {job: 0, intent: 1}
    beside("DELETE FROM {akter}.actor_outbox WHERE kind = 'job'")
    assert sampled()["akter.outbox.rows"] == {job: 0, intent: 3}
    assert sampled()["akter.outbox.rows"] == {intent: 3}


@conformance("OBS-06")
def test_one_runner_of_all_samples(akter_app: Callable[..., Akter], beside: Any) -> None:
    apps = [akter_app(Box) for _ in range(3)]
    everything = [Seen(app) for app in apps]
    runners = [Runner(app, listen=False, heartbeat=0.05, lanes={"intents": 1}) for app in apps]
    apps[0].send(apps[0].actor(Box, "b").put, "pen")
    beside("UPDATE {akter}.actor_outbox SET due_at_ms = due_at_ms + 100000000")
    try:
        for runner in runners:
            runner.start()
        beside.until("all are there", lambda: beside.count("actor_runners") == 3)
        beside.until("one has sampled", lambda: any("akter.outbox.rows" in seen.metrics() for seen in everything))
        for runner in runners:
            runner._heartbeat._sampler._next = 0.0
        told: set[int] = set()
        for _ in range(40):
            told |= {number for number, seen in enumerate(everything) if "akter.outbox.rows" in seen.metrics()}
            time.sleep(0.01)
        assert len(told) <= 1
        with apps[0].engine.connect() as connection:
            found = presence.present(connection.execution_options(schema_translate_map={SCHEMA: apps[0].schema}))
        assert presence.eldest(found) in {runner.incarnation_id for runner in runners}
    finally:
        for runner in runners:
            runner.stop()
        for seen in everything:
            seen.meters.shutdown()
            seen.tracers.shutdown()


def test_an_idle_runner_tells_nothing(app: Akter, seen: Seen) -> None:
    with Runner(app, poll=0.01, heartbeat=0.01):
        time.sleep(0.3)
    assert seen.spans() == []
    assert not {"akter.turns", "akter.relay.delivered"} & set(seen.metrics())


def test_without_providers_nothing_is_made_and_nothing_measurable_is_paid(app: Akter) -> None:
    app.actor(Box, "b").put("pen")
    assert app.telemetry._observer is None
    call: Any = None
    started = time.perf_counter()
    for _ in range(10_000):
        watch = app.telemetry.turn(call)
        watch.admitted()
        with watch.handling():
            pass
        watch.committing()
        watch.committed(False, {})
        app.telemetry.waited(started, "turn")
    each = (time.perf_counter() - started) / 10_000
    # The promise is two microseconds on a quiet machine; this one may be busy.
    assert each < 20e-6


def test_global_providers_are_found_when_they_are_set_later(app: Akter, monkeypatch: pytest.MonkeyPatch) -> None:
    app.actor(Box, "b").put("pen")
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(sys.modules["opentelemetry.trace"], "get_tracer_provider", lambda: provider)
    app.telemetry._look_at = 0.0
    app.actor(Box, "b").put("pen")
    assert len(exporter.get_finished_spans()) == 3
    provider.shutdown()
