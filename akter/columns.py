"""What the tables of the schema are made of: their placeholder schema, the columns that name an actor, and JSON as text."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, MetaData, PrimaryKeyConstraint, Text
from sqlalchemy.types import UserDefinedType

SCHEMA = "akter"
"""The placeholder schema of every statement; each `Akter` compiles it to the schema of its own."""

IDENTITY = ("bucket", "routing_key", "tenant_id", "actor_type", "actor_id")
"""The columns that name one actor, in the order every per-actor key starts with."""

SOURCE = ("bucket", "routing_key", "tenant_id", "source_type", "source_id")
"""The columns that name one actor in the tables of those that follow it."""


class Json(UserDefinedType[str]):
    """JSON text in a `json` column, passed both ways untouched by the engine's own JSON hooks."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Name the column type."""
        return "JSON"

    def column_expression(self, colexpr: Any) -> Any:
        """Read the stored text, not a parsed value."""
        return colexpr.cast(Text)

    def bind_expression(self, bindvalue: Any) -> Any:
        """Send text, and let PostgreSQL check that it is JSON."""
        from sqlalchemy import cast, type_coerce

        return cast(type_coerce(bindvalue, Text), self)


metadata = MetaData(schema=SCHEMA)


def identity() -> list[Column[Any]]:
    """The columns of `IDENTITY`."""
    return [
        Column("bucket", Integer, nullable=False),
        Column("routing_key", BigInteger, nullable=False),
        Column("tenant_id", Text, nullable=False),
        Column("actor_type", Text, nullable=False),
        Column("actor_id", Text, nullable=False),
    ]


def source() -> list[Column[Any]]:
    """The columns of `SOURCE`."""
    return [
        Column("bucket", Integer, nullable=False),
        Column("routing_key", BigInteger, nullable=False),
        Column("tenant_id", Text, nullable=False),
        Column("source_type", Text, nullable=False),
        Column("source_id", Text, nullable=False),
    ]


def bucket(table: str) -> CheckConstraint:
    """What ties a table's bucket to its routing key."""
    return CheckConstraint("bucket = (routing_key >> 56)", name=f"{table}_bucket")


def key(table: str, *columns: str) -> PrimaryKeyConstraint:
    """A table's primary key."""
    return PrimaryKeyConstraint(*columns, name=f"{table}_pkey")
