"""The shape of the source: small modules, under names that say what is in them. What may import what is in setup.cfg."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for folder in ("akter", "migrations", "examples") for path in (ROOT / folder).rglob("*.py"))
LONGEST = 350
EMPTY_NAMES = {"base", "common", "core", "helper", "helpers", "manager", "misc", "service", "util", "utils"}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in MODULES if path.is_relative_to(ROOT / "akter")], ids=name)
def test_a_module_is_short_enough_to_be_read_at_once(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= LONGEST


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_name_says_what_is_inside(path: Path) -> None:
    parts = [part.strip("_") for part in (*path.relative_to(ROOT).parent.parts, path.stem)]
    assert not EMPTY_NAMES & {word for part in parts for word in part.split("_")}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_file_does_not_repeat_its_folder(path: Path) -> None:
    assert path.parent.name not in path.stem.split("_")
