"""An actor's events: appended in the turn's commit, numbered without gaps under the actor's lock."""

from __future__ import annotations

from sqlalchemy import JSON, Integer, and_, cast, func, insert, select, update
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.clock import now_ms
from akter.store.rows import source
from akter.tables import IDENTITY, events, generations


def append() -> ExecutableReturnsRows:
    """Reserve numbers on the locked generation rows and insert the events in their order; returns how many there are."""
    heads = source("head_", (*IDENTITY, "count"), True)
    owner = and_(*(generations.c[name] == heads.c[name] for name in IDENTITY))
    reserved = (
        update(generations)
        .values(event_sequence=generations.c.event_sequence + heads.c["count"])
        .where(owner)
        .returning(*(generations.c[name] for name in IDENTITY), (generations.c.event_sequence - heads.c["count"]).label("base"))
        .cte("reserved")
    )
    names = ("event", "command_id", "value", "payload_version")
    rows = source("event_", (*IDENTITY, *names, "ord"), True)
    mine = and_(*(rows.c[name] == reserved.c[name] for name in IDENTITY))
    values = [cast(rows.c[name], JSON) if name == "value" else rows.c[name] for name in names]
    chosen = select(*(rows.c[name] for name in IDENTITY), reserved.c.base + rows.c.ord, *values, now_ms()).select_from(
        rows.join(reserved, mine)
    )
    made = insert(events).from_select([*IDENTITY, "sequence", *names, "emitted_at_ms"], chosen).returning(events.c.bucket)
    return select(func.count(type_=Integer())).select_from(made.cte("appended"))
