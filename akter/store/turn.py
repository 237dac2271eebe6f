"""The statements of a turn: lock, then read; write, then commit. Each is written for one command or for many.

A statement reads its rows from a source: one row of parameters for a lone command, parallel arrays for a group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    BigInteger,
    FromClause,
    Integer,
    LargeBinary,
    Text,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    literal_column,
    select,
    true,
    type_coerce,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows, Select

from akter.following import Cursor
from akter.store.clock import now_ms, transaction_id
from akter.store.rows import source
from akter.tables import IDENTITY, generations, receipts, state

FENCE = "akter: this turn lost its fence"
"""What the write statement fails with when the state changed under the turn, or the transaction is not the turn's any more."""


class Admitted(NamedTuple):
    """What the read knows of one command, under the actor's lock."""

    generation: int
    created: bool
    event_sequence: int
    value: bytes | None
    version: int | None
    payload_version: int | None
    command: str | None
    payload_hash: str | None
    caller_key: str | None
    outcome: str | None
    now_ms: int
    transaction: str
    ord: int
    cursor: Cursor | None = None
    """What a subscriber knows of the source that it is told of."""


def settings() -> ExecutableReturnsRows:
    """Limit the rest of the transaction, in milliseconds: each statement, each wait for a lock, each idle time."""
    return select(
        *(
            func.set_config(literal_column(f"'{name}'"), bindparam(name, type_=Text()), true()).label(name)
            for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        )
    )


def lock(many: bool) -> Insert:
    """Lock the actors' generation rows in key order, making those that are missing.

    `ON CONFLICT DO UPDATE` locks an existing row FOR NO KEY UPDATE even where its WHERE lets nothing be written.
    """
    rows = source("", IDENTITY, many)
    keys = [rows.c[name] for name in IDENTITY]
    return locked(select(*keys).distinct().order_by(*keys) if many else select(*keys))


def locked(chosen: Select[Any]) -> Insert:
    """Lock the generation rows of the chosen identities, in their order."""
    made = insert(generations).from_select(list(IDENTITY), chosen)
    return made.on_conflict_do_update(index_elements=list(IDENTITY), set_={"generation": generations.c.generation}, where=false())


def read(many: bool) -> ExecutableReturnsRows:
    """What the commands need to know, read in a statement of its own: a lock that waited must not show its old snapshot."""
    return known(source("", (*IDENTITY, "command_id", "ord"), many))


def known(rows: FromClause) -> ExecutableReturnsRows:
    """What is known of the actors and commands of some rows."""

    def mine(table: FromClause) -> Any:
        return and_(*(table.c[name] == rows.c[name] for name in IDENTITY))

    return select(
        generations.c.generation,
        generations.c.created,
        generations.c.event_sequence,
        type_coerce(cast(state.c.value, Text), LargeBinary),
        state.c.version,
        state.c.payload_version,
        receipts.c.command,
        receipts.c.payload_hash,
        receipts.c.caller_key,
        receipts.c.outcome,
        now_ms().label("now_ms"),
        transaction_id().label("transaction"),
        rows.c.ord,
    ).select_from(
        rows.join(generations, mine(generations))
        .outerjoin(state, mine(state))
        .outerjoin(receipts, and_(mine(receipts), receipts.c.command_id == rows.c.command_id))
    )


def write(many: bool, states: bool, created: bool) -> ExecutableReturnsRows:
    """Write receipts, and the states and creation marks there are, all or nothing.

    Fails with `FENCE` when a state's version is not the one that was read, or when the transaction is not the one that was admitted.
    The receipts need no count: a plain INSERT writes all its rows, or it fails.
    """
    wanted: list[Any] = []
    if states:
        saved = _states(many).cte("saved")
        wanted.append(select(func.count()).select_from(saved).scalar_subquery() == bindparam("states", type_=BigInteger()))
    if created:
        marked = _marks(many).cte("marked")
        wanted.append(select(func.count()).select_from(marked).scalar_subquery() == bindparam("marks", type_=BigInteger()))
    moved = transaction_id() != bindparam("transaction", type_=Text())
    # A cast that fails is the only error plain SQL can raise, and an error is what makes the COMMIT behind it roll back.
    said = (literal_column(f"'{FENCE}: {why}'", Text()) for why in ("another transaction", "the state changed"))
    reason = cast(case((moved, next(said)), else_=next(said)), Integer)
    fence = select(case((and_(~moved, *wanted), literal_column("0", Integer())), else_=reason).label("fence"))
    return fence.add_cte(_receipts(many).cte("kept"))


def _receipts(many: bool) -> Any:
    names = ("command_id", "command", "payload_hash", "caller_key", "outcome", "expires_at_ms", "started_at_ms")
    rows = source("receipt_", (*IDENTITY, *names), many)
    columns = [rows.c[name] for name in (*IDENTITY, *names)]
    return insert(receipts).from_select([*IDENTITY, *names, "committed_at_ms"], select(*columns, now_ms()))


def _states(many: bool) -> Any:
    names = (*IDENTITY, "value", "version", "payload_version")
    rows = source("state_", names, many)
    columns = [cast(rows.c[name], JSON) if name == "value" else rows.c[name] for name in names]
    made = insert(state).from_select(list(names), select(*columns))
    fresh = made.excluded
    return made.on_conflict_do_update(
        index_elements=list(IDENTITY),
        set_={"value": fresh.value, "version": fresh.version, "payload_version": fresh.payload_version},
        where=state.c.version == fresh.version - literal_column("1"),
    ).returning(state.c.bucket)


def _marks(many: bool) -> Any:
    rows = source("mark_", IDENTITY, many)
    made = update(generations).values(created=true())
    return made.where(and_(*(generations.c[name] == rows.c[name] for name in IDENTITY))).returning(generations.c.bucket)


def clock() -> ExecutableReturnsRows:
    """The clock alone, to ask after the commit."""
    return select(now_ms().label("now_ms"))
