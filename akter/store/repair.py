"""An operator's discard and redirect of a message, each with its audit row in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, and_, delete, select, update

from akter.schedule import CRON_KEY
from akter.store import audit
from akter.store.clock import now_ms
from akter.store.settle import PARKED_MS
from akter.tables import outbox

Done: TypeAlias = Literal["done", "absent", "claimed", "schedule"]
"""absent: there is no such message any more. claimed: a runner holds it, and changing it now would not stop the delivery.
schedule: it is not a message, but a schedule's, whose class says where it goes."""

_KEY = ("bucket", "routing_key", "intent_id")


def discard(connection: Connection, intent_id: str, operator: str, why: str) -> Done:
    """Delete a message that will never be wanted; its audit row keeps the whole of it."""
    return _repair(connection, intent_id, "outbox.discard", operator, why, None)


def redirect(connection: Connection, intent_id: str, to: Mapping[str, str], operator: str, why: str) -> Done:
    """Give a message another `target_type`, `target_id` or `command`, due at once and with a fresh count of attempts."""
    return _repair(connection, intent_id, "outbox.redirect", operator, why, to)


def _repair(connection: Connection, intent_id: str, action: str, operator: str, why: str, to: Mapping[str, str] | None) -> Done:
    found = (
        select(outbox).where(outbox.c.intent_id == intent_id, outbox.c.kind == "intent", outbox.c.ready_at_ms.is_(None)).with_for_update()
    )
    rows = connection.execute(found).mappings().all()
    now = connection.execute(select(now_ms())).scalar_one()
    if any(row["attempts"] > 0 and row["last_error"] is None and now < row["due_at_ms"] < PARKED_MS for row in rows):
        return "claimed"
    if to is not None and any((row["timer_key"] or "").startswith(CRON_KEY) for row in rows):
        return "schedule"
    for row in rows:
        mine = and_(*(outbox.c[name] == row[name] for name in _KEY))
        if to is None:
            connection.execute(delete(outbox).where(mine))
            kept = ("target_type", "target_id", "command", "payload", "caller", "due_at_ms", "attempts", "last_error")
            outcome: dict[str, Any] = {name: row[name] for name in kept}
        else:
            connection.execute(update(outbox).where(mine).values(**to, due_at_ms=now_ms(), attempts=0, last_error=None))
            outcome = {"from": {name: row[name] for name in ("target_type", "target_id", "command")}, "to": dict(to)}
        audit.keep(connection, audit.subject(row), audit.Act(operator, action, why), row["intent_id"], outcome)
    return "done" if rows else "absent"
