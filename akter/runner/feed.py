"""The family `feed`: what an actor published is brought to the rows of all that follow it, a page of them at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine

from akter.fault import Faults
from akter.runner.queued import Queued, Site
from akter.runner.single import Working, transaction
from akter.store import summary
from akter.store.claim import Claimed
from akter.store.summary import Name
from akter.store.wire import Wire


class Feeds(Queued):
    """Expands feeds; `wake` lets the relay look for the rows that became due."""

    def __init__(self, engine: Engine, faults: Faults, wake: Callable[[], None], **given: Any) -> None:
        super().__init__(**given)
        self._engine, self._faults, self._wake = engine, faults, wake

    def _work(self, row: Claimed, until: float, working: Working[Claimed]) -> None:
        # It calls nobody's code; what makes it late is the database, or a source with very many followers.
        with working.handling(until):
            self._expand(row)

    def _expand(self, row: Claimed) -> None:
        site, after, due = Site(row), None, 0
        self._faults.at("after_claim", site)
        while True:
            after, more = self._mark(site, after)
            due += more
            if after is None:
                break
        if due:
            self._wake()
        self._faults.at("before_outbox_delete", site)
        # A turn that published meanwhile made the feed due again, under another time than that of this claim, so its row stays.
        with Wire(self._engine, self._statements) as wire:
            self._settler.end([row], 0, wire)

    def _mark(self, site: Site, after: Name | None) -> tuple[Name | None, int]:
        with transaction(self._engine, self._statements.schema) as connection:
            return summary.mark(connection, site.address, after)
