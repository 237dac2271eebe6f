"""Followers that are behind, for people: who waits for what and why, and an operator's ways past an event that nobody can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Text,
    and_,
    case,
    delete,
    func,
    literal_column,
    select,
    true,
    update,
)

from akter.identity import Address, Placement, address
from akter.store import audit, probing, summary
from akter.store.backlog import AT_MOST, STUCK, Count, Pauses, reason_of
from akter.store.clock import now_ms, statement_ms
from akter.store.life import placement
from akter.store.rows import belongs
from akter.store.summary import Name
from akter.tables import IDENTITY, SOURCE, generations, routed_subscriptions, subscriptions

Skipped: TypeAlias = Literal["done", "absent", "claimed", "behind", "ahead"]
"""claimed: a runner is telling it now. behind: it was told that already. ahead: the source has no such event."""

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Lagging:
    """One follower that is behind. `behind`: events of the source, of any class, after the last one that is done; `due_in_ms` is negative
    when it is late; `gaps`: how often events were gone before it was told."""

    tenant: str
    source: str
    subscription: str
    subscriber_id: str
    reason: str
    delivered: int
    behind: int
    due_in_ms: int
    attempts: int
    gaps: int
    last_error: str | None


def page(
    connection: Connection,
    served: Sequence[str],
    paused: Pauses,
    *,
    limit: int = 100,
    attempts: int = 0,
    subscriber_type: str | None = None,
) -> list[Lagging]:
    """Those that are behind, the one that is due longest first; only those tried `attempts` times or more."""
    source = func.concat(subscriptions.c.source_type, "/", subscriptions.c.source_id, type_=Text())
    of = func.concat(subscriptions.c.subscriber_type, ".", subscriptions.c.subscription, type_=Text())
    behind = func.greatest(literal_column("0"), generations.c.event_sequence - subscriptions.c.delivered, type_=BigInteger())
    asked = (
        select(subscriptions.c.subscriber_type, subscriptions.c.tenant_id, source, of, subscriptions.c.subscriber_id, _reason())
        .add_columns(subscriptions.c.delivered, behind)
        .add_columns(subscriptions.c.due_at_ms - statement_ms(), *(subscriptions.c[name] for name in ("attempts", "gaps", "last_error")))
        .select_from(subscriptions.join(generations, _owner()))
        .where(subscriptions.c.due_at_ms.is_not(None), subscriptions.c.attempts >= attempts)
        .order_by(subscriptions.c.due_at_ms)
        .limit(limit)
    )
    if subscriber_type is not None:
        asked = asked.where(subscriptions.c.subscriber_type == subscriber_type)
    return [_lagging(*row, served=served, paused=paused) for row in connection.execute(asked)]


def _lagging(subscriber_type: str, *row: Any, served: Sequence[str], paused: Pauses) -> Lagging:
    found = Lagging(*row)
    return replace(found, reason=reason_of(found.reason, "subscription", subscriber_type, served, paused))


def counts(connection: Connection, served: Sequence[str], paused: Pauses) -> list[Count]:
    """How many followers are behind, by type and reason, as rows of the outbox are counted."""
    some = (
        select(subscriptions.c.subscriber_type, _reason().label("reason"), subscriptions.c.due_at_ms, subscriptions.c.attempts)
        .where(subscriptions.c.due_at_ms.is_not(None))
        .limit(AT_MOST)
        .subquery("some")
    )
    late = func.greatest(literal_column("0"), statement_ms() - func.min(some.c.due_at_ms), type_=BigInteger())
    stuck = func.count(type_=Integer()).filter(some.c.attempts >= STUCK)
    grouped = (some.c.subscriber_type, some.c.reason)
    found = connection.execute(select(*grouped, func.count(type_=Integer()), late, stuck).group_by(*grouped).order_by(*grouped))
    return [Count("subscription", row[0], reason_of(row[1], "subscription", row[0], served, paused), *row[2:]) for row in found]


def waits(connection: Connection, types: Sequence[str]) -> bool:
    """Whether a follower of one of these types is due to be told, and not paused; it looks at one row of each bucket and subscription."""
    buckets = func.generate_series(literal_column("-128"), literal_column("127")).table_valued(Column("bucket", Integer()), name="each")
    each = buckets.render_derived()
    due = subscriptions.c.due_at_ms <= statement_ms()
    mine = subscriptions.c.subscriber_type == func.any(probing.served("subscription"))
    one = select(subscriptions.c.due_at_ms).where(subscriptions.c.bucket == each.c.bucket, due, mine).limit(1).lateral("one")
    found: Any = select(literal_column("1")).select_from(each.join(one, true())).limit(1)
    return connection.execute(found, {"served": list(types)}).first() is not None


def _reason() -> ColumnElement[str]:
    due = subscriptions.c.due_at_ms <= statement_ms()
    failed = subscriptions.c.last_error.is_not(None)
    return case((due, literal_column("'due'")), (failed, literal_column("'backoff'")), else_=literal_column("'claimed'"))


def skip(connection: Connection, tenant: str, source_type: str, source_id: str, name: Name, through: int, by: str, why: str) -> Skipped:
    """Let a follower pass over what it was not told, up to and with the event `through`: it is told of a gap, or counts one."""
    source = _address(connection, tenant, source_type, source_id)
    if source is None:
        return "absent"
    head = summary.lock(connection, source)
    here = and_(belongs(subscriptions, source, SOURCE), *(subscriptions.c[column] == value for column, value in name._asdict().items()))
    row = connection.execute(select(subscriptions).where(here, subscriptions.c.active).with_for_update()).mappings().one_or_none()
    now = connection.execute(select(now_ms())).scalar_one()
    if row is None:
        return "absent"
    if row["attempts"] > 0 and row["last_error"] is None and row["due_at_ms"] is not None and now < row["due_at_ms"]:
        return "claimed"
    if through <= row["delivered"]:
        return "behind"
    if through > head:
        return "ahead"
    fresh = {"gap_through": through, "gap_at_ms": now, "due_at_ms": now, "attempts": 0, "last_error": None}
    connection.execute(update(subscriptions).where(here).values(**fresh))
    outcome = {"after": row["delivered"], "through": through, "attempts": row["attempts"], "last_error": row["last_error"]}
    target = " ".join(filter(None, (f"{name[0]}.{name[1]}", name[2])))
    audit.keep(connection, audit.subject(source), audit.Act(by, "subscriptions.skip", why), target, outcome)
    return "done"


def forget(connection: Connection, subscriber_type: str, subscription: str, by: str, why: str) -> int:
    """Forget a subscription that left the code: sources need not know it any more, and nobody follows by it. Returns how many did."""
    named = (routed_subscriptions.c.subscriber_type == subscriber_type, routed_subscriptions.c.subscription == subscription)
    connection.execute(delete(routed_subscriptions).where(*named))
    total = 0
    mine = and_(subscriptions.c.subscriber_type == subscriber_type, subscriptions.c.subscription == subscription, subscriptions.c.active)
    wanted = select(*(subscriptions.c[name] for name in (*SOURCE, "subscriber_id", "epoch"))).where(mine).order_by(*_keys())
    for row in connection.execute(wanted).mappings().all():
        source = Address(*(row[name] for name in SOURCE))
        total += summary.end(connection, source, Name(subscriber_type, subscription, row["subscriber_id"]), row["epoch"]) == "applied"
    everybody = audit.Subject(0, None, subscriber_type, None)
    act, target = audit.Act(by, "subscriptions.forget", why), f"{subscriber_type}.{subscription}"
    audit.keep(connection, everybody, act, target, {"followers": total})
    return total


def _keys() -> list[ColumnElement[Any]]:
    return [subscriptions.c[name] for name in SOURCE]


def _owner() -> ColumnElement[bool]:
    return and_(*(generations.c[name] == subscriptions.c[of] for name, of in zip(IDENTITY, SOURCE, strict=True)))


def _address(connection: Connection, tenant: str, kind: str, id: str) -> Address | None:
    placed = placement(connection, kind)
    return None if placed is None else address(cast(Placement, placed), tenant, kind, id)
