"""What akter tells OpenTelemetry: spans and metrics of turns and of the relay, where the application configured it.

Nothing of OpenTelemetry is imported here: an application that has providers has imported it. Without them a turn pays for a look at a
clock. The names are in `docs/logging.md`.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from akter.watch import NO_HOP, NO_WATCH, Hop, Watch

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from akter.call import Call
    from akter.spans import Observer
    from akter.store.backlog import Count
    from akter.store.pinned import Pinned

KEPT = 1000
"""Defects that a process remembers."""

_LOOK_AGAIN = 1.0


@dataclass(frozen=True, slots=True)
class DefectSeen:
    """A defect of this process: when, of whom, and the class of what was raised."""

    at: datetime
    actor: str
    command: str
    command_id: str
    error: str


class Telemetry:
    """The telemetry of one Akter, `app.telemetry`. It finds the providers that are set globally, also when they are set later.

    `defects` are the last 1 000 defects of this process, the newest last.
    """

    def __init__(self) -> None:
        self.defects: deque[DefectSeen] = deque(maxlen=KEPT)
        self._observer: Observer | None = None
        self._providers: tuple[Any, Any] = (None, None)
        self._look_at, self._fixed = 0.0, False

    def use(self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None) -> None:
        """Tell these providers instead of the global ones; without any, tell nobody."""
        self._fixed = True
        self._observe(tracer_provider, meter_provider)

    def turn(self, call: Call) -> Watch:
        """Watch one try of a turn."""
        observer = self._seen()
        return NO_WATCH if observer is None else observer.turn(call)

    def hop(self, row: Any) -> Hop:
        """Watch a claimed message."""
        observer = self._seen()
        return NO_HOP if observer is None else observer.hop(row)

    def staged(self, kind: str, number: int = 1) -> None:
        """Messages were sent from outside a turn."""
        if (observer := self._seen()) is not None:
            observer.staged({kind: number})

    def waited(self, since: float, pool: str) -> None:
        """A connection was waited for since then, a `time.perf_counter()` value."""
        if self._observer is not None:
            self._observer.waited((time.perf_counter() - since) * 1000, pool)

    def dead_letter(self, actor_type: str, job: str) -> None:
        """A job gave up."""
        if (observer := self._seen()) is not None:
            observer.dead_letter(actor_type, job)

    def defect(self, call: Call, problem: BaseException) -> None:
        """A handler failed."""
        seen = DefectSeen(datetime.now(UTC), str(call.address), call.command.name, call.id, type(problem).__name__)
        self.defects.append(seen)

    @property
    def metered(self) -> bool:
        """Whether somebody collects metrics."""
        observer = self._seen()
        return observer is not None and observer.metered

    def pruned(self, receipts: int, events: int) -> None:
        """A sweep pruned so many of one actor type."""
        if (observer := self._seen()) is not None:
            observer.pruned(receipts, events)

    def sampled(self, counts: Sequence[Count], held: Sequence[Pinned] = ()) -> None:
        """What waits in the outbox, and which events are kept for followers, as one runner of the deployment saw it."""
        if self._observer is not None:
            self._observer.sampled(counts, held)

    def _seen(self) -> Observer | None:
        return self._observer if self._fixed or time.monotonic() < self._look_at else self._look()

    def _look(self) -> Observer | None:
        self._look_at = time.monotonic() + _LOOK_AGAIN
        providers = _global("trace", "tracer"), _global("metrics", "meter")
        if providers != self._providers:
            self._observe(*providers)
        return self._observer

    def _observe(self, tracer_provider: Any, meter_provider: Any) -> None:
        self._providers = tracer_provider, meter_provider
        if tracer_provider is None and meter_provider is None:
            self._observer = None
            return
        from akter.spans import Observer

        self._observer = Observer(tracer_provider, meter_provider)


def _global(module: str, kind: str) -> Any:
    """The global provider, or None when there is none but the API's own, which does nothing."""
    api = sys.modules.get(f"opentelemetry.{module}")
    provider = getattr(api, f"get_{kind}_provider")() if api is not None else None
    return None if type(provider).__module__.startswith(f"opentelemetry.{module}") else provider
