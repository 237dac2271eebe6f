"""How the columns of an answer become values.

The driver's own loaders read them, in C where the driver is: a quarter of what the same costs in Python, and a claim of jobs answers with
thousands of columns. Which loader reads a column, the statement says; what the application teaches the driver changes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from psycopg import Connection, pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.types.bool import BoolLoader
from psycopg.types.numeric import IntLoader
from psycopg.types.string import TextLoader
from sqlalchemy import ARRAY, BigInteger, Boolean, Integer, Text

Row: TypeAlias = "tuple[Any, ...]"

_BOOL, _BYTES, _INT, _TEXT = 16, 17, 20, 25
"""Types, as PostgreSQL numbers them."""


class _Raw(Loader):
    """Whatever it is, as it came."""

    def load(self, data: Buffer) -> bytes:
        return bytes(data)


class _Reading:
    """What the driver needs to know to read an answer: nothing of a connection."""

    connection: Connection[Any] | None = None
    adapters = AdaptersMap()


for _oid, _loader in ((_BOOL, BoolLoader), (_BYTES, _Raw), (_INT, IntLoader), (_TEXT, TextLoader)):
    _Reading.adapters.register_loader(_oid, _loader)


def kind_of(kind: Any) -> int:
    """What a column of this type of Core's is read as; JSON comes as bytes, for the codec."""
    if isinstance(kind, Boolean):
        return _BOOL
    if isinstance(kind, Integer | BigInteger):
        return _INT
    if isinstance(kind, Text):
        return _TEXT
    if isinstance(kind, ARRAY):
        raise TypeError("a statement of a turn returns no arrays")
    return _BYTES


def read(result: pq.abc.PGresult, kinds: Sequence[int]) -> list[Row]:
    """The rows, each a tuple of values."""
    reader = Transformer(_Reading())
    reader.set_pgresult(result, set_loaders=False)
    reader.set_loader_types(kinds, pq.Format.TEXT)
    return reader.load_rows(0, result.ntuples, tuple)
