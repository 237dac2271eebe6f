"""Jobs that are limited per actor: each actor's jobs of one name are a group, begun in the order in which they were enqueued.

Who claims from a group, and who wakes it, holds the group's lock first and looks in a statement of its own, so every one of them sees what
the one before did. The lock is an advisory one: the actor's own row may be locked by a long turn, and claims must not wait for it.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple
from typing import cast as cast_type

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Integer,
    Text,
    and_,
    bindparam,
    false,
    func,
    literal_column,
    not_,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.sql.selectable import ExecutableReturnsRows, Select

from akter.store import attempt, probing
from akter.store.clock import now_ms, statement_ms
from akter.store.rows import source
from akter.tables import IDENTITY, outbox

_GROUP = (*IDENTITY, "command")
_NAMES = (*probing.KEY, *attempt.BEFORE)
_MOST_WAITING = 1000
"""Rows of a full group that one claim moves out of the way."""


class Group(NamedTuple):
    """An actor's jobs of one name."""

    bucket: int
    routing_key: int
    tenant_id: str
    actor_type: str
    actor_id: str
    command: str

    def lock(self, schema: str) -> int:
        """The number of its advisory lock; two groups that share one only wait for each other."""
        named = "\0".join((schema, *(str(part) for part in self)))
        return int.from_bytes(hashlib.blake2b(named.encode(), digest_size=8).digest(), "big", signed=True)


def due() -> ExecutableReturnsRows:
    """The groups with due rows, and how many rows that are; parameters as those of `attempt.claim`, of which it claims nothing.

    Jobs that were asked for before they had a limit belong to their group from here on.
    """
    found = attempt.due(attempt.known(), *_GROUP[2:], "capped")
    counted = probing.counted(found)
    groups = select(*(found.c[name] for name in _GROUP)).distinct().subquery("groups")
    chosen: Select[Any] = cast_type(Any, select)(*counted.c, *groups.c)
    return chosen.select_from(counted.outerjoin(groups, true())).add_cte(_joining(found))


def _joining(found: Any) -> Any:
    row = select(*(outbox.c[name] for name in probing.KEY)).where(probing.same(found)).with_for_update(skip_locked=True).lateral("row")
    alien = select(*row.c).select_from(found.join(row, true())).where(not_(found.c.capped)).cte("alien")
    return update(outbox).values(capped=true()).where(probing.same(alien)).returning(outbox.c.bucket).cte("joining")


def lock() -> ExecutableReturnsRows:
    """Hold the locks of groups until the end of the transaction, in their order."""
    given = (
        func.unnest(bindparam("locks", type_=ARRAY(BigInteger()))).table_valued(Column("lock", BigInteger()), name="given").render_derived()
    )
    ordered = select(given.c.lock).distinct().order_by(given.c.lock).offset(literal_column("0")).subquery("ordered")
    return select(func.count(func.pg_advisory_xact_lock(ordered.c.lock), type_=Integer()).label("locks"))


def claim() -> ExecutableReturnsRows:
    """Claim from groups whose locks are held: up to `limit` rows, each group's oldest first, no more than leave it within its limit.

    Parameters: the groups as arrays with `cap`, `most` attempts, `lease_ms` and `shared`, and `suspects` as of `attempt.claim`. What a full
    group has left waits out of the probes' way. A suspect that is not taken keeps its place.
    """
    groups = source("group_", (*_GROUP, "cap", "most", "lease_ms", "shared", "ord"), True)
    busy = _busy(groups)
    live = select(busy.c.ord, func.count().label("live")).where(busy.c.due_at_ms > statement_ms()).group_by(busy.c.ord).cte("live")
    room = (groups.c.cap - func.coalesce(live.c.live, literal_column("0"))).label("room")
    ruled = select(groups, room).select_from(groups.outerjoin(live, live.c.ord == groups.c.ord)).cte("ruled")
    within = _within(ruled, busy)
    first = select(within.c.intent_id).where(within.c.suspect, bindparam("suspects", type_=Boolean()))
    eldest = first.order_by(within.c.ready_at_ms, within.c.intent_id).limit(literal_column("1")).scalar_subquery()
    chosen = select(within).where(or_(~within.c.suspect, within.c.intent_id == eldest)).order_by(within.c.ready_at_ms)
    taken = chosen.limit(bindparam("limit", type_=Integer())).cte("taken")
    known = select(
        func.concat(ruled.c.actor_type, literal_column("'/'"), ruled.c.command, type_=Text()).label("key"), ruled.c.most, ruled.c.lease_ms
    ).distinct()
    claimed = attempt.lease(taken, known.cte("known"))
    waiting = _waiting(ruled, within, taken)
    none = literal_column("0", Integer())
    counted = select(func.count(type_=Integer()).label("found"), none.label("deepest"), none.label("oldest_ms")).select_from(taken)
    sums = counted.subquery("counted")
    wanted: Select[Any] = cast_type(Any, select)(*sums.c, *claimed.c)
    return wanted.select_from(sums.outerjoin(claimed, true())).add_cte(waiting)


