"""The metrics: turns, receipts and the relay as they happen, and the outbox as it was last sampled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import MeterProvider, Observation

import akter

if TYPE_CHECKING:
    from akter.store.backlog import Count
    from akter.store.pinned import Pinned

BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000)
"""The bounds of the histograms, in milliseconds."""

STALE = 60.0
"""Seconds after which a sample is told no more."""


class Instruments:
    """The metrics. None carries a tenant or an id, so their number follows the types that are declared."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("akter", akter.__version__)
        self.turns = meter.create_counter("akter.turns", description="Tries of turns, by actor type and outcome")
        self.written = meter.create_counter("akter.receipts.written", description="Commands that were committed")
        self.replayed = meter.create_counter("akter.receipts.replayed", description="Commands that a receipt answered")
        self.receipts_pruned = meter.create_counter("akter.receipts.pruned", description="Receipts that retention took")
        self.events_pruned = meter.create_counter("akter.events.pruned", description="Events that retention took")
        self.staged = meter.create_counter("akter.outbox.staged", description="Messages and jobs that were asked for, by kind")
        self.delivered = meter.create_counter("akter.relay.delivered", description="Outbox rows that were delivered, by kind")
        self.retried = meter.create_counter("akter.relay.retried", description="Deliveries that failed, by kind")
        self.dead_letters = meter.create_counter("akter.job.dead_letters", description="Jobs that gave up, by actor type and job")
        told: dict[str, Any] = {"unit": "ms", "explicit_bucket_boundaries_advisory": BUCKETS}
        self.duration = meter.create_histogram("akter.turn.duration_ms", description="From admission to the commit", **told)
        self.waited = meter.create_histogram("akter.pool.wait_ms", description="Waits for a connection", **told)
        self._waiting, self._held = _Sample("kind"), _Sample("subscription")

        def gauge(name: str, sample: _Sample, of: int, description: str, unit: str = "") -> None:
            meter.create_observable_gauge(name, [lambda _: sample.observed(of)], unit=unit, description=description)

        gauge("akter.outbox.rows", self._waiting, 0, "Outbox rows, by kind")
        gauge("akter.relay.lag_ms", self._waiting, 1, "How long the oldest row is due, by kind", "ms")
        gauge("akter.relay.stuck_rows", self._waiting, 2, "Rows with 8 attempts or more, or parked, by kind")
        gauge("akter.subscription.pinned_events", self._held, 0, "Old events that are kept for followers, by subscription")
        gauge("akter.subscription.pinned_ms", self._held, 1, "The age of the oldest of them, by subscription", "ms")

    def stage(self, kinds: Mapping[str, int]) -> None:
        """Count what was asked for."""
        for kind, number in kinds.items():
            self.staged.add(number, {"kind": kind})

    def sampled(self, counts: Sequence[Count], held: Sequence[Pinned]) -> None:
        """Keep a sample for the gauges."""
        kinds = sorted({count.kind for count in counts})
        self._waiting.keep({kind: _summed([count for count in counts if count.kind == kind]) for kind in kinds})
        names = sorted({one.subscription for one in held})
        self._held.keep({name: _kept_back([one for one in held if one.subscription == name]) for name in names})


class _Sample:
    """The newest values of some gauges. What is not there any more is 0 until the next sample, and at least once."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._values: dict[str, tuple[int, ...]] = {}
        self._zeros: set[str] = set()
        self._told, self._sampled_at = False, -STALE

    def keep(self, values: dict[str, tuple[int, ...]]) -> None:
        """Take in a new sample."""
        self._zeros = (set(self._values) | (set() if self._told else self._zeros)) - set(values)
        self._values, self._told, self._sampled_at = values, False, time.monotonic()

    def observed(self, of: int) -> list[Observation]:
        """What one of the gauges shows; nothing when the sample is old, because another runner samples now."""
        if time.monotonic() - self._sampled_at > STALE:
            return []
        self._told = True
        values = {**{name: values[of] for name, values in self._values.items()}, **dict.fromkeys(self._zeros, 0)}
        return [Observation(value, {self._label: name}) for name, value in values.items()]


def _summed(counts: Sequence[Count]) -> tuple[int, ...]:
    return sum(count.rows for count in counts), max(count.late_ms for count in counts), sum(count.stuck for count in counts)


def _kept_back(held: Sequence[Pinned]) -> tuple[int, ...]:
    return sum(one.events for one in held), max(one.oldest_ms for one in held)
