"""Arrays of parameters arrive as they were given, whatever is in them; a turn's thousands of rows are written as such arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from akter.store.parameter import _array, text

TEXTS = ["", "plain", 'a "quote"', "back\\slash", '\\"', "{a,b}", "NULL", "null", " space ", "comma,", "new\nline", "ünï", "😀", "'", '","']
COLUMNS: list[tuple[str, list[Any]]] = [
    ("text", TEXTS),
    ("text", [None, *TEXTS, None]),
    ("text", [None, None]),
    ("text", []),
    ("text", [""]),
    ("bigint", [0, -1, 2**63 - 1, -(2**63)]),
    ("bigint", [1, None]),
    ("boolean", [True, False, None]),
]


@pytest.fixture
def connection(akter_server: Callable[[str], str]) -> Any:
    url = make_url(akter_server("postgres")).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened


@pytest.mark.parametrize(("kind", "values"), COLUMNS)
def test_an_array_arrives_as_it_was_given(connection: psycopg.Connection[Any], kind: str, values: list[Any]) -> None:
    literal = text(values)
    assert literal is not None
    assert connection.execute(f"SELECT %s::{kind}[]".encode(), [literal.decode()]).fetchone() == (values,)


def test_bytes_are_text_that_is_encoded_already() -> None:
    assert _array([text.encode() for text in TEXTS]) == _array(TEXTS)


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("values", [["a\0b"], ["a", "b\0"], ["\0", None], [b"a\0", b"b"], [Text("\0")]])
def test_a_nul_is_refused(values: list[Any]) -> None:
    with pytest.raises(ValueError, match="NUL"):
        text(values)


def test_subclasses_are_the_text_they_are() -> None:
    assert text([Text('"'), "b"]) == text(['"', "b"])
