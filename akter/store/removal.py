"""An operator's reset and deletion of one actor, each with its audit row, under the lock that the actor's turns take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, delete, false, func, literal, literal_column, not_, or_, select, true, update

from akter.identity import Address
from akter.schedule import CRON_KEY
from akter.store import audit
from akter.store.clock import now_ms
from akter.store.rows import belongs
from akter.store.settle import PARKED_MS
from akter.tables import dead_letters, events, generations, outbox, receipts, state, subscription_cursors

_LOCK = "5s"


class Absent(Exception):
    """No command ever came to this actor, and nothing waits for it."""


class Held(Exception):
    """A runner holds messages to this actor, whose delivery could not be stopped any more."""

    def __init__(self, intents: Sequence[str]) -> None:
        super().__init__(", ".join(intents))
        self.intents = intents


class Removed(NamedTuple):
    """How many rows went. `asked`: messages, timers and jobs that it asked for; `waiting`: messages of others to it."""

    state: int
    asked: int
    waiting: int
    receipts: int
    events: int
    dead_letters: int


def reset(connection: Connection, address: Address, operator: str, why: str) -> Removed:
    """Let an actor begin again with its defaults; raises `Absent` and `Held`.

    What it asked of itself goes, and what it asked of others for later. Its receipts stay, so that no earlier command runs again, and so
    do events, schedules, dead letters and what others asked of it.
    """
    _lock(connection, address)
    asked = _delete(connection, outbox, and_(_pending(address), not_(_scheduled())))
    removed = Removed(_begin_again(connection, address), asked, 0, 0, 0, 0)
    audit.keep(connection, audit.subject(address), audit.Act(operator, "actor.reset", why), str(address), removed._asdict())
    return removed


def erase(connection: Connection, address: Address, operator: str, why: str, *, with_receipts: bool) -> Removed:
    """Delete an actor, and what others asked of it; raises `Absent` and `Held`.

    Its generation row stays, so that no number of an event is ever given again; and its receipts, unless they are to go, too, until
    retention takes them, so that no earlier command runs again. What it asked to follow, it follows no more.
    """
    _lock(connection, address)
    waiting = _delete(connection, outbox, and_(_addressed(address), not_(belongs(outbox, address))))
    asked = _delete(connection, outbox, _pending(address))
    # Only what it asked to follow: who is routed to it follows for all of its kind.
    mine = and_(belongs(subscription_cursors, address), subscription_cursors.c.epoch > literal_column("0"))
    connection.execute(update(subscription_cursors).where(mine).values(active=false()))
    removed = Removed(
        _begin_again(connection, address),
        asked,
        waiting,
        _delete(connection, receipts, belongs(receipts, address)) if with_receipts else 0,
        _delete(connection, events, belongs(events, address)),
        _delete(connection, dead_letters, belongs(dead_letters, address)),
    )
    audit.keep(connection, audit.subject(address), audit.Act(operator, "actor.delete", why), str(address), removed._asdict())
    return removed


def _lock(connection: Connection, address: Address) -> None:
    """Wait for the turn that runs, then keep runners from claiming what is addressed to the actor."""
    connection.execute(select(func.set_config("lock_timeout", _LOCK, true())))
    # In the order in which a delivery takes them.
    head = connection.execute(select(generations.c.generation).where(belongs(generations, address)).with_for_update(key_share=True)).first()
    tried = and_(outbox.c.attempts > 0, outbox.c.last_error.is_(None))
    held = and_(tried, outbox.c.due_at_ms > now_ms(), outbox.c.due_at_ms < literal(PARKED_MS), outbox.c.kind == "intent")
    found = connection.execute(
        select(outbox.c.intent_id, held.label("held"))
        .where(_addressed(address))
        .order_by(outbox.c.bucket, outbox.c.routing_key, outbox.c.intent_id)
        .with_for_update()
    ).all()
    if head is None and not found:
        raise Absent
    if any(row.held for row in found):
        raise Held([row.intent_id for row in found if row.held])


def _begin_again(connection: Connection, address: Address) -> int:
    """Take the state and the creation mark away; returns how many states there were."""
    connection.execute(
        update(generations).where(belongs(generations, address)).values(generation=generations.c.generation + literal(1), created=false())
    )
    return _delete(connection, state, belongs(state, address))


def _pending(address: Address) -> Any:
    """What the actor asked for and that is not on its way to others: its jobs, what it sends itself, and what has its time to come."""
    later = and_(outbox.c.attempts == literal_column("0"), outbox.c.due_at_ms > now_ms())
    return and_(belongs(outbox, address), outbox.c.kind.in_(["intent", "job"]), or_(outbox.c.kind == "job", _addressed(address), later))


def _scheduled() -> Any:
    return and_(outbox.c.timer_key.is_not(None), outbox.c.timer_key.startswith(CRON_KEY, autoescape=True))


def _addressed(address: Address) -> Any:
    named = (outbox.c.target_type == address.actor_type, outbox.c.target_id == address.actor_id)
    return and_(outbox.c.tenant_id == address.tenant_id, *named)


def _delete(connection: Connection, table: Any, only: Any) -> int:
    return connection.execute(delete(table).where(only)).rowcount
