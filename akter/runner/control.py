"""The family `control`: starts and ends of subscriptions, asked for in the subscribers' turns, are applied at their sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from sqlalchemy import Engine

from akter.definition import Definition
from akter.fault import Faults
from akter.following import Acknowledged, Following
from akter.identity import Address
from akter.runner.queued import Queued, Site
from akter.runner.single import Working, transaction
from akter.runner.telling import Teller
from akter.store import summary
from akter.store.claim import Claimed
from akter.store.summary import Applied, Name
from akter.store.wire import Wire
from akter.subscription import CursorRejected

logger = logging.getLogger("akter.relay")


class _Told(msgspec.Struct):
    bucket: int
    routing_key: int
    source_type: str
    source_id: str
    subscription: str
    events: list[str]
    since: str | None


class _Asked(msgspec.Struct):
    epoch: int
    asked: _Told


_read = msgspec.json.Decoder(_Asked).decode


class Controls(Queued):
    """Applies them without a turn of the source. A newer request wins, whichever is applied first."""

    def __init__(
        self, engine: Engine, faults: Faults, wake: Callable[[], None], actors: Mapping[str, Definition], teller: Teller, **given: Any
    ) -> None:
        super().__init__(**given)
        self._engine, self._faults, self._wake, self._actors, self._teller = engine, faults, wake, actors, teller

    def _work(self, row: Claimed, until: float, working: Working[Claimed]) -> None:
        site, asked = Site(row), _read(row.payload)
        self._faults.at("after_claim", site)
        told = asked.asked
        source = Address(told.bucket, told.routing_key, row.tenant_id, told.source_type, told.source_id)
        applied = self._apply(source, Name(row.actor_type, told.subscription, row.actor_id), asked)
        if applied == "rejected":
            self._reject(working, source, asked, until)
        elif applied == "applied":
            self._wake()
        self._faults.at("before_outbox_delete", site)
        with Wire(self._engine, self._statements) as wire:
            self._settler.end([row], 0, wire)

    def _apply(self, source: Address, name: Name, asked: _Asked) -> Applied:
        with transaction(self._engine, self._statements.schema) as connection:
            if asked.asked.since is None:
                return summary.end(connection, source, name, asked.epoch)
            return summary.begin(connection, source, name, asked.asked.events, asked.epoch, asked.asked.since)

    def _reject(self, working: Working[Claimed], source: Address, asked: _Asked, until: float) -> None:
        """Tell the subscriber that the source has no such cursor."""
        row, cursor = working.row, asked.asked.since or ""
        of = Following(
            subscription=asked.asked.subscription,
            source=source,
            epoch=asked.epoch,
            kind="rejected",
            position=int(cursor),
            issued_at_ms=row.scheduled_at_ms,
            dynamic=True,
        )
        definition = self._actors[row.actor_type]
        follows = definition.subscriptions.get(of.subscription)
        if follows is None or not follows.takes_rejections:
            logger.warning("subscription.cursor_rejected", extra=self._teller.about(of, row.actor_type))
            return
        told = CursorRejected(source_type=source.actor_type, source=source.actor_id, cursor=cursor)
        with Wire(self._engine, self._statements) as wire:
            try:
                self._teller.tell(wire, self._teller.call(definition, follows, row.actor_id, of, told), until, [], working.handling)
            except Acknowledged:
                wire.roll_back()
