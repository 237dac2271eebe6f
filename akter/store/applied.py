"""What each subscriber applied of the actors it follows. Written under the subscriber's lock; it outlives the receipts."""

from __future__ import annotations

from sqlalchemy import JSON, Integer, Text, and_, cast, func, literal_column, null, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.clock import now_ms
from akter.store.rows import source
from akter.tables import IDENTITY, outbox, subscription_cursors

KEY = (*IDENTITY, "subscription", "source_type", "source_id")


def read() -> ExecutableReturnsRows:
    """The cursors of deliveries that are being admitted: `ord`, epoch, whether it goes on, and the last position applied."""
    rows = source("cursor_", (*KEY, "ord"), True)
    mine = and_(*(subscription_cursors.c[name] == rows.c[name] for name in KEY))
    return select(rows.c.ord, subscription_cursors.c.epoch, subscription_cursors.c.active, subscription_cursors.c.applied).select_from(
        rows.join(subscription_cursors, mine)
    )


def move() -> ExecutableReturnsRows:
    """Note what was applied, in the commit of the turn that applied it; nothing when the subscriber meanwhile began anew."""
    rows = source("move_", (*KEY, "epoch", "active", "applied"), True)
    made = insert(subscription_cursors).from_select(
        [*KEY, "epoch", "active", "applied"], select(*(rows.c[name] for name in (*KEY, "epoch", "active", "applied")))
    )
    fresh = made.excluded
    moved = made.on_conflict_do_update(
        index_elements=list(KEY),
        set_={"active": fresh.active, "applied": func.greatest(subscription_cursors.c.applied, fresh.applied)},
        where=subscription_cursors.c.epoch == fresh.epoch,
    ).returning(subscription_cursors.c.bucket)
    return select(func.count(type_=Integer())).select_from(moved.cte("moved"))


def change() -> ExecutableReturnsRows:
    """Begin or end a subscription under a new epoch, and ask the relay to tell the source; a request that still waits is replaced."""
    rows = source("change_", (*KEY, "active", "applied", "timer_key", "command", "payload", "caller"), True)
    made = insert(subscription_cursors).from_select(
        [*KEY, "epoch", "active", "applied"],
        select(*(rows.c[name] for name in KEY), literal_column("1"), rows.c.active, rows.c.applied),
    )
    fresh = made.excluded
    changed = (
        made.on_conflict_do_update(
            index_elements=list(KEY),
            set_={"epoch": subscription_cursors.c.epoch + literal_column("1"), "active": fresh.active, "applied": fresh.applied},
        )
        .returning(subscription_cursors.c.epoch)
        .cte("changed")
    )
    asked = func.json_build_object(literal_column("'epoch'"), changed.c.epoch, literal_column("'asked'"), cast(rows.c.payload, JSON))
    id = func.concat(literal_column("'control:'"), func.gen_random_uuid(), type_=Text())
    told = ["timer_key", "command", "caller"]
    request = insert(outbox).from_select(
        [*IDENTITY, "intent_id", "kind", "target_type", "target_id", *told, "payload", "due_at_ms", "scheduled_at_ms"],
        select(
            *(rows.c[name] for name in IDENTITY),
            id,
            literal_column("'control'"),
            rows.c.actor_type,
            rows.c.actor_id,
            *(rows.c[name] for name in told),
            cast(asked, Text),
            now_ms(),
            now_ms(),
        ).select_from(rows.join(changed, literal_column("true"))),
    )
    newer = request.excluded
    replaced = request.on_conflict_do_update(
        index_elements=[*IDENTITY, "timer_key"],
        index_where=literal_column("timer_key IS NOT NULL"),
        set_={
            **{name: newer[name] for name in ("command", "payload", "caller", "due_at_ms", "scheduled_at_ms")},
            "attempts": literal_column("0"),
            "last_error": null(),
        },
    ).returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(replaced.cte("asked"))
