"""The claim: due work of every family a pass can take, in one autocommit statement. To claim a row is to lease it.

A claim moves the row's due time past its lease, so nobody scans it again until the lease ends, and whoever settles it names the
lease it wrote. `SKIP LOCKED` passes over rows that another runner is claiming.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from typing import cast as cast_type

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Integer,
    Text,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.selectable import ExecutableReturnsRows, Select

from akter.store.clock import statement_ms
from akter.tables import outbox, pauses

_KEY = ("bucket", "routing_key", "intent_id")


class Claimed(NamedTuple):
    """One row of a claim. `found`: how many due rows the probe saw; `deepest`: how many of them in the fullest bucket. A claim that took
    nothing returns one row with only these."""

    found: int
    deepest: int
    bucket: int
    routing_key: int
    intent_id: str
    attempts: int
    tenant_id: str
    actor_type: str
    actor_id: str
    target_type: str
    target_id: str
    command: str
    payload: bytes
    payload_version: int
    caller: str
    claimed_until_ms: int
    timer_key: str | None
    scheduled_at_ms: int
    last_error: str | None


def intents() -> ExecutableReturnsRows:
    """Claim due intents for the types served here.

    Parameters: `first` and `last` bucket, `served` types, `limit` rows, `probe` rows to look at and `each` of one bucket, `lease_ms`,
    `max_backoff_ms`.
    """
    served = _served("intents")
    candidates = _candidates("intent", outbox.c.target_type == func.any(served))
    locked = _locked(candidates)
    exponent = func.least(outbox.c.attempts, literal_column("31"), type_=Integer())
    doubled: ColumnElement[float] = func.power(literal_column("2.0"), exponent, type_=Float()) * literal_column("1000")
    waited = func.least(doubled, bindparam("max_backoff_ms", type_=BigInteger()), type_=Float())
    wait = func.greatest(bindparam("lease_ms", type_=BigInteger()), cast(waited, BigInteger), type_=BigInteger())
    claimed = (
        update(outbox)
        .values(attempts=outbox.c.attempts + literal_column("1"), due_at_ms=statement_ms() + wait)
        .where(and_(*(outbox.c[name] == locked.c[name] for name in _KEY)))
        .returning(*_returned())
        .cte("claimed")
    )
    counted = _counted(candidates)
    wanted: Select[Any] = cast_type(Any, select)(*counted.c, *claimed.c)
    return wanted.select_from(counted.outerjoin(claimed, true()))


def _returned() -> list[ColumnElement[Any]]:
    named: dict[str, Any] = {column.name: column for column in outbox.c}
    named["claimed_until_ms"] = outbox.c.due_at_ms.label("claimed_until_ms")
    return [named[name] for name in Claimed._fields[2:]]


def _counted(candidates: Any) -> Any:
    per_bucket = select(func.count().label("rows")).select_from(candidates).group_by(candidates.c.bucket).subquery("per_bucket")
    rows = per_bucket.c["rows"]
    none: ColumnElement[int] = literal_column("0")
    found, deepest = func.coalesce(func.sum(rows), none), func.coalesce(func.max(rows), none)
    return select(cast(found, Integer).label("found"), cast(deepest, Integer).label("deepest")).subquery("counted")


def _served(family: str) -> Any:
    """The registered types that nobody paused, as one array, worked out once per claim."""
    given = func.unnest(bindparam("served", type_=ARRAY(Text()))).table_valued(Column("type", Text()), name="given").render_derived()
    name: ColumnElement[str] = literal_column(f"'{family}'")
    paused = exists().where(pauses.c.family == name, or_(pauses.c.target == literal_column("''"), pauses.c.target == given.c["type"]))
    chosen = select(func.array_agg(given.c["type"], type_=ARRAY(Text()))).where(~paused).scalar_subquery()
    # As an expression, not as a sub-select: `= ANY (SELECT ...)` would compare with its rows.
    return func.coalesce(chosen, literal_column("'{}'::text[]"), type_=ARRAY(Text()))


def _candidates(kind: str, only: Any) -> Any:
    """One index range per bucket, so the cost follows due rows of one kind, never future timers or other kinds. No locks.

    A bucket gives `each` rows at most: else every claim would read a backlog many times over.
    """
    buckets = func.generate_series(bindparam("first", type_=Integer()), bindparam("last", type_=Integer()))
    each = buckets.table_valued(Column("bucket", Integer()), name="each").render_derived()
    # The filter stands inside the probe: due rows nobody here can take must not fill its limit.
    due = (
        select(*(outbox.c[name] for name in _KEY), outbox.c.due_at_ms)
        .where(
            outbox.c.bucket == each.c.bucket,
            outbox.c.kind == literal_column(f"'{kind}'"),
            outbox.c.due_at_ms <= statement_ms(),
            only,
        )
        .order_by(outbox.c.due_at_ms)
        .limit(bindparam("each", type_=Integer()))
        .lateral("due")
    )
    chosen = select(*(due.c[name] for name in _KEY)).select_from(each.join(due, true()))
    return chosen.order_by(due.c.due_at_ms).limit(bindparam("probe", type_=Integer())).cte("candidates")


def _locked(candidates: Any) -> Any:
    """The first `limit` candidates that are still due and that nobody else holds.

    They are looked up one by one, in their order, until there are enough: a join would let the planner read everything that is due,
    and would lock rows that are not taken.
    """
    row = (
        select(*(outbox.c[name] for name in _KEY))
        .where(
            *(outbox.c[name] == candidates.c[name] for name in _KEY),
            # Said so that the due index is of no use: it would look a row up among all that are due in its bucket.
            outbox.c.due_at_ms + literal_column("0") <= statement_ms(),
        )
        .with_for_update(skip_locked=True)
        .lateral("row")
    )
    chosen = select(*(row.c[name] for name in _KEY)).select_from(candidates.join(row, true()))
    return chosen.limit(bindparam("limit", type_=Integer())).cte("locked")
