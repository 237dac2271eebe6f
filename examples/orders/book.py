"""The file of orders, read whole and checked before anything is done: a row for each line of an order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..sheet import LONGEST_ID, BadFile, Row, is_whole, read_rows, refuse, wrong_shape
from .shop import Line

__all__ = ["BadFile", "Placed", "read"]

COLUMNS = ("order", "customer", "item", "quantity", "price")
MOST_LINES, MOST_PIECES, MOST_PRICE = 100, 10_000, 10**9


@dataclass(frozen=True, slots=True)
class Placed:
    """One order of the file."""

    id: str
    customer: str
    lines: list[Line]

    @property
    def total(self) -> int:
        """What it costs, in cents."""
        return sum(line.quantity * line.price for line in self.lines)


def read(path: Path) -> list[Placed]:
    """The file's orders, in its order; raises `BadFile`."""
    orders: dict[str, Placed] = {}
    problems: list[tuple[int, str]] = []
    for row in read_rows(path, COLUMNS):
        found = list(_check(row, orders))
        problems += [(row.line, what) for what in found]
        if not found:
            values = row.values
            order = orders.setdefault(values["order"], Placed(values["order"], values["customer"], []))
            order.lines.append(Line(item=values["item"], quantity=int(values["quantity"]), price=int(values["price"])))
    refuse(path, problems if orders or problems else [(0, "there is no order in it")])
    return list(orders.values())


def _check(row: Row, orders: dict[str, Placed]) -> Iterator[str]:
    if shape := wrong_shape(row):
        yield shape
        return
    values = row.values
    for column in ("order", "customer", "item"):
        if not values[column] or len(values[column]) > LONGEST_ID:
            yield f"the {column} is missing, or longer than {LONGEST_ID} characters"
    for column, most in (("quantity", MOST_PIECES), ("price", MOST_PRICE)):
        if not is_whole(values[column], 1, most):
            yield f"the {column} is {values[column]!r}: it is a whole number from 1 to {most}{' of cents' if column == 'price' else ''}"
    if (before := orders.get(values["order"])) is not None:
        if before.customer != values["customer"]:
            yield f"the order {before.id!r} was {before.customer!r}'s before: an order has one customer"
        if len(before.lines) >= MOST_LINES:
            yield f"the order {before.id!r} has more than {MOST_LINES} lines"
