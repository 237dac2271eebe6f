"""The metrics: turns, receipts and the relay as they happen, and the outbox as it was last sampled."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import MeterProvider, Observation

import akter

if TYPE_CHECKING:
    from akter.store.backlog import Count

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
        self._values: dict[str, tuple[int, int, int]] = {}
        self._zeros: set[str] = set()
        self._told, self._sampled_at = False, 0.0

        def gauge(name: str, of: int, description: str, unit: str = "") -> None:
            meter.create_observable_gauge(name, [lambda _: self._observed(of)], unit=unit, description=description)

        gauge("akter.outbox.rows", 0, "Outbox rows, by kind")
        gauge("akter.relay.lag_ms", 1, "How long the oldest row is due, by kind", "ms")
        gauge("akter.relay.stuck_rows", 2, "Rows with 8 attempts or more, or parked, by kind")

    def stage(self, kinds: Mapping[str, int]) -> None:
        """Count what was asked for."""
        for kind, number in kinds.items():
            self.staged.add(number, {"kind": kind})

    def sampled(self, counts: Sequence[Count]) -> None:
        """Keep a sample for the gauges. A kind that is not there any more is 0 until the next sample, and at least once."""
        kinds = {count.kind for count in counts}
        self._zeros = (set(self._values) | (set() if self._told else self._zeros)) - kinds
        self._values = {kind: _summed([count for count in counts if count.kind == kind]) for kind in sorted(kinds)}
        self._told, self._sampled_at = False, time.monotonic()

    def _observed(self, of: int) -> list[Observation]:
        if time.monotonic() - self._sampled_at > STALE:
            # Another runner samples now.
            return []
        self._told = True
        values = {**{kind: values[of] for kind, values in self._values.items()}, **dict.fromkeys(self._zeros, 0)}
        return [Observation(value, {"kind": kind}) for kind, value in values.items()]


def _summed(counts: Sequence[Count]) -> tuple[int, int, int]:
    return sum(count.rows for count in counts), max(count.late_ms for count in counts), sum(count.stuck for count in counts)
