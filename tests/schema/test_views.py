"""The schema of the views comes and goes with the tables, whatever they are called."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, text

from akter import schema
from akter.errors import ConfigurationError
from akter.schema_state import VIEW_NAMES, views_schema

RELATIONS = "SELECT relname FROM pg_class WHERE relnamespace = CAST(CAST(:name AS text) AS regnamespace) AND relkind = 'v' ORDER BY 1"


def views(engine: Engine, name: str = "akter_views") -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text(RELATIONS), {"name": f'"{name}"'}))


def test_the_views_say_which_there_are(database: Any, engine: Engine) -> None:
    schema.upgrade(engine)
    assert views(engine) == list(VIEW_NAMES)
    assert [row[0] for row in database.rows("SELECT name FROM akter_views.views ORDER BY 1")] == [
        name for name in VIEW_NAMES if name != "views"
    ]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("akter", "akter_views"),
        ("Order-1", "Order-1_views"),
        ("a" * 57, "a" * 57 + "_views"),
        ("a" * 58, "a" * 40 + "_3f20be34b396338c_views"),
    ],
)
def test_their_schema_is_called_after_that_of_the_tables(engine: Engine, name: str, place: str) -> None:
    assert views_schema(name) == place
    schema.upgrade(engine, schema=name)
    assert views(engine, place) == list(VIEW_NAMES)
    assert schema.drop(engine, schema=name)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_namespace WHERE nspname = :place"), {"place": place}) == 0


def test_no_tables_may_be_where_views_are(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="'akter_views' cannot be akter's schema: a name that ends in _views"):
        schema.upgrade(engine, schema="akter_views")


def test_what_somebody_else_put_beside_the_views_is_not_dropped(database: Any, engine: Engine) -> None:
    schema.upgrade(engine)
    database.run("CREATE VIEW akter_views.mine AS SELECT 1 AS one")
    schema.downgrade(engine, "base")
    assert views(engine) == ["mine"]
    schema.upgrade(engine)
    assert schema.drop(engine)
    assert "mine" in views(engine)


def test_a_role_gets_the_views_it_is_given(database: Any, engine: Engine) -> None:
    schema.upgrade(engine)
    with pytest.raises(ConfigurationError, match="there is no view secrets: the views are actors, dead_letters,"):
        schema.grants_of_views("reader", ["secrets"])
    for made in (schema.grants, schema.grants_of_views):
        with pytest.raises(ConfigurationError, match="'' is no role of PostgreSQL: give the name of the one that is to have the rights"):
            made("")
    printed = database.akter("grants", "reader", "--view", "actors", "--view", "receipts")
    assert printed.out == (
        'GRANT USAGE ON SCHEMA "akter_views" TO "reader";\n'
        'GRANT SELECT ON "akter_views".actors TO "reader";\n'
        'GRANT SELECT ON "akter_views".receipts TO "reader";\n'
    )
    assert database.akter("grants", "reader", "--views").out == schema.grants_of_views("reader")
