"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(?:tests/)?([a-z_/0-9]+\.py)::(test_[a-z_0-9]+)`")
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md"]
MADE_BY_RUNNING = {"benchmarks/results/"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    missing = [
        f"{file}::{name}"
        for file, name in NAMED.findall(page.read_text())
        if not (ROOT / "tests" / file).is_file() or f"def {name}(" not in (ROOT / "tests" / file).read_text()
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:docs|examples|benchmarks|migrations|tests|akter)/[A-Za-z_/0-9.]+)`", page.read_text())
    assert [name for name in named if name not in MADE_BY_RUNNING and not (ROOT / name.rstrip("/")).exists()] == []


def test_the_guarantees_name_tests_for_every_promise() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(rows) >= 15
    assert [row for row in rows if not NAMED.search(row)] == []
