"""The rows a statement works on: one row of parameters for a lone command, parallel arrays for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    FromClause,
    Integer,
    Text,
    and_,
    bindparam,
    cast,
    func,
    select,
)
from sqlalchemy.sql.type_api import TypeEngine

from akter.identity import Address
from akter.tables import IDENTITY

_TYPES: dict[str, TypeEngine[Any]] = {
    "bucket": Integer(),
    "routing_key": BigInteger(),
    "tenant_id": Text(),
    "actor_type": Text(),
    "actor_id": Text(),
    "command_id": Text(),
    "command": Text(),
    "payload_hash": Text(),
    "caller_key": Text(),
    "outcome": Text(),
    "expires_at_ms": BigInteger(),
    "started_at_ms": BigInteger(),
    "value": Text(),
    "version": BigInteger(),
    "payload_version": Integer(),
    "intent_id": Text(),
    "kind": Text(),
    "timer_key": Text(),
    "target_type": Text(),
    "target_id": Text(),
    "payload": Text(),
    "caller": Text(),
    "delay_ms": BigInteger(),
    "due_at_ms": BigInteger(),
    "claimed_until_ms": BigInteger(),
    "last_error": Text(),
    "refund": Integer(),
    "first_ms": BigInteger(),
    "second_ms": BigInteger(),
    "event": Text(),
    "count": Integer(),
    "ord": Integer(),
    "attempts": Integer(),
    "lease_ms": BigInteger(),
    "cap": Integer(),
    "most": Integer(),
    "shared": Boolean(),
    "running": Boolean(),
    "ambiguous": Boolean(),
    "final": Boolean(),
    "capped": Boolean(),
    "cancelled": Boolean(),
    "letter": Boolean(),
    "cause": Text(),
    "cancel_command": Text(),
    "cancel_payload": Text(),
    "succeeded": Text(),
    "source_type": Text(),
    "source_id": Text(),
    "subscriber_type": Text(),
    "subscription": Text(),
    "subscriber_id": Text(),
    "events": ARRAY(Text()),
    "epoch": BigInteger(),
    "active": Boolean(),
    "applied": BigInteger(),
    "delivered": BigInteger(),
    "through": BigInteger(),
    "gaps": BigInteger(),
    "more": Boolean(),
}


def source(prefix: str, names: Sequence[str], many: bool) -> FromClause:
    """The rows a statement works on: parameters called `prefix` + name, arrays of them when there are many."""
    if not many:
        return select(*(bindparam(prefix + name, type_=_TYPES[name]).label(name) for name in names)).subquery(f"{prefix}rows")
    arrays = [bindparam(prefix + name, type_=ARRAY(_TYPES[name])) for name in names]
    columns = [Column(name, _TYPES[name]) for name in names]
    return func.unnest(*arrays).table_valued(*columns, name=f"{prefix}rows").render_derived()


def document(parameter: str, names: Sequence[str]) -> FromClause:
    """The rows of a single parameter, a text that is a JSON array of objects: it means the same to every driver and to all its adapters."""
    columns = [Column(name, _TYPES[name]) for name in names]
    listed = func.json_to_recordset(cast(bindparam(parameter, type_=Text()), JSON))
    return listed.table_valued(*columns, name=f"{parameter}_rows").render_derived(with_types=True)


def parameters(prefix: str, rows: Sequence[dict[str, Any]], many: bool) -> dict[str, Any]:
    """The parameters of a `source` for these rows."""
    if not many:
        return dict(zip(_prefixed(prefix, tuple(rows[0])), rows[0].values(), strict=True)) if prefix else rows[0]
    names = tuple(rows[0])
    columns = zip(*map(_picked(names), rows), strict=True)
    return dict(zip(_prefixed(prefix, names), map(list, columns), strict=True))


@lru_cache
def _picked(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    if len(names) == 1:
        return lambda row: (row[names[0]],)
    return itemgetter(*names)


@lru_cache
def _prefixed(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + name for name in names)


def belongs(table: FromClause, address: Address, names: Sequence[str] = IDENTITY) -> ColumnElement[bool]:
    """Whether a row of the table is one actor's, by the columns that name it there."""
    return and_(*(table.c[name] == value for name, value in zip(names, address, strict=True)))


def key(address: Address) -> dict[str, Any]:
    """An address as the columns that name it."""
    return address._asdict()