def _busy(groups: Any) -> Any:
    """The running rows of each group, once nobody else is writing them: a renewal that is under way counts."""
    begins = and_(outbox.c.cancelled_at_ms.is_(None), ~outbox.c.final_failure, outbox.c.attempts < groups.c.most)
    row = (
        select(*(outbox.c[name] for name in (*_NAMES, "due_at_ms", "ready_at_ms")), and_(begins, groups.c.shared).label("suspect"))
        .where(_in(groups), outbox.c.running)
        .with_for_update()
        .lateral("row")
    )
    return select(*row.c, groups.c.ord).select_from(groups.join(row, true())).cte("busy")


def _within(ruled: Any, busy: Any) -> Any:
    """The rows that may be taken: cancelled ones, which take no place, and the oldest of the others, as many as there is room for."""
    ready = or_(outbox.c.due_at_ms <= statement_ms(), outbox.c.waiting)
    free = (
        select(*(outbox.c[name] for name in (*_NAMES, "ready_at_ms")), false().label("suspect"))
        .add_columns(outbox.c.cancelled_at_ms.is_not(None).label("cancelled"))
        .where(_in(ruled), not_(outbox.c.running), ready)
        .order_by(outbox.c.ready_at_ms, outbox.c.intent_id)
        .limit(ruled.c.room + literal_column("64"))
        .with_for_update(skip_locked=True)
        .lateral("free")
    )
    queued = select(*free.c, ruled.c.ord, ruled.c.room).select_from(ruled.join(free, true()))
    over = (
        select(*(busy.c[name] for name in (*_NAMES, "ready_at_ms", "suspect")), false(), ruled.c.ord, ruled.c.room)
        .select_from(busy.join(ruled, ruled.c.ord == busy.c.ord))
        .where(busy.c.due_at_ms <= statement_ms())
    )
    rows = union_all(queued, over).subquery("rows")
    place = func.row_number().over(partition_by=(rows.c.ord, rows.c.cancelled), order_by=(rows.c.ready_at_ms, rows.c.intent_id))
    ranked = select(*rows.c, place.label("place")).subquery("ranked")
    within = or_(ranked.c.cancelled, ranked.c.place <= ranked.c.room)
    return select(*(ranked.c[name] for name in (*_NAMES, "ready_at_ms", "suspect", "ord", "cancelled"))).where(within).cte("within")


def _waiting(ruled: Any, within: Any, taken: Any) -> Any:
    places = union_all(
        select(taken.c.ord).where(~taken.c.cancelled),
        select(within.c.ord).where(within.c.suspect, within.c.intent_id.not_in(select(taken.c.intent_id))),
    ).subquery("places")
    begun = select(places.c.ord, func.count().label("rows")).group_by(places.c.ord).subquery("begun")
    full = func.coalesce(begun.c["rows"], literal_column("0")) >= ruled.c.room
    row = (
        select(*(outbox.c[name] for name in probing.KEY))
        .where(
            _in(ruled),
            not_(outbox.c.running),
            outbox.c.due_at_ms <= statement_ms(),
            outbox.c.cancelled_at_ms.is_(None),
            outbox.c.intent_id.not_in(select(taken.c.intent_id)),
        )
        .limit(literal_column(str(_MOST_WAITING)))
        .with_for_update(skip_locked=True)
        .lateral("late")
    )
    others = (
        select(*row.c, ruled.c.lease_ms)
        .select_from(ruled.outerjoin(begun, begun.c.ord == ruled.c.ord).join(row, true()))
        .where(full)
        .cte("others")
    )
    return (
        update(outbox)
        .values(waiting=true(), due_at_ms=statement_ms() + others.c.lease_ms)
        .where(probing.same(others))
        .returning(outbox.c.bucket)
        .cte("moved")
    )


def wake() -> ExecutableReturnsRows:
    """Make the oldest waiting rows of groups whose locks are held due now, `count` of each; returns how many there were."""
    groups = source("wake_", (*_GROUP, "count"), True)
    row = (
        select(*(outbox.c[name] for name in probing.KEY))
        .where(_in(groups), not_(outbox.c.running), outbox.c.waiting)
        .order_by(outbox.c.ready_at_ms, outbox.c.intent_id)
        .limit(groups.c.count)
        .with_for_update(skip_locked=True)
        .lateral("row")
    )
    oldest = select(*row.c).select_from(groups.join(row, true())).cte("oldest")
    moved = update(outbox).values(due_at_ms=now_ms()).where(probing.same(oldest)).returning(outbox.c.bucket).cte("woken")
    return select(func.count(type_=Integer())).select_from(moved)


def _in(groups: Any) -> Any:
    mine = and_(*(outbox.c[name] == groups.c[name] for name in _GROUP))
    return and_(mine, outbox.c.kind == literal_column("'job'"), outbox.c.capped)
