"""The file of accounts and transfers, read whole and checked before anything is done; `make_transfers.py` says what is in it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

COLUMNS = ("kind", "id", "debit", "credit", "amount", "reference")
MOST = 10**15
"""Cents in one row: what a stored number holds is far more, and stays so when many are added."""
LONGEST_ID = 200
SHOWN = 10
"""How many problems are worth telling at once."""


class BadFile(Exception):
    """The file cannot be used; the message names the lines and what is wrong with them."""


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
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        lines = [(reader.line_num, values) for values in reader if values]
    except csv.Error as error:
        raise BadFile(f"{path.name}, line {reader.line_num}: {error}") from error
    if not lines:
        raise BadFile(f"{path.name} is empty: its first line names the columns {','.join(COLUMNS)}")
    header = [name.strip() for name in lines[0][1]]
    if missing := [name for name in COLUMNS if name not in header]:
        raise BadFile(
            f"{path.name}, line {lines[0][0]}: the column {missing[0]} is missing; "
            f"it takes {','.join(COLUMNS)}, and has {','.join(header)[:80]}"
        )
    sheet = _Sheet()
    for line, values in lines[1:]:
        sheet.add(line, {name: value.strip() for name, value in zip(header, values, strict=False)}, len(values) - len(header))
    problems = sorted([*sheet.problems, *sheet.unknown()])
    if not sheet.openings:
        problems.append((0, "no account is opened"))
    if problems:
        told = [f"{path.name}, line {line}: {what}" if line else f"{path.name}: {what}" for line, what in problems[:SHOWN]]
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        raise BadFile("\n".join(told + more))
    return Book(sheet.openings, sheet.transfers)


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadFile(f"{path.name}, line {line}: this is not UTF-8; save the file as UTF-8 and try again") from error


class _Sheet:
    """The rows read so far, and what is wrong with them."""

    def __init__(self) -> None:
        self.openings: list[Opening] = []
        self.transfers: list[Transfer] = []
        self.problems: list[tuple[int, str]] = []
        self._lines: dict[tuple[str, str], int] = {}
        self._named: list[tuple[int, str]] = []

    def add(self, line: int, row: dict[str, str], surplus: int) -> None:
        """Take a row, or note why not."""
        found = list(self._check(line, row, surplus))
        self.problems += [(line, what) for what in found]
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

    def _check(self, line: int, row: dict[str, str], surplus: int) -> Iterator[str]:
        if surplus:
            yield f"there are {abs(surplus)} values {'more' if surplus > 0 else 'fewer'} than columns"
            return
        kind, id = row["kind"], row["id"]
        if kind not in ("open", "transfer"):
            yield f"the kind is {kind!r}: it is open or transfer"
            return
        if any("\0" in value for value in row.values()):
            yield "there is a NUL character in it"
        if not id or len(id) > LONGEST_ID:
            yield f"the id is missing, or longer than {LONGEST_ID} characters"
        elif (before := self._lines.setdefault((kind, id), line)) != line:
            yield f"the {'account' if kind == 'open' else 'transfer'} {id!r} was in line {before} already"
        if kind == "transfer":
            self._named += [(line, row["debit"]), (line, row["credit"])]
        least = 0 if kind == "open" else 1
        amount = row["amount"]
        if not amount.isascii() or not amount.removeprefix("-").isdigit() or not least <= int(amount[:30]) <= MOST:
            yield f"the amount is {amount!r}: it is a whole number of cents, from {least} to {MOST}"
