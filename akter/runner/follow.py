"""The family `subscription`: each claimed row is one follower of one actor, told its next events in their order.

An event that cannot be told holds back those behind it in its row, and in no other.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine

from akter.definition import Definition
from akter.errors import AkterError, Unavailable
from akter.fault import Crashed
from akter.following import Acknowledged, Following
from akter.identity import SINGLETON_ID, Address
from akter.runner.family import Probe, Taken, leased, taken_as
from akter.runner.lane import Lane
from akter.runner.settings import Settings
from akter.runner.settler import Counts, backoff_ms, reason_of
from akter.runner.single import Single, transaction
from akter.runner.telling import Teller
from akter.store import follower, summary
from akter.store.flight import Line, Lost, Row, StatementFailed
from akter.store.follower import Follower, Past
from akter.store.rows import parameters
from akter.store.summary import Name
from akter.store.wire import Statements, Wire
from akter.subscription import Gap, Subscription

logger = logging.getLogger("akter.relay")

BATCH = 16
"""Events that a claimed row is told at most before others have their turn."""

_LONG = 2.0
"""Seconds after which a row goes back with what is left: the lease covers the longest turn, not a row of them."""
_SECONDS = 30.0


class Follows(Single[Follower]):
    """Tells the subscribers of the types registered here."""

    def __init__(
        self,
        engine: Engine,
        statements: Statements,
        actors: Mapping[str, Definition],
        teller: Teller,
        counts: Counts,
        lane: Lane,
        settings: Settings,
        lease: float,
    ) -> None:
        super().__init__(lane, lease)
        self._engine, self._statements, self._actors, self._teller = engine, statements, actors, teller
        self._counts, self._settings = counts, settings
        self._served = json.dumps(served(actors))

    def claim(self, probe: Probe) -> Sequence[Line]:
        """The statement that claims followers."""
        values = leased(probe, self._lease, self._settings.max_backoff)
        return [Line(self._statements.get(follower.claim), {**values, "served": self._served})]

    def taken(self, answers: Sequence[Sequence[Row]], probe: Probe, wire: Wire) -> Taken:
        """What the statement took."""
        (answer,) = answers
        return taken_as(Follower, answer, 2)

    def _work(self, row: Follower, until: float) -> None:
        definition = self._actors[row.subscriber_type]
        with Wire(self._engine, self._statements) as wire:
            try:
                _Row(self, row, definition, definition.subscriptions[row.subscription], until, wire).tell_all()
            except Crashed:
                wire.discard()
                raise

    def _wait(self, row: Follower, problem: BaseException) -> None:
        self.wait(row, problem, row.attempts)

    def wait(self, row: Follower, problem: BaseException, attempts: int, wire: Wire | None = None) -> None:
        """Let a row wait for its next try; what cannot be written waits for its lease's end."""
        delay = backoff_ms(attempts, 1000, self._settings.max_backoff * 1000)
        reason, shown = reason_of(problem)
        logger.warning(
            "subscription.retry",
            extra={**self._about(row), "akter_reason": shown},
            exc_info=None if isinstance(problem, AkterError) else problem,
        )
        self._counts.add(retried=1)
        try:
            self.fly(self.line(follower.wait, "wait_", row, delay_ms=delay, last_error=reason), wire)
        except AkterError as unwritten:
            logger.warning("relay.settle_failed", extra={"akter_rows": 1, "akter_reason": str(unwritten)[:500]})

    def _release(self, rows: Sequence[Follower], begun: bool) -> None:
        for row in rows:
            self._counts.add(released=self.fly(self.line(follower.release, "free_", row, refund=0 if begun else 1)))

    def line(self, statement: Any, prefix: str, row: Follower, **values: Any) -> Line:
        """A statement about a claimed row."""
        claim = {name: getattr(row, name) for name in follower.CLAIM}
        return Line(self._statements.get(statement), parameters(prefix, [{**claim, **values}], True))

    def fly(self, line: Line, wire: Wire | None = None) -> int:
        """Write about a claimed row; returns whether it was still this runner's, as a number. Raises `Unavailable`."""
        if wire is None:
            with Wire(self._engine, self._statements) as own:
                return self.fly(line, own)
        moved = int(self.ask(line, wire)[0][0])
        if not moved:
            self._counts.add(stale=1)
        return moved

    def ask(self, line: Line, wire: Wire) -> list[Row]:
        """What a statement answers; raises `Unavailable`."""
        try:
            return wire.transact([line], _SECONDS)[0].rows
        except (StatementFailed, Lost) as problem:
            raise Unavailable(f"a subscription could not be read or written: {problem}") from problem

    def ended(self, row: Follower) -> None:
        """The subscriber does not want this epoch any more: let nothing else of it be told."""
        with transaction(self._engine, self._statements.schema) as connection:
            summary.end(connection, source_of(row), Name(row.subscriber_type, row.subscription, row.subscriber_id), row.epoch)

    @property
    def stopping(self) -> bool:
        """Whether no other event may be begun."""
        return self._stopping

    @property
    def teller(self) -> Teller:
        """What makes the subscribers' turns."""
        return self._teller

    @property
    def statements(self) -> Statements:
        """The statements of the app."""
        return self._statements

    def told(self) -> None:
        """Count a delivery."""
        self._counts.add(delivered=1)

    def _name(self, row: Follower) -> str:
        return f"{row.source_type}/{row.source_id} to {row.subscriber_type}.{row.subscription} {row.subscriber_id}".rstrip()

    def _about(self, row: Follower) -> dict[str, Any]:
        return {
            "akter_actor": f"{row.source_type}/{row.source_id}",
            "akter_tenant": row.tenant_id,
            "akter_subscription": f"{row.subscriber_type}.{row.subscription}",
            "akter_subscriber": row.subscriber_id,
            "akter_attempts": row.attempts,
        }


