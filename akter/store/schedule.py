"""The rows of schedules: one pending message per schedule of an actor, written when it is missing and moved on when it was delivered.

Two times come with every row, the next one and the one after it: when the statement runs later than the first, the second is meant.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Integer, Text, bindparam, case, cast, func, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.clock import now_ms
from akter.store.rows import source
from akter.store.settle import CLAIM, held
from akter.tables import IDENTITY, generations, outbox

_TICK = (*IDENTITY, "timer_key", "command", "payload", "caller")

PLANTED = (*_TICK, "first_ms", "second_ms")
"""What a missing row is written from."""

MOVED = (*CLAIM, "command", "first_ms", "second_ms")
"""What a delivered row is moved on by."""


def plant() -> ExecutableReturnsRows:
    """Insert the rows that are missing; returns how many were. `keep_ms`: how long the receipt of a tick lives after its time."""
    rows, moment = source("tick_", PLANTED, True), select(now_ms().label("now_ms")).cte("moment")
    due = _due(rows, moment)
    mine = [rows.c[name] for name in _TICK]
    chosen = select(*mine, _fresh_id(due, moment), rows.c.actor_type, rows.c.actor_id, due, due).select_from(
        rows.join(moment, literal_column("true"))
    )
    columns = [*_TICK, "intent_id", "target_type", "target_id", "due_at_ms", "scheduled_at_ms"]
    made = insert(outbox).from_select(columns, chosen).on_conflict_do_nothing().returning(outbox.c.bucket)
    return select(func.count(type_=Integer())).select_from(made.cte("planted"))


def begin() -> ExecutableReturnsRows:
    """Make the generation rows of singletons whose schedules begin before their first turn; returns how many were missing."""
    rows = source("actor_", IDENTITY, True)
    made = insert(generations).from_select(list(IDENTITY), select(*(rows.c[name] for name in IDENTITY)))
    return select(func.count(type_=Integer())).select_from(made.on_conflict_do_nothing().returning(generations.c.bucket).cte("begun"))


def move_on() -> ExecutableReturnsRows:
    """Give delivered rows their next time, under a fresh id; returns how many were still this runner's."""
    rows, moment = source("next_", MOVED, True), select(now_ms().label("now_ms")).cte("moment")
    due = _due(rows, moment)
    moved = (
        update(outbox)
        .values(
            intent_id=_fresh_id(due, moment),
            command=rows.c.command,
            due_at_ms=due,
            scheduled_at_ms=due,
            attempts=literal_column("0"),
            last_error=literal_column("NULL"),
        )
        .where(held(rows))
        .returning(outbox.c.bucket)
    )
    return select(func.count(type_=Integer())).select_from(moved.cte("moved"))


def put_off() -> ExecutableReturnsRows:
    """Let rows of schedules nobody here knows wait as long again as they are late, and take back the attempt that was not made."""
    rows = source("off_", (*CLAIM, "last_error"), True)
    late = now_ms() - outbox.c.scheduled_at_ms
    wait = func.least(func.greatest(late, literal_column("1000")), bindparam("max_backoff_ms", type_=BigInteger()), type_=BigInteger())
    moved = (
        update(outbox)
        .values(due_at_ms=now_ms() + wait, attempts=outbox.c.attempts - literal_column("1"), last_error=rows.c.last_error)
        .where(held(rows))
        .returning(outbox.c.bucket)
    )
    return select(func.count(type_=Integer())).select_from(moved.cte("put_off"))


def _due(rows: Any, moment: Any) -> ColumnElement[int]:
    return case((rows.c.first_ms > moment.c.now_ms, rows.c.first_ms), else_=rows.c.second_ms)


def _fresh_id(due: ColumnElement[int], moment: Any) -> ColumnElement[str]:
    """A command id whose receipt lives as long as a message's."""
    until = due + bindparam("keep_ms", type_=BigInteger())
    parts = [cast(moment.c.now_ms, Text), cast(until, Text), cast(func.gen_random_uuid(), Text)]
    return func.concat_ws(literal_column("'.'"), literal_column("'v1'"), *parts, type_=Text())
