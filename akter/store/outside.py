"""What is executed on a connection of the application's own: where it leads, and messages that commit or vanish with its work.

Every statement here can be sent by whatever driver or framework holds the connection, and has one parameter, a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Integer, Text, and_, bindparam, column, false, func, literal_column, select, table
from sqlalchemy.sql.selectable import ExecutableReturnsRows

from akter.store.outbox import WRITTEN, inserted
from akter.store.rows import document
from akter.tables import deployment, outbox

Statement: TypeAlias = Callable[[], ExecutableReturnsRows]

MOST_ROWS, MOST_BYTES = 5_000, 8 * 1024 * 1024
"""What one statement carries at most, unless a single message is larger."""

_NAMESPACES = table("pg_namespace", column("oid"), column("nspname"), schema="pg_catalog")
_RELATIONS = table("pg_class", column("oid"), column("relname"), column("relnamespace"), schema="pg_catalog")


class Document(str):
    """Rows as JSON. Whoever prints parameters, in a log or an error, prints how much it is and not what it says."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<messages, {len(self)} bytes>"


@cache
def usable() -> ExecutableReturnsRows:
    """How many of the two tables exist in the schema named `text`, and whether this role may use them; it never fails for either."""
    rights = [func.pg_catalog.has_table_privilege(_RELATIONS.c.oid, literal_column(right)) for right in ("'SELECT'", "'INSERT'")]
    may = and_(func.pg_catalog.has_schema_privilege(_NAMESPACES.c.oid, literal_column("'USAGE'")), *rights)
    wanted = _RELATIONS.c.relname.in_([literal_column(f"'{found.name}'") for found in (deployment, outbox)])
    columns: list[ColumnElement[Any]] = [func.count(type_=Integer()), func.coalesce(func.bool_and(may), false())]
    return (
        select(*columns)
        .select_from(_RELATIONS.join(_NAMESPACES, _RELATIONS.c.relnamespace == _NAMESPACES.c.oid))
        .where(_NAMESPACES.c.nspname == bindparam("text", type_=Text()), wanted)
    )


@cache
def identity() -> ExecutableReturnsRows:
    """Whose deployment it is; asked only where `usable` says that it can be."""
    return select(deployment.c.deployment_id)


@cache
def stage() -> ExecutableReturnsRows:
    """Write the messages of the document `text`; a delay counts from this statement. Returns how many were not there before."""
    return inserted(document("text", WRITTEN))


@cache
def present() -> ExecutableReturnsRows:
    """The messages of the document `text` that are in the outbox: id, command, arguments and their version."""
    rows = document("text", WRITTEN)
    same = and_(*(outbox.c[name] == rows.c[name] for name in ("bucket", "routing_key", "intent_id")))
    columns: list[ColumnElement[Any]] = [outbox.c.intent_id, outbox.c.command, outbox.c.payload, outbox.c.payload_version]
    return select(*columns).select_from(outbox.join(rows, same))


def documents(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], Document]]:
    """The rows in as many documents as they need, each with those it holds. They are ASCII, whatever the connection's encoding is."""
    chosen: list[dict[str, Any]] = []
    texts: list[str] = []
    size = 0
    for row in rows:
        text = json.dumps(row, separators=(",", ":"))
        if texts and (len(texts) == MOST_ROWS or size + len(text) > MOST_BYTES):
            yield chosen, Document(f"[{','.join(texts)}]")
            chosen, texts, size = [], [], 0
        chosen.append(row)
        texts.append(text)
        size += len(text)
    if texts:
        yield chosen, Document(f"[{','.join(texts)}]")
