"""Messages in Django's transactions: a row for each business row that was committed, and none for the others."""

from __future__ import annotations

from typing import Any

import pytest


def test_atomic_blocks_decide(project: Any) -> None:
    program = """
with transaction.atomic():
    Order.objects.create(customer="ada")
    id = app.within(connection).send(ada.ordered)
    before = connection.connection.info.transaction_status, connection.in_atomic_block, connection.needs_rollback
    assert (outbox(), orders()) == ([], 0)
    app.within(connection)
    assert before == (connection.connection.info.transaction_status, connection.in_atomic_block, connection.needs_rollback)
assert (outbox(), orders()) == ([id], 1)
try:
    with transaction.atomic():
        Order.objects.create(customer="ada")
        app.within(connection).send(ada.ordered)
        raise Back
except Back: pass
assert (outbox(), orders()) == ([id], 1)
with transaction.atomic():
    Order.objects.create(customer="ada")
    kept = app.within(connection).send(ada.ordered)
    try:
        with transaction.atomic():
            Order.objects.create(customer="ada")
            app.within(connection).send(ada.ordered)
            raise Back
    except Back: pass
    with transaction.atomic():
        Order.objects.create(customer="ada")
        inner = app.within(connection).send(ada.ordered)
assert sorted(outbox()) == sorted([id, kept, inner]) and orders() == 3
# The proxy, a connection by its alias, and a second alias of the same database.
with transaction.atomic(using="orders"):
    app.within(connections["orders"]).send(ada.ordered)
    assert len(outbox()) == 3
assert len(outbox()) == 4
# In autocommit, and in manual transaction management.
app.within(connection).send(ada.ordered)
assert len(outbox()) == 5
transaction.set_autocommit(False)
app.within(connection).send(ada.ordered)
assert len(outbox()) == 5
transaction.commit()
app.within(connection).send(ada.ordered)
transaction.rollback()
transaction.set_autocommit(True)
assert len(outbox()) == 6
many = app.within(connection).send_many([(ada.ordered, {})] * 12_000)
assert len(outbox()) == 12_006 and not connection.in_atomic_block
assert connection.connection.info.transaction_status.name == "IDLE"
"""
    project.python(program)
    project.python("with transaction.atomic():\n    app.within(connection).send(ada.ordered)\nassert outbox()", TEST_CLIENT_CURSOR="1")


def test_a_broken_block_says_so_as_it_does_to_any_query(project: Any) -> None:
    project.python("""
from django.db import DatabaseError
from django.db.transaction import TransactionManagementError
staging = app.within(connection)
try:
    with transaction.atomic():
        try:
            Order.objects.raw("SELECT 1/0 AS id")[0]
        except DatabaseError: pass
        try:
            staging.send(ada.ordered)
        except DatabaseError as problem:
            assert problem.__cause__.sqlstate == "25P02", problem
        else:
            raise AssertionError
        raise Back
except Back: pass
with transaction.atomic():
    try:
        with transaction.atomic(savepoint=False):
            raise Back
    except Back: pass
    try:
        staging.send(ada.ordered)
    except TransactionManagementError: pass
    else: raise AssertionError
    transaction.set_rollback(True)
assert outbox() == []
staging.send(ada.ordered)
""")


def test_another_database_is_refused_and_its_block_goes_on(project: Any) -> None:
    done = project.manage("migrate", "shop", "--database", "other")
    assert done.code == 0, done.err
    project.python("""
from akter.errors import ConfigurationError, DeploymentMismatch
for alias, kind in (("other", DeploymentMismatch), ("lite", ConfigurationError)):
    with transaction.atomic(using=alias):
        try:
            app.within(connections[alias]).send(ada.ordered)
        except kind: pass
        else: raise AssertionError
        if alias == "other":
            Order.objects.using(alias).create(customer="goes on")
assert Order.objects.using("other").count() == 1
beside("DROP SCHEMA {akter} CASCADE", os.environ["TEST_OTHER_URL"])
connections["other"].close()
with transaction.atomic(using="other"):
    try:
        app.within(connections["other"])
    except DeploymentMismatch as problem: assert "no akter schema" in str(problem)
    else: raise AssertionError
    assert Order.objects.using("other").count() == 1
""")


