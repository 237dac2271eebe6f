"""The map of `docs/architecture.md` leads to places that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_module_on_the_map_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert len(named) > 40
    assert sorted(name for name in named if not (ROOT / "akter" / name).is_file() and not (ROOT / name).is_file()) == []


def test_every_folder_of_the_library_is_on_the_map() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    folders = {path.parent.name for path in (ROOT / "akter").glob("*/__init__.py")}
    assert sorted(name for name in folders if f"  {name}/" not in text) == []
