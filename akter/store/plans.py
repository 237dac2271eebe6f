"""How PostgreSQL plans akter's larger statements: once per connection, by index, whatever the tables looked like then.

These statements are of one shape, and planning them costs as much as running them. A generic plan that was made while a table was
empty lives on, so it must not be one that reads the whole table.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Text, func, literal_column, select, true
from sqlalchemy.sql.selectable import ExecutableReturnsRows

_GENERIC = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}


def generic() -> ExecutableReturnsRows:
    """Plan the statements of this transaction once for all."""
    return _set(_GENERIC)


def generic_and_soon(durable: bool) -> ExecutableReturnsRows:
    """The same for claims, off the front of the due index, and without waiting for the disk unless what is claimed has to be `durable`.

    A claim of messages that a crash of the server takes back is made again, and receipts absorb it.
    """
    # A bitmap would read and sort all that is due in a bucket, for the few rows that are taken of it.
    return _set({**_GENERIC, "enable_bitmapscan": "off", **({} if durable else {"synchronous_commit": "off"})})


def by_index_order() -> ExecutableReturnsRows:
    """Read a few rows off the front of an index, however many stand behind them; and do not wait for the disk, as pruning is repeated."""
    others = ("seqscan", "bitmapscan", "sort", "hashjoin", "mergejoin")
    return _set({**{f"enable_{way}": "off" for way in others}, "jit": "off", "synchronous_commit": "off"})


def _set(values: dict[str, str]) -> ExecutableReturnsRows:
    return select(*(_config(name, value).label(name) for name, value in values.items()))


def soon() -> ColumnElement[str]:
    """Evaluated in a statement, lets this transaction's commit not wait for the disk."""
    return _config("synchronous_commit", "off")


def _config(name: str, value: str) -> ColumnElement[str]:
    return func.set_config(literal_column(f"'{name}'"), literal_column(f"'{value}'"), true(), type_=Text())
