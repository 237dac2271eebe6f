"""Dead letters for operators: looked at, tried again, discarded; each action in one transaction with its audit rows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, and_, delete, insert, select, tuple_

from akter.caller import System, to_json
from akter.identity import Address, CommandId
from akter.store import audit
from akter.store.clock import now_ms
from akter.tables import dead_letters, deployment, outbox

Action: TypeAlias = Literal["retry", "discard"]

MOST = 1000
"""Letters that one action takes at most, in its one transaction."""

_ORDER = (dead_letters.c.dead_at_ms, dead_letters.c.job_id)
_KEPT = ("job", "payload", "payload_version", "cause", "attempts", "ambiguous", "dead_at_ms")
_DAY_MS = 86_400_000


class Which(NamedTuple):
    """Letters by their ids, their actor's type, their job, and whether the outside world may have acted; None: whatever it is."""

    ids: Sequence[str] = ()
    actor_type: str | None = None
    job: str | None = None
    ambiguous: bool | None = None


@dataclass(frozen=True, slots=True)
class Letter:
    """A job that gave up. `dead_ms`: how long ago. `payload`: its arguments as JSON."""

    job_id: str
    actor_type: str
    actor_id: str
    tenant: str
    job: str
    attempts: int
    ambiguous: bool
    dead_ms: int
    cause: str
    payload: str
    dead_at_ms: int


class Acted(NamedTuple):
    """What was done: letter by letter, the id of the new job, or None."""

    job_id: str
    new_job_id: str | None


def page(connection: Connection, which: Which, *, limit: int, after: tuple[int, str] | None = None) -> list[Letter]:
    """Letters, the oldest first; the next page begins `after` the last one's `dead_at_ms` and `job_id`."""
    asked = select(dead_letters, (now_ms() - dead_letters.c.dead_at_ms).label("dead_ms")).where(_wanted(which)).order_by(*_ORDER)
    if after is not None:
        asked = asked.where(tuple_(*_ORDER) > after)
    return [
        Letter(
            row["job_id"],
            row["actor_type"],
            row["actor_id"],
            row["tenant_id"],
            row["job"],
            row["attempts"],
            row["ambiguous"],
            max(0, row["dead_ms"]),
            row["cause"],
            row["payload"],
            row["dead_at_ms"],
        )
        for row in connection.execute(asked.limit(limit)).mappings()
    ]


def lock(connection: Connection, which: Which) -> list[Any]:
    """The letters themselves, locked, in the order of their key, so that of two operators one gets them."""
    asked = select(dead_letters).where(_wanted(which)).order_by(*dead_letters.primary_key.columns).limit(MOST).with_for_update()
    return list(connection.execute(asked).mappings())


def act(connection: Connection, rows: Sequence[Any], action: Action, operator: str, why: str) -> list[Acted]:
    """Turn locked letters into new jobs that are due at once, or delete them for ever; their audit rows keep them."""
    done: list[Acted] = []
    window = connection.execute(select(deployment.c.retry_window_ms)).scalar() or _DAY_MS
    now: int = connection.execute(select(now_ms())).scalar_one()
    for row in rows:
        fresh = str(CommandId(now, now + window, uuid.uuid4())) if action == "retry" else None
        if fresh is not None:
            connection.execute(insert(outbox).values(_job(row, fresh, now)))
        mine = and_(*(column == row[column.name] for column in dead_letters.primary_key.columns))
        connection.execute(delete(dead_letters).where(mine))
        outcome = {**{name: row[name] for name in _KEPT}, "new_job_id": fresh}
        audit.keep(connection, audit.subject(row), audit.Act(operator, f"letter.{action}", why), row["job_id"], outcome)
        done.append(Acted(row["job_id"], fresh))
    return done


def _wanted(which: Which) -> Any:
    conditions = [
        *([dead_letters.c.job_id.in_(list(which.ids))] if which.ids else []),
        *([dead_letters.c.actor_type == which.actor_type] if which.actor_type is not None else []),
        *([dead_letters.c.job == which.job] if which.job is not None else []),
        *([dead_letters.c.ambiguous.is_(which.ambiguous)] if which.ambiguous is not None else []),
    ]
    return and_(True, *conditions)


def _job(row: Any, id: str, now: int) -> dict[str, Any]:
    mine = Address(row["bucket"], row["routing_key"], row["tenant_id"], row["actor_type"], row["actor_id"])
    return {
        **mine._asdict(),
        "intent_id": id,
        "kind": "job",
        "target_type": row["actor_type"],
        "target_id": row["actor_id"],
        "command": row["job"],
        "payload": row["payload"],
        "payload_version": row["payload_version"],
        # Whoever asked for the first job does not ask for this one.
        "caller": to_json(System("actor", mine)),
        "due_at_ms": now,
        "scheduled_at_ms": now,
        "ready_at_ms": now,
    }
