"""What waits in the outbox and why, for people and gauges: a page of rows, and counts by kind, type and reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Text,
    and_,
    case,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union_all,
)

from akter.schedule import CRON_KEY
from akter.store import probing
from akter.store.clock import statement_ms
from akter.store.settle import PARKED_MS
from akter.tables import outbox

Reason: TypeAlias = Literal[
    "due", "future", "schedule", "backoff", "claimed", "key", "parked", "paused", "unknown type", "unknown schedule"
]
"""Why a row is not delivered yet. due: any runner should take it any moment. future: a timer. schedule: its next time is later.
backoff: it failed and waits for its next try, or runs again now. claimed: a runner holds it for the first time. key: its group is full.
parked: it can never succeed. paused: its family or type is. unknown type: no live runner serves its type. unknown schedule: the runner
that looked last does not have it."""

REASONS: Final = get_args(Reason)
FAMILY: Final = {"intent": "intents", "job": "jobs", "feed": "feed", "control": "control", "subscription": "subscription"}
KIND: Final = {family: kind for kind, family in FAMILY.items()}
STUCK: Final = 8
"""Attempts from which a row that still waits is taken for stuck."""

AT_MOST: Final = 1_000_000
"""Rows at which counting stops, for those that are due and for the others."""

Cursor: TypeAlias = tuple[int, str, int, str]
Pauses: TypeAlias = frozenset[tuple[str, str]]
"""What is paused: family and type, an empty type for the whole family."""

_ORDER = (outbox.c.bucket, outbox.c.kind, outbox.c.due_at_ms, outbox.c.intent_id)
_PARKED = literal_column(str(PARKED_MS), BigInteger())
_SCHEDULED = and_(
    outbox.c.attempts == literal_column("0"),
    func.left(outbox.c.timer_key, literal_column(str(len(CRON_KEY)))) == literal_column(f"'{CRON_KEY}'"),
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """One row, without its payload. `due_in_ms` is negative when it is late; `cursor` is where the next page begins."""

    intent_id: str
    kind: str
    reason: str
    tenant: str
    sender: str
    target_type: str
    target_id: str
    command: str
    due_in_ms: int
    attempts: int
    key: str | None
    last_error: str | None
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of one kind, type and reason. `late_ms`: how long the oldest is due. `stuck`: those with 8 attempts or more, or parked."""

    kind: str
    target_type: str
    reason: str
    rows: int
    late_ms: int
    stuck: int


def page(
    connection: Connection,
    served: Sequence[str],
    paused: Pauses,
    *,
    limit: int = 100,
    after: Cursor | None = None,
    reason: Reason | None = None,
    target_type: str | None = None,
    intent_id: str | None = None,
    attempts: int = 0,
) -> list[Waiting]:
    """Rows in the order of the due index, a page at a time; `after` is the `cursor` of the last one."""
    asked = select(
        *(outbox.c[name] for name in ("intent_id", "kind", "tenant_id", "actor_type", "actor_id", "target_type", "target_id", "command")),
        *(outbox.c[name] for name in ("due_at_ms", "attempts", "timer_key", "last_error", "bucket")),
        _state().label("state"),
        (outbox.c.due_at_ms - statement_ms()).label("due_in_ms"),
    )
    asked = asked.order_by(*_ORDER).limit(limit)
    if after is not None:
        asked = asked.where(tuple_(*_ORDER) > tuple_(*(literal(value) for value in after)))
    if reason is not None:
        asked = asked.where(_only(reason, served, paused))
    if target_type is not None:
        asked = asked.where(outbox.c.target_type == target_type)
    if intent_id is not None:
        asked = asked.where(outbox.c.intent_id == intent_id)
    if attempts:
        asked = asked.where(outbox.c.attempts >= attempts)
    return [_waiting(row, served, paused) for row in connection.execute(asked).mappings()]


