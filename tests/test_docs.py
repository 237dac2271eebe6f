"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(?:tests/)?([a-z_/0-9]+\.py)::(test_[a-z_0-9]+)`")
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
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


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be reached."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    wrong: list[str] = []
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        there = page.parent / target if target else page
        if not there.exists() or (heading and heading not in anchors(there)):
            wrong.append(f"{target}#{heading}")
    assert wrong == []


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in sorted(ROOT.glob("docs/*.md")) if f"](docs/{page.name})" not in readme] == []


def test_the_guarantees_name_tests_for_every_promise() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(rows) >= 15
    assert [row for row in rows if not NAMED.search(row)] == []


CASES = {
    "A": (1, 3, 6, 7, 8, 10, 11, 12, 13, 16, 18),
    "B": (1, 2, 4, 6, 7, 9, 12, 14, 15, 17),
    "C": (1, 2, 5, 6, 7, 8, 10, 11, 13, 15, 16),
    "D": (1, 2, 3, 6, 7, 8, 9, 11, 12, 13, 14, 16, 18),
    "E": (1, 4, 5, 11, 17),
    "F": (1, 3, 4, 6, 7, 8, 10),
    "H": (1, 2, 4, 5),
    "I": (1, 2, 3, 4, 5, 7, 9, 11),
    "J": (1, 3, 4, 6),
    "K": (1, 2, 4, 6, 8, 10, 11),
    "L": (1, 3),
}


def test_each_field_case_names_a_test_or_says_why_there_is_none() -> None:
    text = (ROOT / "docs" / "field-cases.md").read_text()
    rows = dict(re.findall(r"^\| ([A-Z]\d\d) \| (.*) \|$", text, re.MULTILINE))
    assert list(rows) == [f"{group}{number:02}" for group, numbers in CASES.items() for number in numbers]
    said = ("does not apply", "one small update per runner", "what is stored is JSON")
    assert [case for case, row in rows.items() if not NAMED.search(row) and not any(word in row for word in said)] == []
