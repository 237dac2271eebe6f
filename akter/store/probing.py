"""How a claim finds due rows of the outbox and locks those that nobody else holds; what the claims of all families share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
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
)
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.clock import statement_ms
from akter.tables import outbox, pauses

KEY = ("bucket", "routing_key", "intent_id")
"""What names a row of the outbox."""

_PLACE: ColumnElement[Any] = literal_column("ctid")
"""Where a row lies: it is found there without its key's index, which is as deep as there are timers."""


def same(row: Any) -> ColumnElement[bool]:
    """Whether a row of the outbox is the one that `row` of the same statement names; found at its place, if that is known."""
    named = and_(*(outbox.c[name] == row.c[name] for name in KEY))
    return and_(row.c.place == _PLACE, named) if "place" in row.c else named


EVER = 2**53
"""The milliseconds before now from which on a claim sees everything that is due."""


def counted(candidates: Any) -> Any:
    """How many candidates there are, how many in the fullest bucket, and for how many milliseconds the oldest has been due."""
    each = select(func.count().label("rows"), func.min(candidates.c.due_at_ms).label("due_at_ms"))
    per_bucket = each.select_from(candidates).group_by(candidates.c.bucket).subquery("per_bucket")
    rows = per_bucket.c["rows"]
    none: ColumnElement[int] = literal_column("0")
    found, deepest = func.coalesce(func.sum(rows), none), func.coalesce(func.max(rows), none)
    oldest = func.coalesce(statement_ms() - func.min(per_bucket.c.due_at_ms), none, type_=BigInteger())
    return select(cast(found, Integer).label("found"), cast(deepest, Integer).label("deepest"), oldest.label("oldest_ms")).subquery(
        "counted"
    )


def served(family: str) -> Any:
    """The registered types that nobody paused, as one array, worked out once per claim."""
    given = func.unnest(bindparam("served", type_=ARRAY(Text()))).table_valued(Column("type", Text()), name="given").render_derived()
    name: ColumnElement[str] = literal_column(f"'{family}'")
    paused = exists().where(pauses.c.family == name, or_(pauses.c.target == literal_column("''"), pauses.c.target == given.c["type"]))
    return texts(given.c["type"], ~paused)


def texts(column: ColumnElement[str], *only: ColumnElement[bool]) -> Any:
    """A column's values as one array, to compare with by `= ANY`."""
    chosen = select(func.array_agg(column, type_=ARRAY(Text()))).where(*only).scalar_subquery()
    # As an expression, not as a sub-select: `= ANY (SELECT ...)` would compare with its rows.
    return func.coalesce(chosen, literal_column("'{}'::text[]"), type_=ARRAY(Text()))


def candidates(kind: str, only: Any, *also: Any) -> Any:
    """One index range per bucket, so the cost follows due rows of one kind, never future timers or other kinds. No locks.

    `also`: other columns of the outbox by their names, or labelled expressions over it.
    A bucket gives `each` rows at most: else every claim would read a backlog many times over. What has been due for longer than `age_ms`,
    if that is said, is not looked at.
    """
    buckets = func.generate_series(bindparam("first", type_=Integer()), bindparam("last", type_=Integer()))
    each = buckets.table_valued(Column("bucket", Integer()), name="each").render_derived()
    # The filter stands inside the probe: due rows nobody here can take must not fill its limit.
    wanted = [outbox.c[one] if isinstance(one, str) else one for one in (*KEY, _PLACE.label("place"), *also)]
    due = (
        select(*wanted, outbox.c.due_at_ms)
        .where(
            outbox.c.bucket == each.c.bucket,
            outbox.c.kind == literal_column(f"'{kind}'"),
            outbox.c.due_at_ms <= statement_ms(),
            outbox.c.due_at_ms >= statement_ms() - bindparam("age_ms", EVER, type_=BigInteger()),
            only,
        )
        .order_by(outbox.c.due_at_ms)
        .limit(bindparam("each", type_=Integer()))
        .lateral("due")
    )
    chosen = select(*(due.c[one.name] for one in wanted), due.c.due_at_ms).select_from(each.join(due, true()))
    return chosen.order_by(due.c.due_at_ms).limit(bindparam("probe", type_=Integer())).cte("candidates")


def next_due() -> ExecutableReturnsRows:
    """Milliseconds until the next row of some `kinds`, in the buckets `first` to `last`, is due; null when there is none.

    It reads one entry of the due index for each bucket and kind, however many timers there are.
    """
    buckets = func.generate_series(bindparam("first", type_=Integer()), bindparam("last", type_=Integer()))
    each = buckets.table_valued(Column("bucket", Integer()), name="each").render_derived()
    given = func.unnest(bindparam("kinds", type_=ARRAY(Text()))).table_valued(Column("kind", Text()), name="given").render_derived()
    following = (
        select(outbox.c.due_at_ms)
        .where(outbox.c.bucket == each.c.bucket, outbox.c.kind == given.c.kind, outbox.c.due_at_ms > statement_ms())
        .order_by(outbox.c.due_at_ms)
        .limit(literal_column("1"))
        .lateral("following")
    )
    return select(func.min(following.c.due_at_ms) - statement_ms()).select_from(each.join(given, true()).join(following, true()))


def locked(candidates: Any, *also: str, only: ColumnElement[bool] | None = None, still: Sequence[ColumnElement[bool]] = ()) -> Any:
    """The first `limit` candidates that are still due and that nobody else holds.

    They are looked up one by one, in their order, until there are enough: a join would let the planner read everything that is due,
    and would lock rows that are not taken. `also`: columns wanted as they were before the claim. `only`: which candidates to look up,
    and `still`: what must be so of their rows, too.
    """
    row = (
        select(*(outbox.c[name] for name in (*KEY, *also)), _PLACE.label("place"))
        .where(
            same(candidates),
            # Said so that the due index is of no use: it would look a row up among all that are due in its bucket.
            outbox.c.due_at_ms + literal_column("0") <= statement_ms(),
            *still,
        )
        .with_for_update(skip_locked=True)
        .lateral("row")
    )
    chosen = select(*row.c).select_from(candidates.join(row, true()))
    if only is not None:
        chosen = chosen.where(only)
    return chosen.limit(bindparam("limit", type_=Integer())).cte("locked")
