"""What operators did, written in the transaction that did it; a row is never changed or pruned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert

from akter.store.clock import now_ms
from akter.tables import operator_audit


class Act(NamedTuple):
    """Who does what, and why."""

    operator: str
    action: str
    why: str


class Subject(NamedTuple):
    """Whom it concerns: an actor, or where `tenant_id` and `actor_id` are None, all of a type."""

    bucket: int
    tenant_id: str | None
    actor_type: str
    actor_id: str | None


def subject(row: Any) -> Subject:
    """The actor that a row, or an address, names in its columns."""
    names = row if isinstance(row, Mapping) else row._asdict()
    return Subject(*(names[name] for name in Subject._fields))


def keep(connection: Connection, of: Subject, act: Act, target: str, outcome: Mapping[str, Any]) -> None:
    """Write the row of one action on `target`; `outcome` is what it did, and what of it would be lost otherwise."""
    connection.execute(
        insert(operator_audit).values(
            **of._asdict(),
            at_ms=now_ms(),
            operator=act.operator,
            action=act.action,
            reason=act.why,
            target=target,
            outcome=json.dumps(outcome, ensure_ascii=False),
        )
    )
