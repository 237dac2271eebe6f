"""The log speaks in names, and the documentation has all of them."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from akter.lines import Lines

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "logging.md").read_text(encoding="utf-8")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def calls() -> Iterator[ast.Call]:
    for path in (ROOT / "akter").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                if isinstance(node.func.value, ast.Name) and node.func.value.id == "logger":
                    yield node


def names(call: ast.Call) -> set[str]:
    (message,) = call.args
    return {node.value for node in ast.walk(message) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_a_message_is_a_name_and_everything_else_a_field() -> None:
    for call in calls():
        assert names(call), ast.unparse(call)
        assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in names(call)), ast.unparse(call)
        assert {keyword.arg for keyword in call.keywords} <= {"extra", "exc_info"}, ast.unparse(call)
        for keyword in call.keywords:
            if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
                keys = [key.value for key in keyword.value.keys if isinstance(key, ast.Constant)]
                assert all(str(key).startswith("akter_") for key in keys), ast.unparse(call)


def test_every_name_is_documented_and_no_other() -> None:
    said = set().union(*(names(call) for call in calls()))
    table = TEXT.split("## Records")[1].split("## Spans")[0]
    assert set(re.findall(r"^\| `([a-z]+\.[a-z_]+)`", table, re.MULTILINE)) == said


def test_every_metric_is_documented_and_no_other() -> None:
    source = (ROOT / "akter" / "metrics.py").read_text(encoding="utf-8")
    made = set(re.findall(r'"(akter\.[a-z._]+)"', source))
    table = TEXT.split("| metric |")[1].split("No metric carries")[0]
    assert set(re.findall(r"`(akter\.[a-z._]+)`", table)) == made


def test_a_line_shows_the_fields_without_their_prefix() -> None:
    record = logging.LogRecord("akter.relay", logging.WARNING, "", 0, "relay.retry", None, None)
    record.__dict__.update(akter_actor="Parcel/p", akter_reason="it\nis torn", akter_left=["a", "b"], other="hidden")
    said = Lines().format(record)
    assert said.endswith("WARNING akter.relay relay.retry actor=Parcel/p reason='it\\\\nis torn' left=a,b")