def test_views_send_as_many_as_they_commit(project: Any) -> None:
    project.python("""
from django.test import Client
client = Client(raise_request_exception=False)
for path, status, sent, kept in (
    ("/order", 200, 1, 1),
    ("/order?fail", 500, 1, 1),
    ("/loose", 200, 2, 2),
    ("/loose?fail", 500, 3, 3),
    ("/loose?orders", 200, 4, 4),
):
    answer = client.get(path)
    assert answer.status_code == status, (path, answer.content)
    assert (len(outbox()), orders()) == (sent, kept), (path, len(outbox()), orders())
""")


def test_a_process_that_dies_in_a_hook_has_sent(project: Any, rows: Any, akter_schema: str) -> None:
    done = project._run(
        "-c",
        "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'project.settings'\nimport django; django.setup()\n"
        "from django.db import connection, transaction\nfrom project.shop.actors import *\n"
        "with transaction.atomic():\n"
        "    transaction.on_commit(lambda: os._exit(3))\n"
        "    Order.objects.create(customer='ada')\n"
        "    app.within(connection).send(app.actor(Customer, 'ada').ordered)\n",
    )
    assert done.code == 3, done.err
    assert rows(project.url, f'SELECT (SELECT count(*) FROM shop_order), (SELECT count(*) FROM "{akter_schema}".actor_outbox)') == [(1, 1)]


def test_a_commit_wakes_a_runner_and_a_rollback_does_not(project: Any) -> None:
    project.python("""
import threading
from akter import Akter, Runner
from akter.contrib.django import engine
other = Akter(engine("orders", pool_size=4), actors=[Customer], schema=SCHEMA)
taken = threading.Semaphore(0)
other.faults.watch(lambda point, _: taken.release() if point == "after_commit" else None)
with Runner(other, poll=60.0, lanes={"intents": 2}) as runner:
    for _ in range(2):
        app.send(ada.ordered)
        runner.wake()
        assert taken.acquire(timeout=10)
    for _ in range(3):
        with transaction.atomic():
            id = app.within(connection).send(ada.ordered)
        assert taken.acquire(timeout=20), "nobody woke it"
    assert app.outcome(ada, id) == 5
    app.within(connection).send(ada.ordered)
    assert taken.acquire(timeout=20), "nobody woke it"
    woken = []
    app.wakes.add(lambda: woken.append(1))
    try:
        with transaction.atomic():
            app.within(connection).send(ada.ordered)
            raise Back
    except Back: pass
    assert woken == []
app.close(); other.close()
""")


@pytest.mark.parametrize("parallel", [False, True])
def test_django_tests_see_their_own_database(project: Any, tmp_path: Any, parallel: bool) -> None:
    (tmp_path / "test_shop.py").write_text("""
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase
from akter import Runner
from project.shop.actors import Customer, app
from project.shop.models import Order

def count():
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT count(*) FROM "{app.schema}".actor_outbox WHERE target_id = %s', ["tested"])
        return cursor.fetchone()[0]

class Rolled(TestCase):
    def test_one(self):
        assert count() == 0
        assert "_django" in connection.settings_dict["NAME"]
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            with transaction.atomic():
                Order.objects.create(customer="ada")
                app.within(connection).send(app.actor(Customer, "tested").ordered)
        assert len(callbacks) == 1
        assert count() == 1
    test_two = test_one

class Committed(TransactionTestCase):
    def test_a_turn(self):
        with transaction.atomic():
            id = app.within(connection).send(app.actor(Customer, "turned").ordered)
        runner = Runner(app, listen=False)
        runner.drain()
        runner.stop()
        assert app.outcome(app.actor(Customer, "turned"), id) >= 1
        with app.engine.connect() as own:
            assert "_django" in own.exec_driver_sql("SELECT current_database()").scalar()
class AlsoCommitted(Committed):
    pass
""")
    more = ("--parallel", "2") if parallel else ()
    done = project.manage("test", str(tmp_path), "--noinput", *more)
    assert done.code == 0, done.err
    assert "OK" in done.err
