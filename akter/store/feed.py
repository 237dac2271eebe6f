"""Publishing: events are appended and, when anybody follows them, the actor's one feed row is due; the same cost for any number.

Later the relay expands the feed: it marks the rows of those that follow. Whoever changes how an actor is followed holds the lock of its
generation row, as its turns do, so a turn never misses a follower whose subscription began before it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    JSON,
    Column,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store import log
from akter.store.clock import now_ms
from akter.tables import IDENTITY, SOURCE, outbox, subscription_tags, subscriptions

FEED_KEY = "$feed"
_ROUTED = ("subscriber_type", "subscription", "events")


def publish(routed: bool) -> ExecutableReturnsRows:
    """Append one actor's events and, when some are followed, make its feed due. Returns how many were appended, and whether it is due.

    `routed`: the parameter `routes` holds the routed subscriptions of these events, a JSON array; those that do not follow this actor
    yet, or not all of the events, begin with this turn's first event.
    """
    appended, reserved = log.appended()
    mine = [reserved.c[name] for name in IDENTITY]
    followed: Any = exists(_followed())
    created: tuple[CTE, ...] = ()
    if routed:
        # Named by a declaration is followed, and that row may be one that this very statement writes.
        created, followed = _created(reserved), literal_column("true")
    moment = select(now_ms().label("now_ms")).cte("moment")
    feed = upsert(outbox).from_select(
        [*IDENTITY, "intent_id", "kind", "timer_key", "target_type", "target_id", "command", "payload", "caller", *_DUE],
        select(
            *mine,
            func.concat(literal_column("'feed:'"), func.gen_random_uuid(), type_=Text()),
            literal_column("'feed'"),
            literal_column(f"'{FEED_KEY}'"),
            reserved.c.actor_type,
            reserved.c.actor_id,
            literal_column(f"'{FEED_KEY}'"),
            literal_column("'{}'"),
            bindparam("feed_caller", type_=Text()),
            *(moment.c.now_ms for _ in _DUE),
        )
        .select_from(reserved.join(moment, true()))
        .where(followed),
    )
    # A relay that expands the feed right now claimed it under another due time, and will not delete what is due again.
    due = feed.on_conflict_do_update(
        index_elements=[*IDENTITY, "timer_key"],
        index_where=literal_column("timer_key IS NOT NULL"),
        set_={"due_at_ms": feed.excluded.due_at_ms, "attempts": literal_column("0"), "last_error": null()},
    )
    fed = due.returning(outbox.c.bucket).cte("fed")
    counted: Any = select(func.count(type_=Integer())).select_from(appended).scalar_subquery()
    found: Any = select(func.count(type_=Integer())).select_from(fed).scalar_subquery()
    wanted = select(counted.label("appended"), (found > literal_column("0")).label("followed"))
    return wanted.add_cte(*created)


_DUE = ("due_at_ms", "scheduled_at_ms")


def _followed() -> Any:
    """Whether the summary names one of the events: a look at its key, however many follow."""
    mine = [subscription_tags.c[name] == bindparam(f"feed_{name}", type_=subscription_tags.c[name].type) for name in SOURCE]
    return select(literal_column("1")).where(*mine, subscription_tags.c.event == func.any(bindparam("feed_events", type_=ARRAY(Text()))))


def _created(reserved: FromClause) -> tuple[CTE, CTE]:
    """Rows of routed subscriptions that are missing, or do not name all events yet, and the summary of what they add."""
    columns = [Column("subscriber_type", Text()), Column("subscription", Text()), Column("events", ARRAY(Text()))]
    listed = func.json_to_recordset(cast(bindparam("routes", type_=Text()), JSON))
    routes = listed.table_valued(*columns, name="routes").render_derived(with_types=True)
    own = dict(zip(SOURCE, (reserved.c[name] for name in IDENTITY), strict=True))
    known = and_(
        *(subscriptions.c[name] == value for name, value in own.items()),
        subscriptions.c.subscriber_type == routes.c.subscriber_type,
        subscriptions.c.subscription == routes.c.subscription,
        subscriptions.c.subscriber_id == literal_column("''"),
    )
    none = literal_column("'{}'::text[]", ARRAY(Text()))
    before = func.coalesce(subscriptions.c.events, none, type_=ARRAY(Text()))
    fresh = (
        select(
            *(value.label(name) for name, value in own.items()),
            routes.c.subscriber_type,
            routes.c.subscription,
            routes.c.events,
            before.label("before"),
            reserved.c.base.label("delivered"),
        )
        .select_from(reserved.join(routes, true()).outerjoin(subscriptions, known))
        .where(or_(subscriptions.c.bucket.is_(None), ~before.bool_op("@>")(routes.c.events)))
        .cte("fresh")
    )
    both = func.unnest(fresh.c.before.op("||")(fresh.c.events)).column_valued("name")
    union = func.array(select(both).distinct().order_by(both).scalar_subquery(), type_=ARRAY(Text()))
    named = [*SOURCE, "subscriber_type", "subscription"]
    made = upsert(subscriptions).from_select(
        [*named, "subscriber_id", "events", "delivered"],
        # In the order in which feeds lock them.
        select(*(fresh.c[name] for name in named), literal_column("''"), union, fresh.c.delivered).order_by(
            fresh.c.subscriber_type, fresh.c.subscription
        ),
    )
    created = (
        made.on_conflict_do_update(index_elements=[*named, "subscriber_id"], set_={"events": made.excluded.events})
        .returning(subscriptions.c.bucket)
        .cte("created")
    )
    added = func.unnest(fresh.c.events).table_valued(Column("event", Text()), name="added").render_derived()
    delta = (
        select(*(fresh.c[name] for name in SOURCE), added.c.event, func.count().label("followers"))
        .select_from(fresh.join(added, true()))
        .where(added.c.event != func.all(fresh.c.before))
        .group_by(*(fresh.c[name] for name in SOURCE), added.c.event)
        .order_by(added.c.event)
    )
    summed = upsert(subscription_tags).from_select([*SOURCE, "event", "followers"], delta)
    counted = (
        summed.on_conflict_do_update(
            index_elements=[*SOURCE, "event"], set_={"followers": subscription_tags.c.followers + summed.excluded.followers}
        )
        .returning(subscription_tags.c.bucket)
        .cte("summed")
    )
    return created, counted