class _Row:
    """One claimed row at work. `_done`: everything up to there is settled for this subscriber; `_attempts`: of the event it is at."""

    def __init__(self, family: Follows, row: Follower, definition: Definition, follows: Subscription, until: float, wire: Wire) -> None:
        self._family, self._row, self._definition, self._follows = family, row, definition, follows
        self._until, self._wire = until, wire
        self._done, self._attempts, self._gaps = row.delivered, row.attempts, 0
        self._source = source_of(row)

    def tell_all(self) -> None:
        """Tell the row's next events and settle it."""
        end = time.monotonic() + _LONG
        try:
            past, head, oldest = self._read()
            if not self._skip(head, oldest):
                return
            left = [one for one in past if one.sequence > self._done]
            full = len(past) == BATCH
            if not left:
                self._settle(self._done if full else max(head, self._done), more=full)
            for number, one in enumerate(left, start=1):
                last, late = number == len(left), self._family.stopping or time.monotonic() > end
                upto = one.sequence if full or not last else max(head, one.sequence)
                if not self._tell(one, upto, settle=last or late, more=full or not last):
                    return
                if late:
                    return
        except (Crashed, SystemExit, KeyboardInterrupt):
            raise
        except Exception as problem:  # noqa: BLE001 - whatever it is, the row waits with its reason
            self._wire.roll_back()
            self._family.wait(self._row, problem, self._attempts, None if self._wire.broken else self._wire)

    def _read(self) -> tuple[list[Past], int, int | None]:
        values = {**{name: getattr(self._row, name) for name in _SOURCE}, "after": self._done, "names": list(self._follows.events)}
        rows = self._family.ask(Line(self._family.statements.get(follower.past), {**values, "limit": BATCH}), self._wire)
        if not rows:
            return [], 0, None
        return [Past(*row) for row in rows if row[2] is not None], rows[0][0], rows[0][1]

    def _skip(self, head: int, oldest: int | None) -> bool:
        """Tell, or count, what is missing before the next event; returns whether the row is still this runner's."""
        through, at_ms = self._row.gap_through, self._row.gap_at_ms
        while True:
            if through is None or through <= self._done:
                # Of a history always the first events go, so what is left of it has no hole.
                through = (head + 1 if oldest is None else max(oldest, self._done + 1)) - 1
                if through <= self._done:
                    return True
                at_ms = self._pin(through) if self._follows.takes_gaps else 0
            if at_ms is None or not self._miss(self._of("gap", through, at_ms)):
                return False
            through = None

    def _pin(self, through: int) -> int | None:
        """Keep the gap in the row, whose telling has one id however often it is tried; returns since when."""
        rows = self._family.ask(self._family.line(follower.pin, "pin_", self._row, through=through), self._wire)
        return rows[0][0] if rows else None

    def _miss(self, of: Following) -> bool:
        if not self._follows.takes_gaps:
            self._gaps += 1
            logger.warning("subscription.gap", extra=self._family.teller.about(of, self._row.subscriber_type))
            self._done = of.position
            return True
        source = {"source_type": self._source.actor_type, "source": self._source.actor_id}
        told = Gap(**source, after=str(self._done), resume_after=str(of.position))
        call = self._family.teller.call(self._definition, self._follows, self._subscriber(None), of, told)
        return self._deliver(call, self._going_on(of.position), of.position)

    def _tell(self, one: Past, upto: int, *, settle: bool, more: bool) -> bool:
        of = self._of("event", one.sequence, one.emitted_at_ms)
        event = self._follows.decode(one.event, one.value, one.payload_version)
        call = self._family.teller.call(self._definition, self._follows, self._subscriber(event), of, event, one.command_id)
        return self._deliver(call, self._ending(upto, more) if settle else self._going_on(one.sequence), one.sequence)

    def _deliver(self, call: Any, line: Line, position: int) -> bool:
        """Tell, and write `line` with it or, when there was nothing to commit, after it; returns whether to go on."""
        try:
            rode = self._family.teller.tell(self._wire, call, self._until, [line])
        except Acknowledged as known:
            self._wire.roll_back()
            if known.reason in ("stale", "unsubscribed"):
                self._family.ended(self._row)
                return False
            if known.reason == "not created":
                logger.warning("subscription.not_created", extra=self._family.teller.about(call.following, self._row.subscriber_type))
            rode = False
        if not rode and not self._family.fly(line, self._wire):
            return False
        self._family.told()
        self._done, self._attempts, self._gaps = position, 1, 0
        return True

    def _settle(self, upto: int, *, more: bool) -> None:
        self._family.fly(self._ending(upto, more), self._wire)

    def _ending(self, upto: int, more: bool) -> Line:
        return self._family.line(follower.settle, "settle_", self._row, delivered=upto, more=more, gaps=self._gaps)

    def _going_on(self, upto: int) -> Line:
        return self._family.line(follower.progress, "follow_", self._row, delivered=upto, gaps=self._gaps)

    def _of(self, kind: Any, position: int, at_ms: int) -> Following:
        return Following(
            subscription=self._row.subscription,
            source=self._source,
            epoch=self._row.epoch,
            kind=kind,
            position=position,
            issued_at_ms=at_ms,
            dynamic=self._follows.dynamic,
        )

    def _subscriber(self, event: Any) -> str:
        if self._follows.dynamic:
            return self._row.subscriber_id
        return SINGLETON_ID if event is None else self._follows.route(event, self._source.actor_id)


_SOURCE = ("bucket", "routing_key", "tenant_id", "source_type", "source_id")


def source_of(row: Follower) -> Address:
    """The actor that a row follows."""
    return Address(row.bucket, row.routing_key, row.tenant_id, row.source_type, row.source_id)


def served(actors: Mapping[str, Definition]) -> list[dict[str, Any]]:
    """The subscriptions of the registered types, with the events that are known here."""
    return [
        {"subscriber_type": name, "subscription": follows.name, "events": list(follows.events)}
        for name, definition in actors.items()
        for follows in definition.subscriptions.values()
    ]
