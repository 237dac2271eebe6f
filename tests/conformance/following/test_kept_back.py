"""What followers keep back of old events is measured, and named with what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from nodes import eventually
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from shops import Node, Shop, Watcher, told

from akter.operating import Operator
from akter.testing import advance, sweep

DAY = timedelta(days=1)


def behind(node: Node) -> None:
    """A watcher that cannot be told of the first of two events, and one that can."""
    for name in ("stuck", "well"):
        node.app.actor(Watcher, name).watch("s")
    node.runner.drain()

    def fail(who: str, source: str, item: str) -> None:
        if who == "watcher stuck":
            raise ValueError("torn")

    told.on_event = fail
    node.app.actor(Shop, "s").place(items=["kettle", "pot"])
    node.runner.drain()


def kept_back(node: Node) -> list[tuple[str, str]]:
    found = Operator(node.app.engine, schema=node.app.schema).findings(node.app)
    return [(one.finding, one.remedy) for one in found if one.name == "events kept back"]


@pytest.mark.conformance("SUB-47", "OBS-07")
def test_events_that_are_kept_for_a_follower_are_named_until_they_go(shop: Node, beside: Any) -> None:
    behind(shop)
    advance(shop.app, 29 * DAY)
    sweep(shop.app)
    assert kept_back(shop) == [], "they are as young as events may be"
    advance(shop.app, 2 * DAY)
    sweep(shop.app)
    assert kept_back(shop) == [
        (
            "2 old events of Shop/s, the oldest 31d 0h old, kept for Watcher.told stuck",
            "see why it is behind, akter subscriptions list; or: akter subscriptions skip Shop/s Watcher.told stuck --through 2 --yes; "
            "after 7d 0h more than others they go, told or not",
        )
    ]
    assert beside.count("actor_events") == 2
    advance(shop.app, 7 * DAY)
    sweep(shop.app)
    assert kept_back(shop) == []
    assert beside.count("actor_events") == 0


def test_a_type_that_keeps_its_events_for_ever_has_none_kept_back(node: Callable[..., Node]) -> None:
    one = node(app={"keep_events": timedelta.max})
    behind(one)
    advance(one.app, 400 * DAY)
    assert kept_back(one) == []


@pytest.mark.conformance("OBS-07")
def test_they_are_measured_by_subscription_and_told_as_none_when_they_are_gone(node: Callable[..., Node], monkeypatch: Any) -> None:
    monkeypatch.setattr("akter.runner.sampling.EVERY", 0.0)
    reader = InMemoryMetricReader()
    one = node(heartbeat=0.05, app={"keep_events": DAY})
    one.app.telemetry.use(meter_provider=MeterProvider([reader]))
    behind(one)
    advance(one.app, 2 * DAY)
    one.runner.start()

    def measured(name: str) -> dict[str, int]:
        data = reader.get_metrics_data()
        metrics = (
            [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics] if data else []
        )
        points = [point for metric in metrics if metric.name == name for point in metric.data.data_points]
        return {str(dict(point.attributes or {})["subscription"]): int(getattr(point, "value", -1)) for point in points}

    eventually("they are measured", lambda: measured("akter.subscription.pinned_events") == {"Watcher.told": 2})
    assert measured("akter.subscription.pinned_ms")["Watcher.told"] >= 2 * 86_400_000
    told.on_event = lambda *_: None
    Operator(one.app.engine, schema=one.app.schema).skip_events("Shop/s", "Watcher.told", "stuck", through=2)
    one.runner.wake()
    eventually("none is kept back", lambda: measured("akter.subscription.pinned_events") == {"Watcher.told": 0})
