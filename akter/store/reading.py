"""The statements of a query: one actor's committed state, alone or at the head of a read-only snapshot."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import LargeBinary, Text, and_, bindparam, cast, func, literal_column, select, true, type_coerce
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.rows import source
from akter.tables import IDENTITY, generations, receipts, state


class Seen(NamedTuple):
    """What a query knows of its actor; an actor without rows reads as one nobody has changed."""

    value: bytes | None
    version: int | None
    payload_version: int | None
    event_sequence: int | None


def state_of() -> ExecutableReturnsRows:
    """One actor's state; always one row."""
    rows = source("", IDENTITY, False)
    mine = [and_(*(table.c[name] == rows.c[name] for name in IDENTITY)) for table in (generations, state)]
    return select(
        type_coerce(cast(state.c.value, Text), LargeBinary),
        state.c.version,
        state.c.payload_version,
        generations.c.event_sequence,
    ).select_from(rows.outerjoin(generations, mine[0]).outerjoin(state, mine[1]))


def receipt_of() -> ExecutableReturnsRows:
    """The receipt of one command, if it has one."""
    rows = source("", (*IDENTITY, "command_id"), False)
    names = (*IDENTITY, "command_id")
    return select(receipts.c.command, receipts.c.payload_hash, receipts.c.caller_key, receipts.c.outcome).where(
        and_(*(receipts.c[name] == rows.c[name] for name in names))
    )


def limit() -> ExecutableReturnsRows:
    """Limit the statements of the transaction, in milliseconds."""
    return select(
        *(
            func.set_config(literal_column(f"'{name}'"), bindparam(name, type_=Text()), true()).label(name)
            for name in ("statement_timeout", "idle_in_transaction_session_timeout")
        )
    )
