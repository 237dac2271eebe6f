"""Which versions of payloads are stored: a process whose code is older than they are would leave rows that nobody can read.

Only payloads of a later version than 0 are in the indexes that are asked here, so an application without migrations pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import ARRAY, Column, ColumnElement, Connection, FromClause, Text, bindparam, func, literal_column, select
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.errors import PayloadTooNew
from akter.tables import events, outbox, state

Kind: TypeAlias = Literal["state", "event", "intent", "job"]

_SHOWN = 5


class Readable(NamedTuple):
    """What this code can read: a kind of payload of an actor type, its stored name, and the newest version."""

    kind: Kind
    actor_type: str
    name: str
    version: int


class Stranded(NamedTuple):
    """Rows that newer code wrote: the newest of their versions, and the newest one this code can read."""

    kind: Kind
    actor_type: str
    name: str
    stored: int
    readable: int

    def __str__(self) -> str:
        what = {
            "state": f"states of {self.actor_type}",
            "event": f"events {self.name} of {self.actor_type}",
            "intent": f"messages to {self.actor_type}.{self.name}",
            "job": f"jobs {self.actor_type}.{self.name}",
        }[self.kind]
        return f"{what} are stored as version {self.stored}, and this code reads up to {self.readable}"


def verify(connection: Connection, readable: Iterable[Readable]) -> None:
    """Refuse a database with payloads that are newer than this code; raises `PayloadTooNew` naming them, and writes nothing."""
    found = stranded(connection, readable)
    if not found:
        return
    said = "; ".join(str(one) for one in found[:_SHOWN])
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise PayloadTooNew(
        f"newer code wrote what this code cannot read: {said}{more}. Deploy that code again; a migration chain is never shortened"
    )


def stranded(connection: Connection, readable: Iterable[Readable]) -> list[Stranded]:
    """What is stored in a newer version than this code can read."""
    wanted = list(readable)
    found: list[Stranded] = []
    for kind, statement in _STATEMENTS.items():
        asked = [one for one in wanted if one.kind == kind]
        if asked:
            found += _compare(asked, connection.execute(statement, _arrays(asked)).all())
    return found


def _compare(asked: Sequence[Readable], rows: Sequence[Any]) -> list[Stranded]:
    newest = {(actor_type, name): stored for actor_type, name, stored in rows if stored is not None}
    return [
        Stranded(one.kind, one.actor_type, one.name, stored, one.version)
        for one in asked
        if (stored := newest.get((one.actor_type, one.name), 0)) > one.version
    ]


def _arrays(asked: Sequence[Readable]) -> dict[str, list[str]]:
    return {"types": [one.actor_type for one in asked], "names": [one.name for one in asked]}


def _given() -> FromClause:
    arrays = [bindparam(name, type_=ARRAY(Text())) for name in ("types", "names")]
    return func.unnest(*arrays).table_valued(Column("type", Text()), Column("name", Text()), name="given").render_derived()


def _newest(table: Any, *mine: tuple[ColumnElement[Any], str | ColumnElement[Any]]) -> ExecutableReturnsRows:
    """The newest stored version of each payload that is asked for; a literal bound is what lets the partial index answer."""
    given = _given()
    same = [column == (given.c[other] if isinstance(other, str) else other) for column, other in mine]
    newest = select(func.max(table.c.payload_version)).where(*same, table.c.payload_version > literal_column("0"))
    return select(given.c.type, given.c.name, newest.correlate(given).scalar_subquery())


def _outbox(kind: str) -> ExecutableReturnsRows:
    name: ColumnElement[str] = literal_column(f"'{kind}'")
    return _newest(outbox, (outbox.c.target_type, "type"), (outbox.c.kind, name), (outbox.c.command, "name"))


_STATEMENTS: dict[Kind, ExecutableReturnsRows] = {
    "state": _newest(state, (state.c.actor_type, "type")),
    "event": _newest(events, (events.c.actor_type, "type"), (events.c.event, "name")),
    "intent": _outbox("intent"),
    "job": _outbox("job"),
}
