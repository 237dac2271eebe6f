"""Plain tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click

from akter.finding import duration
from akter.store.settle import PARKED_MS

_NEVER = PARKED_MS // 2


def rows(found: Sequence[Any], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print dataclasses: as JSON lines with all their fields, or as a table of some columns."""
    if as_json:
        for row in found:
            click.echo(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    if not found:
        click.echo(empty)
        return
    table = [[title.removesuffix("_ms").replace("_", " ") for title in columns]]
    table += [[_cell(name, getattr(row, name)) for name in columns] for row in found]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_ms"):
        return "never" if value > _NEVER else duration(value)
    if isinstance(value, tuple | list):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    text = str(value).replace("\n", " ")
    # An id is there to be copied.
    return text if len(text) <= 60 or name.endswith("_id") else text[:57] + "..."
