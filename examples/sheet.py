"""A CSV file with named columns, read whole before anything is done with it; what is wrong with it is told with its line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST = 10**15
"""Cents in one row: what a stored number holds is far more, and stays so when many are added."""
LONGEST_ID = 200
SHOWN = 10
"""How many problems are worth telling at once."""


class BadFile(Exception):
    """The file cannot be used; the message names the lines and what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: where it ends in the file, its values by column, and how many values too many it has."""

    line: int
    values: dict[str, str]
    surplus: int


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a file that has at least these columns; raises `BadFile`."""
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        lines = [(reader.line_num, values) for values in reader if values]
    except csv.Error as error:
        raise BadFile(f"{path.name}, line {reader.line_num}: {error}") from error
    if not lines:
        raise BadFile(f"{path.name} is empty: its first line names the columns {','.join(columns)}")
    header = [name.strip() for name in lines[0][1]]
    if missing := [name for name in columns if name not in header]:
        raise BadFile(
            f"{path.name}, line {lines[0][0]}: the column {missing[0]} is missing; "
            f"it takes {','.join(columns)}, and has {','.join(header)[:80]}"
        )
    return [
        Row(line, {name: value.strip() for name, value in zip(header, values, strict=False)}, len(values) - len(header))
        for line, values in lines[1:]
    ]


def refuse(path: Path, problems: Iterable[tuple[int, str]]) -> None:
    """Raise `BadFile` if there are problems, each with its line; those with line 0 concern the whole file."""
    told = [f"{path.name}, line {line}: {what}" if line else f"{path.name}: {what}" for line, what in sorted(problems)]
    if told:
        more = [f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
        raise BadFile("\n".join(told[:SHOWN] + more))


def wrong_shape(row: Row) -> str | None:
    """What is wrong with a row whatever is in it."""
    if row.surplus:
        return f"there are {abs(row.surplus)} values {'more' if row.surplus > 0 else 'fewer'} than columns"
    if any("\0" in value for value in row.values.values()):
        return "there is a NUL character in it"
    return None


def is_whole(text: str, least: int, most: int) -> bool:
    """Whether a text is a whole number in this range."""
    return text.isascii() and text.removeprefix("-").isdigit() and least <= int(text[:30]) <= most


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadFile(f"{path.name}, line {line}: this is not UTF-8; save the file as UTF-8 and try again") from error
