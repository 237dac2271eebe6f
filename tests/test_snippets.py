"""The Python in the documents is Python that runs: each page's blocks, in order, as somebody would type them, on a real database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from sqlalchemy import Engine

from akter import Actor, Akter

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [page for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))] if BLOCK.search(page.read_text(encoding="utf-8"))]
OTHERS = re.compile(r"django|settings\.|shared_task|@transaction\.atomic")
"""What runs only in a web application or a task queue: their own examples are tested in whole."""

AROUND = """
import random
import threading
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, Text, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from akter import *


class Shipment(Actor):
    @command
    def open(self, customer: str = "", skus: list[str] = []) -> None: ...


class Customer(Actor):
    @command
    def ordered(self, order: str = "") -> None: ...


class Order(Actor):
    @command
    def place(self, customer: str, lines: list[str] = []) -> None: ...


class Base(DeclarativeBase): ...


class Placed(Base):
    __tablename__ = "placed"
    id: Mapped[str] = mapped_column(primary_key=True)


def call_somebody(attempt: Attempt, number: str) -> None: ...


def international(stored: dict[str, Any]) -> dict[str, Any]:
    return stored


metadata = MetaData()
orders = Table("orders", metadata, Column("id", Text), Column("customer", Text))
carts = Table("carts", metadata, Column("customer", Text))
"""


@pytest.fixture
def around(akter_engine: Engine) -> Iterator[dict[str, Any]]:
    """A module with what a page takes for granted."""
    module = types.ModuleType("akter_page")
    sys.modules[module.__name__] = module
    names: dict[str, Any] = vars(module)
    exec(AROUND, names)
    names["metadata"].create_all(akter_engine)
    names["Base"].metadata.create_all(akter_engine)
    names |= {
        "engine": akter_engine,
        "gateway": MagicMock(**{"charge.return_value": "c-1"}),
        "requests": MagicMock(),
        "request": types.SimpleNamespace(headers={"Idempotency-Key": "k-1"}),
        "lines": [],
        "order": names["Placed"](id="o-1"),
    }
    yield names
    del sys.modules[module.__name__]


def refresh(names: dict[str, Any], engine: Engine, schema: str) -> None:
    """Let the page's app know all the actors there are by now, and its own things be new."""
    kinds = {
        kind.__akter__.name: kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, Actor) and kind is not Actor
    }
    names["app"] = Akter(engine, actors=kinds.values(), schema=schema)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_python_and_imports_what_there_is(page: Path) -> None:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        compile(block, str(page), "exec")
        for line in re.findall(r"^from akter[\w.]* import .*$", block, re.MULTILINE):
            if "contrib.django" not in line:
                exec(line, {})


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "testing.md"], ids=lambda page: page.name)
def test_every_block_runs(page: Path, around: dict[str, Any], akter_engine: Engine, akter_schema: str) -> None:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if OTHERS.search(block):
            continue
        refresh(around, akter_engine, akter_schema)
        exec(compile(block.replace('Akter("embedded:./data"', "Akter(engine"), str(page), "exec", dont_inherit=True), around)


def test_the_page_on_testing_is_a_test_file_that_passes(akter_database: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "testing.md").read_text(encoding="utf-8"))
    (tmp_path / "test_page.py").write_text("\n".join(blocks), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AKTER_", "PYTEST_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_page.py"],
        cwd=tmp_path,
        env={**environment, "AKTER_TEST_DATABASE_URL": akter_database},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert "7 passed" in ran.stdout, ran.stdout + ran.stderr
