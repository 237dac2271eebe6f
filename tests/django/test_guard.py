"""Django's ORM inside a handler would commit by itself, so it is refused there, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

HOW = ("read", "write", "atomic", "iterator", "raw")

REFUSED = """
from akter.errors import AkterError, InsideTurn
def refused(how, alias="default"):
    try:
        app.actor(Customer, how).look(alias, how)
    except AkterError as problem:
        assert isinstance(problem, InsideTurn) or isinstance(problem.__cause__, InsideTurn), problem
        assert "transaction.atomic()" in str(problem) and "app.within(connection)" in str(problem), problem
    else:
        raise AssertionError(how)
"""


@pytest.mark.parametrize("first", [True, False], ids=["connected before", "not yet connected"])
def test_a_query_in_a_handler_is_refused_and_nothing_is_written(project: Any, first: bool) -> None:
    project.python(
        REFUSED
        + ("orders = orders if Order.objects.count() == 0 else None\n" if first else "")
        + f"""
for how in {HOW!r}:
    refused(how)
    refused(how, "orders")
assert orders() == 0
refused("swallow")
try:
    app.actor(Customer, "ada").count("default")
except InsideTurn: pass
else: raise AssertionError
assert beside("SELECT count(*) FROM {{akter}}.actor_receipts") == [(0,)]
# Outside, and after a handler, it is what it always was.
Order.objects.create(customer="ada")
assert app.actor(Customer, "ada").ordered() == 1
assert Order.objects.count() == 1
with connection.execute_wrapper(lambda execute, *arguments: execute(*arguments)):
    connection.close()
    refused("read")
assert len(connection.execute_wrappers) == 1
refused("read")
""",
    )


def test_other_databases_are_nobodys_business(project: Any) -> None:
    assert project.manage("migrate", "--database", "other").code == 0
    project.python("""
assert app.actor(Customer, "ada").look("other", "write") == 1
assert app.actor(Customer, "ada").look("other", "atomic") == 1
assert app.actor(Customer, "ada").count("other") == 1
from django.core.management import call_command
call_command("migrate", "shop", database="lite", verbosity=0)
assert app.actor(Customer, "ada").look("lite", "write") == 1
""")


def test_a_delivered_message_is_guarded_too(project: Any) -> None:
    project.python("""
from akter import Runner
for alias in ("default", "orders"):
    app.send(app.actor(Customer, alias).look, alias, "write")
runner = Runner(app, lanes={"intents": 2}, listen=False)
runner.drain()
runner.stop()
assert orders() == 0
said = beside("SELECT last_error FROM {akter}.actor_outbox")
assert len(said) == 2 and all("InsideTurn" in text and "transaction.atomic()" in text for text, in said), said
""")


def test_akter_does_not_import_django(project: Any) -> None:
    done = project._run("-c", "import sys, akter, akter.within, akter.runner, akter.cli\nprint([m for m in sys.modules if 'django' in m])")
    assert done.out == "[]\n", done.err
