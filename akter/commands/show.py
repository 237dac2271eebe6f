"""Plain tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click


def rows(found: Sequence[Any], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """Print dataclasses: as JSON lines with all their fields, or as a table of some columns."""
    if as_json:
        for row in found:
            click.echo(json.dumps(dataclasses.asdict(row), ensure_ascii=False))
        return
    if not found:
        click.echo(empty)
        return
    table = [[title.replace("_ms", "").replace("_", " ") for title in columns]]
    table += [[_cell(name, getattr(row, name)) for name in columns] for row in found]
    widths = [max(len(line[at]) for line in table) for at in range(len(columns))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_ms"):
        return duration(value)
    if isinstance(value, tuple | list):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    text = str(value).replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."


def duration(milliseconds: int) -> str:
    """A duration a person reads at a glance: 250ms, 12.3s, 4m 10s, 3h 5m, 12d 4h."""
    sign, rest = ("-" if milliseconds < 0 else ""), abs(milliseconds)
    if rest < 1000:
        return f"{sign}{rest}ms"
    if rest < 60_000:
        return f"{sign}{rest / 1000:.1f}s"
    minutes = rest // 60_000
    if minutes < 60:
        return f"{sign}{minutes}m {rest // 1000 % 60}s"
    hours = minutes // 60
    return f"{sign}{hours}h {minutes % 60}m" if hours < 48 else f"{sign}{hours // 24}d {hours % 24}h"
