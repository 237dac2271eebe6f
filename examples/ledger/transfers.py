"""The file of accounts and transfers, read whole and checked before anything is done; `make_transfers.py` says what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ..sheet import LONGEST_ID, MOST, BadFile, Row, is_whole, read_rows, refuse, wrong_shape

__all__ = ["BadFile", "Book", "Opening", "Transfer", "read"]

COLUMNS = ("kind", "id", "debit", "credit", "amount", "reference")


@dataclass(frozen=True, slots=True)
class Opening:
    """An account that is opened."""

    id: str
    holder: str
    balance: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """Money that is to go from one account to another."""

    id: str
    debit: str
    credit: str
    amount: int


@dataclass(frozen=True, slots=True)
class Book:
    """The whole file."""

    openings: list[Opening]
    transfers: list[Transfer]

    @property
    def money(self) -> int:
        """All the money there is."""
        return sum(opening.balance for opening in self.openings)

    @property
    def digest(self) -> str:
        """What tells this file from others."""
        return sha256(repr(self).encode()).hexdigest()


def read(path: Path) -> Book:
    """The file's accounts and transfers; raises `BadFile`."""
    sheet = _Sheet()
    for row in read_rows(path, COLUMNS):
        sheet.add(row)
    problems = [*sheet.problems, *sheet.unknown()]
    refuse(path, problems if sheet.openings else [*problems, (0, "no account is opened")])
    return Book(sheet.openings, sheet.transfers)


class _Sheet:
    """The rows read so far, and what is wrong with them."""

    def __init__(self) -> None:
        self.openings: list[Opening] = []
        self.transfers: list[Transfer] = []
        self.problems: list[tuple[int, str]] = []
        self._lines: dict[tuple[str, str], int] = {}
        self._named: list[tuple[int, str]] = []

    def add(self, given: Row) -> None:
        """Take a row, or note why not."""
        row, found = given.values, list(self._check(given))
        self.problems += [(given.line, what) for what in found]
        if found:
            return
        amount = int(row["amount"])
        if row["kind"] == "open":
            self.openings.append(Opening(row["id"], row["reference"] or row["id"], amount))
        else:
            self.transfers.append(Transfer(row["id"], row["debit"], row["credit"], amount))

    def unknown(self) -> Iterator[tuple[int, str]]:
        """The accounts that transfers name and no row opens."""
        for line, name in self._named:
            if ("open", name) not in self._lines:
                yield line, f"the account {name!r} is unknown: no row opens it"

    def _check(self, given: Row) -> Iterator[str]:
        line, row = given.line, given.values
        if shape := wrong_shape(given):
            yield shape
            return
        kind, id = row["kind"], row["id"]
        if kind not in ("open", "transfer"):
            yield f"the kind is {kind!r}: it is open or transfer"
            return
        if not id or len(id) > LONGEST_ID:
            yield f"the id is missing, or longer than {LONGEST_ID} characters"
        elif (before := self._lines.setdefault((kind, id), line)) != line:
            yield f"the {'account' if kind == 'open' else 'transfer'} {id!r} was in line {before} already"
        if kind == "transfer":
            self._named += [(line, row["debit"]), (line, row["credit"])]
        least = 0 if kind == "open" else 1
        amount = row["amount"]
        if not is_whole(amount, least, MOST):
            yield f"the amount is {amount!r}: it is a whole number of cents, from {least} to {MOST}"
