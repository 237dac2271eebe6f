"""Claimed rows of schedules: which of them fire, which came too late, and which belong to no schedule of this code."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from sqlalchemy import Engine

from akter.cron import Entry
from akter.definition import Definition
from akter.errors import AkterError
from akter.identity import DEFAULT_TENANT, SINGLETON_ID, address
from akter.member import Surroundings
from akter.planting import Planted
from akter.runner.settler import Settler, is_tick
from akter.store import schedule, turn
from akter.store.claim import Claimed
from akter.store.flight import Line
from akter.store.rows import key, parameters
from akter.store.wire import Wire

logger = logging.getLogger("akter.relay")

_SECONDS = 30.0
_SAID = 20


def entry_of(row: Claimed, actors: Mapping[str, Definition]) -> Entry | None:
    """The schedule that a row belongs to, as the code here has it."""
    definition = actors.get(row.target_type)
    return None if definition is None or row.timer_key is None else definition.schedules.get(row.timer_key)


class Ticks:
    """Sees to claimed rows of schedules that do not fire. `window_ms`: how late a tick may be and still fire."""

    def __init__(self, settler: Settler, actors: Mapping[str, Definition], window_ms: int) -> None:
        self._settler, self._actors, self._window_ms = settler, actors, window_ms

    def split(self, rows: Sequence[Claimed]) -> tuple[list[Claimed], list[Claimed]]:
        """The rows to deliver, which messages always are, and those to set aside."""
        aside = [row for row in rows if is_tick(row) and (entry_of(row, self._actors) is None or self._is_late(row))]
        return [row for row in rows if row not in aside] if aside else list(rows), aside

    def _is_late(self, row: Claimed) -> bool:
        return row.claimed_at_ms - row.scheduled_at_ms > self._window_ms

    def set_aside(self, rows: Sequence[Claimed]) -> None:
        """Skip late ticks, and leave those of unknown schedules to others, or delete them when nobody wanted them for so long."""
        known = [row for row in rows if entry_of(row, self._actors) is not None]
        strange = [row for row in rows if entry_of(row, self._actors) is None]
        given_up = [row for row in strange if self._is_late(row)]
        waiting = [row for row in strange if not self._is_late(row)]
        try:
            self._settler.set_aside(known, given_up, waiting)
        except AkterError as problem:
            logger.warning("relay.settle_failed", extra={"akter_rows": len(rows), "akter_reason": str(problem)[:500]})
            return
        if known:
            logger.warning("schedule.skipped", extra=_about(known))
        if given_up:
            logger.warning("schedule.removed", extra=_about(given_up))
        if waiting:
            logger.info("schedule.unknown", extra=_about(waiting))


def _about(rows: Sequence[Claimed]) -> dict[str, object]:
    """Rows, for a line of the log; what many actors share is said once."""
    return {"akter_rows": len(rows), "akter_schedules": sorted({f"{row.target_type} {row.timer_key}" for row in rows})[:_SAID]}


def plant(engine: Engine, around: Surroundings, actors: Mapping[str, Definition]) -> None:
    """Write the rows of the singletons' schedules that are missing, in the default tenant; raises `Unavailable`."""
    found = {definition.name: definition for definition in actors.values() if definition.options.singleton and definition.schedules}
    if not found:
        return
    where = [address(known.options.placement, DEFAULT_TENANT, name, SINGLETON_ID) for name, known in sorted(found.items())]
    get = around.statements.get
    with Wire(engine, around.statements) as wire, wire.answering():
        now_ms = int(wire.fly([Line(get(turn.clock), {})], _SECONDS)[0].rows[0][0])
        planted = [Planted(found[at.actor_type], at, 0) for at in where]
        begun = Line(get(schedule.begin), parameters("actor_", [key(at) for at in where], True))
        wire.transact([begun, around.planting.line(around.statements, planted, now_ms)], _SECONDS)
