"""The one clock: the database's, in epoch milliseconds, plus the offset that tests may move."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Text, cast, func, literal_column, select

from akter.tables import deployment


def now_ms() -> ColumnElement[int]:
    """The time of this very moment, later than everything the transaction waited for."""
    moment: ColumnElement[Any] = func.extract("epoch", func.clock_timestamp())
    offset = select(deployment.c.clock_offset_ms).scalar_subquery()
    return cast(func.floor(moment * literal_column("1000")), BigInteger) + func.coalesce(offset, literal_column("0"))


def statement_ms() -> ColumnElement[int]:
    """The time this statement started, never earlier than what was committed before it was sent; one value for the whole statement."""
    moment: ColumnElement[Any] = func.extract("epoch", func.statement_timestamp())
    offset = select(deployment.c.clock_offset_ms).scalar_subquery()
    started = cast(func.floor(moment * literal_column("1000")), BigInteger) + func.coalesce(offset, literal_column("0"))
    # A sub-select is worked out once, and an index range can start from it.
    return cast(select(started).scalar_subquery(), BigInteger)


def transaction_id() -> ColumnElement[str]:
    """The id of the running transaction; a statement that demands it cannot run in another one."""
    return cast(func.pg_current_xact_id(), Text)
