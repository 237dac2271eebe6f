"""The admission of a message's turn, sent together with the message's claim: the server is at it while the claim's answer is being read.

When it is sent, nobody knows whether the message will have been claimed, nor for which actor it is; only how that one is routed. The claim
leaves the rest on its connection, for the transaction behind it. Where it took nothing, or a pooler put the two on different connections,
nothing is locked and nothing is read.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, FromClause, Integer, Text, and_, bindparam, false, func, literal_column, select, true
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store import turn
from akter.tables import IDENTITY


def left(claimed: Any) -> ColumnElement[bool]:
    """Evaluated for the one row of a claim, leaves it on the connection, under the parameter `ticket`: what an earlier claim left there
    is not taken for this one's."""
    said = ((_id, _ticket() + claimed.c.intent_id), (_tenant, claimed.c.tenant_id), (_target, claimed.c.target_id))
    return and_(*(func.set_config(name, value, false(), type_=Text()).is_not(None) for name, value in said))


def lock() -> Insert:
    """Lock the actor as `akter.store.turn.lock` does. Parameters: its `bucket`, `routing_key` and `actor_type`, the `command_id`, and the
    claim's `ticket`."""
    rows = _message()
    return turn.locked(select(*(rows.c[name] for name in IDENTITY)))


def read() -> ExecutableReturnsRows:
    """What `akter.store.turn.read` reads; parameters as of `lock`."""
    return turn.known(_message())


_id, _tenant, _target = (literal_column(f"'akter.{name}'", Text()) for name in ("claimed_id", "claimed_tenant", "claimed_target"))


def _message() -> FromClause:
    id = bindparam("command_id", type_=Text())
    return (
        select(
            bindparam("bucket", type_=Integer()).label("bucket"),
            bindparam("routing_key", type_=BigInteger()).label("routing_key"),
            _found(_tenant).label("tenant_id"),
            bindparam("actor_type", type_=Text()).label("actor_type"),
            _found(_target).label("actor_id"),
            id.label("command_id"),
            literal_column("0", Integer()).label("ord"),
        )
        .where(_found(_id) == _ticket() + id)
        .subquery("rows")
    )


def _ticket() -> ColumnElement[str]:
    return bindparam("ticket", type_=Text())


def _found(name: ColumnElement[str]) -> ColumnElement[str]:
    return func.current_setting(name, true(), type_=Text())
