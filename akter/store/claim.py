"""The claim of messages. To claim a row is to lease it.

A claim moves the row's due time past its lease, so nobody scans it again until the lease ends, and whoever settles it names the
lease it wrote. `SKIP LOCKED` passes over rows that another runner is claiming.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from typing import cast as cast_type

from sqlalchemy import BigInteger, ColumnElement, Float, Integer, bindparam, cast, func, literal_column, select, true, update
from sqlalchemy.sql.selectable import ExecutableReturnsRows, Select

from akter.store import ahead, probing
from akter.store.clock import statement_ms
from akter.store.rows import source
from akter.tables import outbox


class Claimed(NamedTuple):
    """One row of a claim. `found`: how many due rows the probe saw; `deepest`: how many of them in the fullest bucket; `oldest_ms`: for how
    long the oldest has been due. A claim that took nothing returns one row with only these."""

    found: int
    deepest: int
    oldest_ms: int
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
    claimed_at_ms: int


def intents() -> ExecutableReturnsRows:
    """Claim due intents for the types served here.

    Parameters: `first` and `last` bucket, `served` types, `limit` rows, `probe` rows to look at and `each` of one bucket, `age_ms`,
    `lease_ms`, `max_backoff_ms`.
    """
    return _claim("intents", "intent")


def feed() -> ExecutableReturnsRows:
    """Claim the due feeds of the types served here, whose events are to be brought to those that follow; parameters as of `intents`."""
    return _claim("feed", "feed")


def control() -> ExecutableReturnsRows:
    """Claim the due starts and ends of subscriptions of the types served here; parameters as of `intents`."""
    return _claim("control", "control")


def named(forward: bool = False) -> ExecutableReturnsRows:
    """Claim those of some messages that a claim of everything could take, too: due, held by nobody, for types served here and not paused.

    `forward`: the transaction behind this one on its connection hears which message was claimed (`akter.store.ahead`).

    Parameters: the messages' keys as arrays, `named_bucket`, `named_routing_key` and `named_intent_id`, their number as `limit`, and
    `served`, `lease_ms` and `max_backoff_ms` as of `intents`. It returns what it took, `found`, `deepest` and `oldest_ms` being 0.
    """
    here = outbox.c.target_type == func.any(probing.served("intents"))
    # Like its due time, a row's kind is of no use for an index here.
    message = outbox.c.kind.concat(literal_column("''")) == literal_column("'intent'")
    claimed = _lease(probing.locked(source("named_", probing.KEY, True), still=(message, here)))
    none: ColumnElement[int] = literal_column("0", Integer())
    chosen: Select[Any] = cast_type(Any, select)(none.label("found"), none.label("deepest"), none.label("oldest_ms"), *claimed.c)
    return chosen.where(ahead.left(claimed)) if forward else chosen


def _claim(family: str, kind: str) -> ExecutableReturnsRows:
    served = probing.served(family)
    found = probing.candidates(kind, outbox.c.target_type == func.any(served))
    claimed = _lease(probing.locked(found))
    counted = probing.counted(found)
    wanted: Select[Any] = cast_type(Any, select)(*counted.c, *claimed.c)
    return wanted.select_from(counted.outerjoin(claimed, true()))


def _lease(locked: Any) -> Any:
    """Move locked rows past their lease."""
    exponent = func.least(outbox.c.attempts, literal_column("31"), type_=Integer())
    doubled: ColumnElement[float] = func.power(literal_column("2.0"), exponent, type_=Float()) * literal_column("1000")
    waited = func.least(doubled, bindparam("max_backoff_ms", type_=BigInteger()), type_=Float())
    wait = func.greatest(bindparam("lease_ms", type_=BigInteger()), cast(waited, BigInteger), type_=BigInteger())
    return (
        update(outbox)
        .values(attempts=outbox.c.attempts + literal_column("1"), due_at_ms=statement_ms() + wait)
        .where(probing.same(locked))
        .returning(*_returned())
        .cte("claimed")
    )


def _returned() -> list[ColumnElement[Any]]:
    named: dict[str, Any] = {column.name: column for column in outbox.c}
    named["claimed_until_ms"] = outbox.c.due_at_ms.label("claimed_until_ms")
    named["claimed_at_ms"] = statement_ms().label("claimed_at_ms")
    return [named[name] for name in Claimed._fields[3:]]
