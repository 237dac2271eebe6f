"""Who runs a Runner: one row per start, with a sign of life; what operators paused; and who holds old rows back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sqlalchemy import Connection, Text, cast, delete, func, literal, select, text, true, update
from sqlalchemy.dialects.postgresql import insert

from akter.store.clock import now_ms
from akter.tables import deployment, pauses, runners

SILENT_MS = 20_000
"""Milliseconds after its last sign of life when a runner is taken for gone."""

IDLE_MS = 60_000
"""Milliseconds after its last look for work when a runner is taken for stuck."""

FORGOTTEN_MS = 86_400_000
"""Milliseconds after its last sign of life when a runner's row is removed."""

_NEWEST = 1000

Lanes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Of each family its `seats`, and of those that work its `threads` and how many of them are `overdue`; of jobs
also what is `running` and tells its progress."""


@dataclass(frozen=True, slots=True)
class Present:
    """A runner as the database knows it. `lanes`: seats of each family. `silent_ms`: since its last sign of life; `idle_ms`: since its last
    look for work, as of then. `overdue`: threads in handlers past their time limit, of each family that has any. `hung`: families all of
    whose threads are. `running`: attempts of jobs that tell their progress, as of then."""

    incarnation_id: str
    label: str
    library: str
    types: tuple[str, ...]
    lanes: dict[str, int]
    started_at_ms: int
    silent_ms: int
    idle_ms: int
    stopping: bool
    overdue: dict[str, int] = field(default_factory=dict)
    hung: tuple[str, ...] = ()
    running: tuple[dict[str, Any], ...] = ()

    @property
    def alive(self) -> bool:
        """Whether it gave a sign of life lately."""
        return self.silent_ms <= SILENT_MS


def limit(connection: Connection, seconds: float) -> None:
    """Let no statement of this transaction take longer, waits for locks included."""
    connection.execute(select(func.set_config("statement_timeout", str(int(seconds * 1000)), true())))


def arrive(connection: Connection, incarnation_id: str, label: str, library: str, types: Sequence[str], lanes: Lanes) -> None:
    """Write a runner's row, and remove those long silent."""
    connection.execute(delete(runners).where(runners.c.heartbeat_at_ms < now_ms() - literal(FORGOTTEN_MS)))
    values = {"incarnation_id": incarnation_id, "label": label, "library": library, "types": list(types), "lanes": json.dumps(dict(lanes))}
    fresh = insert(runners).values(**values, started_at_ms=now_ms(), heartbeat_at_ms=now_ms(), passed_at_ms=now_ms())
    connection.execute(fresh.on_conflict_do_nothing())


def beat(connection: Connection, incarnation_id: str, idle_ms: int, stopping: bool, lanes: Lanes) -> bool:
    """Give a sign of life: the last pass was `idle_ms` ago. Returns whether the row was still there."""
    values = {
        "heartbeat_at_ms": now_ms(),
        "passed_at_ms": now_ms() - literal(idle_ms),
        "stopping": stopping,
        "lanes": json.dumps(dict(lanes)),
    }
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
            func.coalesce(runners.c.heartbeat_at_ms - runners.c.passed_at_ms, literal(0)).label("idle_ms"),
            runners.c.stopping,
        )
        .order_by(runners.c.heartbeat_at_ms.desc(), runners.c.incarnation_id)
        .limit(_NEWEST)
    )
    return [_present(row) for row in rows]


def _present(row: Any) -> Present:
    lanes: Lanes = json.loads(row[4])
    overdue = {family: lane["overdue"] for family, lane in lanes.items() if lane.get("overdue")}
    hung = tuple(family for family, number in overdue.items() if number >= lanes[family]["threads"])
    seats = {family: lane["seats"] for family, lane in lanes.items()}
    return Present(
        row[0],
        row[1],
        row[2],
        tuple(row[3]),
        seats,
        row[5],
        row[6],
        row[7],
        row[8],
        overdue,
        hung,
        tuple(lanes.get("jobs", {}).get("running", ())),
    )


def pause(connection: Connection, family: str, target: str, reason: str) -> bool:
    """Let nobody claim a family, or one type within it; returns whether it was not paused before."""
    fresh = insert(pauses).values(family=family, target=target, reason=reason, paused_at_ms=now_ms())
    return connection.execute(fresh.on_conflict_do_nothing().returning(pauses.c.family)).first() is not None


def resume(connection: Connection, family: str, target: str) -> bool:
    """Let it be claimed again; returns whether it was paused."""
    return connection.execute(delete(pauses).where(pauses.c.family == family, pauses.c.target == target)).rowcount == 1


def served(found: Sequence[Present]) -> list[str]:
    """The types that live runners serve."""
    return sorted({name for runner in found if runner.alive for name in runner.types})


def eldest(found: Sequence[Present]) -> str | None:
    """The one live runner that does what only one shall do: the first that started."""
    living = [(runner.started_at_ms, runner.incarnation_id) for runner in found if runner.alive and not runner.stopping]
    return min(living)[1] if living else None


def paused(connection: Connection) -> list[dict[str, Any]]:
    """Everything that is paused."""
    rows = connection.execute(select(pauses).order_by(pauses.c.family, pauses.c.target))
    return [dict(row) for row in rows.mappings()]


def held_back(found: Sequence[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """The families and types of what is paused, as `akter.store.backlog` asks for them."""
    return frozenset((row["family"], row["target"]) for row in found)


def served_and_paused(connection: Connection) -> tuple[list[str], frozenset[tuple[str, str]]]:
    """The types that live runners serve, and what is paused: why a row waits that is due."""
    return served(present(connection)), held_back(paused(connection))


def clock_offset_ms(connection: Connection) -> int:
    """Milliseconds that a test moved the clock by; zero in earnest."""
    return connection.execute(select(deployment.c.clock_offset_ms)).scalar_one_or_none() or 0


def old_transactions(connection: Connection, seconds: int) -> list[tuple[int, str, int]]:
    """Transactions of this database that are open longer, whose snapshots keep dead rows from being removed: pid, name and age."""
    # Core has no spelling for make_interval with a named argument.
    asked = text(
        "SELECT pid, coalesce(application_name, ''), extract(epoch FROM clock_timestamp() - xact_start)::int AS age "
        "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND coalesce(backend_xmin, backend_xid) IS NOT NULL "
        "AND xact_start < clock_timestamp() - make_interval(secs => :seconds) ORDER BY xact_start LIMIT 3"
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(asked, {"seconds": seconds})]
