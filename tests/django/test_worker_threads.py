"""Django's connections in the threads of a runner, where no request ends that would look after them."""

from __future__ import annotations

from typing import Any

BEGIN = """
import time
from akter import Runner
from django.conf import settings
OTHER = os.environ["TEST_OTHER_URL"]
def pids():
    mine = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return {pid for pid, in beside(mine, OTHER)}
def until(so):
    end = time.monotonic() + 60
    while not so():
        assert time.monotonic() < end
        time.sleep(0.01)
def written():
    return beside("SELECT count(*) FROM shop_order", OTHER)[0][0]
def deliver(count):
    before = written()
    for number in range(count):
        app.send(app.actor(Customer, f"c-{number}").look, "other", "write")
    until(lambda: written() >= before + count)
"""


def test_a_connection_that_its_settings_keep_for_no_longer_than_a_request_is_closed_when_a_thread_has_nothing_to_do(project: Any) -> None:
    assert project.manage("migrate", "--database", "other").code == 0
    project.python(
        BEGIN
        + """
assert settings.DATABASES["other"].get("CONN_MAX_AGE", 0) == 0
with Runner(app, lanes={"intents": 4}):
    deliver(20)
    until(lambda: not pids())
"""
    )


def test_a_connection_that_died_between_two_messages_fails_one_of_them_at_most_once(project: Any) -> None:
    assert project.manage("migrate", "--database", "other").code == 0
    project.python(
        BEGIN
        + """
connections["other"].settings_dict["CONN_MAX_AGE"] = None
connections.settings["other"]["CONN_MAX_AGE"] = None
with Runner(app, lanes={"intents": 1}) as runner:
    deliver(1)
    (kept,) = pids()
    beside(f"SELECT pg_terminate_backend({kept})", OTHER)
    until(lambda: kept not in pids())
    deliver(1)
    deliver(1)
    # The lane's thread keeps one, and the two that take turns at the relay's loop.
    assert 1 <= len(pids()) <= 3
assert runner.counts.retried <= 1
"""
    )
