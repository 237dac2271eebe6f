"""The spans of turns and of claimed messages. It is imported when there is a provider."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Span, StatusCode, Tracer, TracerProvider

import akter
from akter.errors import AkterError, Defect, OutcomeUnknown, Unavailable
from akter.identity import shown_id
from akter.metrics import Instruments
from akter.watch import Hop, Watch

if TYPE_CHECKING:
    from akter.call import Call
    from akter.store.backlog import Count
    from akter.store.pinned import Pinned

AGAIN = "again"
"""The outcome of a member that left its group to run again alone."""


class Observer:
    """Makes watches for the providers there are."""

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        provider = tracer_provider or trace.NoOpTracerProvider()
        self.tracer = provider.get_tracer("akter", akter.__version__)
        self.instruments = Instruments(meter_provider) if meter_provider is not None else None

    @property
    def metered(self) -> bool:
        """Whether there are metrics."""
        return self.instruments is not None

    def turn(self, call: Call) -> Watch:
        """Watch one try of a turn."""
        return TurnWatch(self.tracer, self.instruments, call)

    def hop(self, row: Any) -> Hop:
        """Watch a claimed message."""
        return MessageHop(self.tracer, self.instruments, row)

    def staged(self, kinds: Mapping[str, int]) -> None:
        """Count what was asked for."""
        if self.instruments is not None:
            self.instruments.stage(kinds)

    def dead_letter(self, actor_type: str, job: str) -> None:
        """Count a job that gave up."""
        if self.instruments is not None:
            self.instruments.dead_letters.add(1, {"actor_type": actor_type, "job": job})

    def waited(self, milliseconds: float, pool: str) -> None:
        """Measure a wait for a connection."""
        if self.instruments is not None:
            self.instruments.waited.record(milliseconds, {"pool": pool})

    def pruned(self, receipts: int, events: int) -> None:
        """Count what retention took."""
        if self.instruments is not None:
            self.instruments.receipts_pruned.add(receipts)
            self.instruments.events_pruned.add(events)

    def sampled(self, counts: Sequence[Count], held: Sequence[Pinned]) -> None:
        """Set the gauges."""
        if self.instruments is not None:
            self.instruments.sampled(counts, held)


class MessageHop(Hop):
    """The span of a claimed message, the root of a trace of its own: its sender's ended long ago, maybe in another process."""

    __slots__ = ("_instruments", "_kind", "span")

    def __init__(self, tracer: Tracer, instruments: Instruments | None, row: Any) -> None:
        self._instruments, self._kind = instruments, "intent"
        attributes = {
            "actor.type": row.target_type,
            "actor.tenant": row.tenant_id,
            "actor.id": row.target_id,
            "command.name": row.command,
            "command.id": shown_id(row.intent_id),
            "relay.attempt": row.attempts,
            "relay.timer": row.caller.startswith('{"source":"timer"'),
        }
        self.span: Span = tracer.start_span("akter.relay.intent", context=Context(), attributes=attributes)

    def delivered(self) -> None:
        """End it well."""
        self.span.end()
        if self._instruments is not None:
            self._instruments.delivered.add(1, {"kind": self._kind})

    def retried(self, problem: BaseException) -> None:
        """End it with what happened."""
        _close(self.span, problem, time.time_ns())
        if self._instruments is not None:
            self._instruments.retried.add(1, {"kind": self._kind})

    def released(self) -> None:
        """End it without a word."""
        self.span.set_attribute("relay.released", True)
        self.span.end()