def counts(connection: Connection, served: Sequence[str], paused: Pauses) -> list[Count]:
    """How many rows wait. Those that are due are found by index ranges, so that no number of future timers hides them."""
    due = _in_buckets(outbox.c.due_at_ms <= statement_ms())
    rest = select(*_counted()).where(outbox.c.due_at_ms > statement_ms()).limit(AT_MOST)
    some = union_all(select(due), select(rest.subquery("rest"))).subquery("some")
    state, now = some.c.state, statement_ms()
    late = func.greatest(literal_column("0"), now - func.min(some.c.due_at_ms), type_=BigInteger())
    stuck = func.count(type_=Integer()).filter(or_(some.c.attempts >= STUCK, state == literal_column("'parked'")))
    grouped = (some.c.kind, some.c.target_type, state)
    found = connection.execute(select(*grouped, func.count(type_=Integer()), late, stuck).group_by(*grouped).order_by(*grouped))
    return [Count(row[0], row[1], reason_of(row[2], FAMILY[row[0]], row[1], served, paused), *row[3:]) for row in found]


def waits(connection: Connection, kind: str, types: Sequence[str]) -> bool:
    """Whether a row of a kind, for one of these types, is due and not paused; it looks at one row of each bucket."""
    found = probing.candidates(kind, outbox.c.target_type == func.any(probing.served(FAMILY[kind])))
    values = {"first": -128, "last": 127, "each": 1, "probe": 1, "served": list(types)}
    return connection.execute(select(literal_column("1")).select_from(found).limit(1), values).first() is not None


def _counted() -> list[ColumnElement[Any]]:
    return [outbox.c.kind, outbox.c.target_type, outbox.c.due_at_ms, outbox.c.attempts, _state().label("state")]


def _in_buckets(only: ColumnElement[bool]) -> Any:
    """Rows of one index range per bucket and kind, as the claim finds them."""
    buckets = func.generate_series(literal_column("-128"), literal_column("127")).table_valued(Column("bucket", Integer()), name="each")
    given = literal_column("'{intent,job,feed,control}'::text[]", ARRAY(Text()))
    kinds = func.unnest(given).table_valued(Column("kind", Text()), name="kinds").render_derived()
    each = buckets.render_derived()
    rows = (
        select(*_counted())
        .where(outbox.c.bucket == each.c.bucket, outbox.c.kind == kinds.c.kind, only)
        .order_by(outbox.c.due_at_ms)
        .limit(AT_MOST)
        .lateral("ranges")
    )
    return select(*rows.c).select_from(each.join(kinds, true()).join(rows, true())).limit(AT_MOST).subquery("found")


def _state() -> ColumnElement[str]:
    def said(reason: str) -> ColumnElement[str]:
        return literal_column(f"'{reason}'", Text())

    return case(
        (outbox.c.due_at_ms >= _PARKED, said("parked")),
        (outbox.c.due_at_ms <= statement_ms(), said("due")),
        (outbox.c.waiting, said("key")),
        (and_(_SCHEDULED, outbox.c.last_error.is_not(None)), said("unknown schedule")),
        (_SCHEDULED, said("schedule")),
        (outbox.c.attempts == literal_column("0"), said("future")),
        (outbox.c.last_error.is_not(None), said("backoff")),
        else_=said("claimed"),
    )


def reason_of(state: str, family: str, target_type: str, served: Sequence[str], paused: Pauses) -> str:
    """Why a row of a family waits: what its columns say, and for one that is due, whether anybody may and can take it."""
    if state != "due":
        return state
    if not paused.isdisjoint({(family, ""), (family, target_type)}):
        return "paused"
    return "due" if target_type in served else "unknown type"


def _only(reason: Reason, served: Sequence[str], paused: Pauses) -> ColumnElement[bool]:
    if reason not in ("due", "paused", "unknown type"):
        return _state() == reason
    held = or_(
        false(),
        *(
            and_(outbox.c.kind == KIND[family], true() if target == "" else outbox.c.target_type == target)
            for family, target in sorted(paused)
            if family in KIND
        ),
    )
    due = outbox.c.due_at_ms <= statement_ms()
    if reason == "paused":
        return and_(due, held)
    known = outbox.c.target_type.in_(list(served) or [""])
    return and_(due, ~held, known if reason == "due" else ~known)


def _waiting(row: Any, served: Sequence[str], paused: Pauses) -> Waiting:
    return Waiting(
        row["intent_id"],
        row["kind"],
        reason_of(row["state"], FAMILY[row["kind"]], row["target_type"], served, paused),
        row["tenant_id"],
        f"{row['actor_type']}/{row['actor_id']}",
        row["target_type"],
        row["target_id"],
        row["command"],
        row["due_in_ms"],
        row["attempts"],
        row["timer_key"],
        row["last_error"],
        (row["bucket"], row["kind"], row["due_at_ms"], row["intent_id"]),
    )
