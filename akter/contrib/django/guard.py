"""Inside a handler, Django's connection to the application's database is the wrong one: what it did would commit by itself."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from akter.app import reaching
from akter.capability import poison_running
from akter.context import inside, running
from akter.errors import InsideTurn


def install() -> None:
    """Guard every connection to PostgreSQL, those that are open and those that will be."""
    connection_created.connect(_protect, dispatch_uid="akter.contrib.django")
    for connection in connections.all(initialized_only=True):
        _protect(connection=connection)


def _protect(connection: Any, **_: Any) -> None:
    if connection.vendor == "postgresql" and guard not in connection.execute_wrappers:
        # In front: blocks of `execute_wrapper` take the last one away when they end.
        connection.execute_wrappers.insert(0, guard)


def guard(execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """An execute wrapper of Django's that raises `InsideTurn` in a handler, unless the query goes to another database."""
    turn = inside()
    if turn is None:
        return execute(sql, params, many, context)
    connection = context["connection"]
    token = running.set(None)
    try:
        own = reaching(connection)
    finally:
        running.reset(token)
    if not own:
        return execute(sql, params, many, context)
    problem = InsideTurn(
        f"Django's connection {connection.alias!r} cannot be used inside a turn, because what it does would commit by itself. Use "
        "self.session or self.connection there; or let a view open transaction.atomic(), do its queries and send the actor a message "
        "with app.within(connection)"
    )
    poison_running(problem)
    if (refuse := getattr(turn, "refuse", None)) is not None:
        refuse(problem)
    raise problem
