"""The actors of a type, by their ids, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Integer, Text, and_, bindparam, collate, or_, select
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.tables import IDENTITY, generations, state


@dataclass(frozen=True, slots=True)
class Listed:
    """An actor that was created, or whose state was written. `lives`: 0, and 1 more for each reset or deletion."""

    actor_id: str
    lives: int
    created: bool
    events: int
    written: int | None


def page() -> ExecutableReturnsRows:
    """Actors of one `actor_type` and `tenant_id` behind the id `after`, `limit` at most, in the order of their ids' code points.

    In the collation of the index `actor_generations_type`, which is not the database's, so that no statement of a turn uses it.
    """
    actor_type, tenant, actor = (collate(generations.c[name], "C") for name in ("actor_type", "tenant_id", "actor_id"))
    mine = and_(*(state.c[name] == generations.c[name] for name in IDENTITY))
    columns = (generations.c.actor_id, generations.c.generation, generations.c.created, generations.c.event_sequence, state.c.version)
    return (
        select(*columns)
        .select_from(generations.outerjoin(state, mine))
        .where(
            actor_type == bindparam("actor_type", type_=Text()),
            tenant == bindparam("tenant_id", type_=Text()),
            actor > bindparam("after", type_=Text()),
            or_(generations.c.created, state.c.version.is_not(None)),
        )
        .order_by(actor)
        .limit(bindparam("limit", type_=Integer()))
    )
