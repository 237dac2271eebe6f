"""Who runs a Runner: one row per start, with a sign of life; and what operators paused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, cast, delete, literal, select, update
from sqlalchemy.dialects.postgresql import insert

from akter.store.clock import now_ms
from akter.tables import pauses, runners

FORGOTTEN_MS = 86_400_000
"""Milliseconds after its last sign of life when a runner's row is removed."""


@dataclass(frozen=True, slots=True)
class Present:
    """A runner as the database knows it. `silent_ms`: milliseconds since its last sign of life."""

    incarnation_id: str
    label: str
    library: str
    types: tuple[str, ...]
    lanes: dict[str, int]
    started_at_ms: int
    silent_ms: int
    idle_ms: int | None
    stopping: bool


def arrive(connection: Connection, incarnation_id: str, label: str, library: str, types: Sequence[str], lanes: Mapping[str, int]) -> None:
    """Write a runner's row, and remove those long silent."""
    connection.execute(delete(runners).where(runners.c.heartbeat_at_ms < now_ms() - literal(FORGOTTEN_MS)))
    values = {"incarnation_id": incarnation_id, "label": label, "library": library, "types": list(types), "lanes": json.dumps(dict(lanes))}
    fresh = insert(runners).values(**values, started_at_ms=now_ms(), heartbeat_at_ms=now_ms(), passed_at_ms=now_ms())
    connection.execute(fresh.on_conflict_do_nothing())


def beat(connection: Connection, incarnation_id: str, idle_ms: int, stopping: bool) -> bool:
    """Give a sign of life: the last pass was `idle_ms` ago. Returns whether the row was still there."""
    values = {"heartbeat_at_ms": now_ms(), "passed_at_ms": now_ms() - literal(idle_ms), "stopping": stopping}
    return connection.execute(update(runners).where(runners.c.incarnation_id == incarnation_id).values(**values)).rowcount == 1


def leave(connection: Connection, incarnation_id: str) -> None:
    """Remove a runner's row."""
    connection.execute(delete(runners).where(runners.c.incarnation_id == incarnation_id))


def present(connection: Connection) -> list[Present]:
    """Every runner that was here lately, the newest sign of life first."""
    rows = connection.execute(
        select(
            runners.c.incarnation_id,
            runners.c.label,
            runners.c.library,
            runners.c.types,
            cast(runners.c.lanes, Text),
            runners.c.started_at_ms,
            (now_ms() - runners.c.heartbeat_at_ms).label("silent_ms"),
            (runners.c.heartbeat_at_ms - runners.c.passed_at_ms).label("idle_ms"),
            runners.c.stopping,
        ).order_by(runners.c.heartbeat_at_ms.desc(), runners.c.incarnation_id)
    )
    return [Present(row[0], row[1], row[2], tuple(row[3]), json.loads(row[4]), row[5], row[6], row[7], row[8]) for row in rows]


def pause(connection: Connection, family: str, target: str, reason: str) -> bool:
    """Let nobody claim a family, or one type within it; returns whether it was not paused before."""
    fresh = insert(pauses).values(family=family, target=target, reason=reason, paused_at_ms=now_ms())
    return connection.execute(fresh.on_conflict_do_nothing()).rowcount == 1


def resume(connection: Connection, family: str, target: str) -> bool:
    """Let it be claimed again; returns whether it was paused."""
    return connection.execute(delete(pauses).where(pauses.c.family == family, pauses.c.target == target)).rowcount == 1


def paused(connection: Connection) -> list[dict[str, Any]]:
    """Everything that is paused."""
    rows = connection.execute(select(pauses).order_by(pauses.c.family, pauses.c.target))
    return [dict(row) for row in rows.mappings()]