class TurnWatch(Watch):
    """One try of a turn: three spans when it runs, one when a receipt answers, however many statements it sends."""

    __slots__ = (
        "_admitted_ns",
        "_attributes",
        "_call",
        "_committing_ns",
        "_context",
        "_done",
        "_instruments",
        "_span",
        "_started_ns",
        "_tracer",
    )

    def __init__(self, tracer: Tracer, instruments: Instruments | None, call: Call) -> None:
        self._tracer, self._instruments = tracer, instruments
        self._started_ns, self._admitted_ns, self._committing_ns = time.time_ns(), 0, 0
        self._span: Span | None = None
        self._done = False
        hop = call.hop
        self._context = trace.set_span_in_context(hop.span, Context()) if isinstance(hop, MessageHop) else context.get_current()
        self._attributes: dict[str, str] = {
            "actor.type": call.address.actor_type,
            "actor.tenant": call.address.tenant_id,
            "actor.id": call.address.actor_id,
            "command.name": call.command.name,
            "command.id": shown_id(call.id),
            "caller.kind": type(call.caller).__name__.lower(),
            "turn.trigger": _trigger(call),
        }

    def admitted(self) -> None:
        """Remember when."""
        self._admitted_ns = time.time_ns()

    def replayed(self) -> None:
        """Tell of the admission alone."""
        self._end_admission(None)
        self._done = True
        if self._instruments is not None:
            self._instruments.replayed.add(1)

    def handling(self) -> AbstractContextManager[object]:
        """The turn's span is the current one in this block, so the application's spans stand below it."""
        return self._handling()

    @contextmanager
    def _handling(self) -> Iterator[None]:
        admission = self._end_admission(None)
        if not trace.get_current_span(self._context).get_span_context().is_valid:
            self._context = trace.set_span_in_context(admission, self._context)
        name = f"akter.{self._attributes['actor.type']}/{self._attributes['command.name']}"
        self._span = self._tracer.start_span(name, context=self._context, attributes=self._attributes)
        self._context = trace.set_span_in_context(self._span, self._context)
        token = context.attach(self._context)
        try:
            yield
        except BaseException as problem:
            self.failed(problem)
            raise
        finally:
            context.detach(token)

    def committing(self) -> None:
        """Remember when."""
        self._committing_ns = time.time_ns()

    def committed(self, refused: bool, staged: Mapping[str, int]) -> None:
        """End the turn's span, and tell of the commit."""
        self._end_commit(None)
        outcome = "rejection" if refused else "success"
        if self._span is not None:
            self._span.set_attribute("turn.outcome", outcome)
            self._span.end()
        self._count(outcome)
        if self._instruments is not None:
            self._instruments.written.add(1)
            self._instruments.stage(staged)

    def failed(self, problem: BaseException) -> None:
        """End whatever is open with the class of what happened; its words may quote what is stored."""
        if self._done:
            return
        if self._span is None:
            self._end_admission(problem)
        else:
            if self._committing_ns:
                self._end_commit(problem)
            self._span.set_attribute("turn.outcome", _outcome(problem))
            _close(self._span, None if _outcome(problem) == AGAIN else problem, time.time_ns())
        self._count(_outcome(problem))

    def _end_admission(self, problem: BaseException | None) -> Span:
        span = self._tracer.start_span("akter.admission", self._context, attributes=self._attributes, start_time=self._started_ns)
        _close(span, problem, self._admitted_ns or time.time_ns())
        return span

    def _end_commit(self, problem: BaseException | None) -> None:
        span = self._tracer.start_span("akter.commit", self._context, attributes=self._attributes, start_time=self._committing_ns)
        _close(span, problem, time.time_ns())

    def _count(self, outcome: str) -> None:
        self._done = True
        if self._instruments is not None:
            labels = {"actor_type": self._attributes["actor.type"]}
            self._instruments.turns.add(1, {**labels, "outcome": outcome})
            self._instruments.duration.record((time.time_ns() - self._started_ns) / 1_000_000, labels)


def _trigger(call: Call) -> str:
    source = getattr(call.caller, "source", "process")
    if not isinstance(call.hop, MessageHop):
        return "call"
    return "message" if source in ("process", "actor") else str(source)


def _outcome(problem: BaseException) -> str:
    if isinstance(problem, OutcomeUnknown):
        return "unknown"
    if isinstance(problem, Unavailable):
        return "unavailable"
    if not isinstance(problem, Exception | KeyboardInterrupt | SystemExit):
        return AGAIN
    return "refused" if isinstance(problem, AkterError) and not isinstance(problem, Defect) else "defect"


def _close(span: Span, problem: BaseException | None, at_ns: int) -> None:
    if problem is not None:
        kind = type(problem.__cause__ or problem).__name__
        span.set_attribute("error.type", kind)
        span.set_status(StatusCode.ERROR, type(problem).__name__)
    span.end(at_ns)
