"""Group B: commits that are slow or late, rows that fail for ever, and ids that are used again on another path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yard
from yard import Yard

from akter import Akter, CommandConflict, Defect
from akter.operating import Operator

Rows = Callable[..., list[Any]]
HERE = Path(__file__).parent
FAILED = "SELECT count(*) FROM {akter}.actor_outbox WHERE last_error LIKE '%is torn%'"
SLEEPS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


@pytest.fixture
def running(akter_database: str, akter_schema: str) -> Iterator[subprocess.Popen[str]]:
    """`akter run`, as a process of its own."""
    environment = {**os.environ, "AKTER_DATABASE_URL": akter_database, "AKTER_SCHEMA": akter_schema}
    command = [sys.executable, "-m", "akter", "run", "yard:app", "--poll", "0.05", "--no-listen"]
    with subprocess.Popen(command, cwd=HERE, env=environment, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("what", ["UPDATE", "DELETE"], ids=["of the claim", "of the delivery"])
def test_a_signal_in_the_middle_of_a_slow_commit_loses_nothing(
    running: subprocess.Popen[str], app: Akter, rows: Rows, shared: Any, effects: Any, what: str
) -> None:
    rows("CREATE SEQUENCE public.slow")
    rows(
        "CREATE FUNCTION public.be_slow() RETURNS trigger LANGUAGE plpgsql AS"
        # As long as the process needs to see the signal, however busy the machine is, and a moment more.
        " $$ BEGIN IF nextval('public.slow') = 1 THEN"
        " FOR n IN 1..40 LOOP PERFORM pg_sleep(0.5); EXIT WHEN EXISTS (SELECT FROM {akter}.actor_runners WHERE stopping); END LOOP;"
        " END IF; RETURN NULL; END $$"
    )
    rows(
        f"CREATE CONSTRAINT TRIGGER slow AFTER {what} ON {{akter}}.actor_outbox DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.be_slow()"
    )
    shared.send(app, ["a"], effects.path)
    shared.until("its commit is under way", lambda: rows(SLEEPS) == [1])
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 0, said
    if what == "UPDATE":
        # Claimed by a process that was already ending, and given back: due at once, with no attempt spent.
        assert rows("SELECT attempts, due_at_ms <= extract(epoch FROM clock_timestamp()) * 1000 FROM {akter}.actor_outbox") == [(0, True)]
        assert effects() == []
        with yard.runner(app) as one:
            one.drain()
    assert (shared.things(rows, "a"), effects()) == (["a"], ["a"])
    assert rows("SELECT count(*) FROM {akter}.actor_outbox") == [0]


def test_a_message_that_commits_late_is_delivered_when_it_does(app: Akter, rows: Rows, shared: Any) -> None:
    with yard.runner(app) as one:
        with app.engine.connect() as slow, slow.begin():
            app.within(slow).send(app.actor(Yard, "late").take, thing="late")
            shared.send(app, [f"early{number}" for number in range(20)])
            shared.until("those after it are delivered", lambda: shared.things(rows, "early19") == ["early19"])
            one.drain()
            assert shared.things(rows, "late") == []
        shared.until("and it is", lambda: shared.things(rows, "late") == ["late"])


def test_two_hundred_messages_that_always_fail_do_not_hold_up_twenty_good_ones(app: Akter, rows: Rows, shared: Any) -> None:
    shared.send(app, [f"torn{number}" for number in range(200)])
    good = [f"good{number}" for number in range(20)]
    shared.send(app, good)
    done = "SELECT count(*) FROM {akter}.actor_state WHERE actor_id LIKE 'good%'"
    with yard.runner(app):
        shared.until("the good ones are delivered", lambda: rows(done) == [20])
        shared.until("each of the others was tried", lambda: rows(FAILED) == [200])
    # 1, 2, 4 seconds after its tries; who failed three times cannot have failed a fourth time within these.
    assert rows("SELECT count(*) FROM {akter}.actor_outbox WHERE attempts > 8") == [0]
    assert rows("SELECT count(*) FROM {akter}.actor_outbox") == [200]


def test_an_id_is_used_once_whichever_way_it_comes(app: Akter, rows: Rows, shared: Any, effects: Any) -> None:
    box = app.actor(Yard, "y")

    def call(thing: str) -> object:
        return box.take(thing, effects.path)

    def send(thing: str) -> object:
        return app.send(box.take, thing, effects.path)

    def within(thing: str) -> object:
        with app.engine.begin() as connection:
            return app.within(connection).send(box.take, thing, effects.path)

    ways = [call, send, within]
    for first in ways:
        for second in ways:
            name = f"{first.__name__}-{second.__name__}"
            for way in (first, second):
                with app.command_id(name):
                    way(name)
    with yard.runner(app) as one:
        one.drain()
        assert sorted(effects()) == sorted(f"{first.__name__}-{second.__name__}" for first in ways for second in ways)
        assert sorted(shared.things(rows, "y")) == sorted(effects())
        # All at once, from twenty threads.
        with ThreadPoolExecutor(20) as threads:

            def use(number: int) -> None:
                with app.command_id("race"):
                    ways[number % 3]("race")

            for answer in [threads.submit(use, number) for number in range(20)]:
                answer.result(60)
        one.drain()
    assert effects().count("race") == 1
    assert rows("SELECT count(*) FROM {akter}.actor_outbox") == [0]


def test_what_an_id_answers_after_each_end_of_its_command(app: Akter, rows: Rows, shared: Any, effects: Any, akter_schema: str) -> None:
    box, operator = app.actor(Yard, "y"), Operator(app.engine, schema=akter_schema)
    with app.command_id("done"):
        assert box.take("a") == 1
    with app.command_id("done"):
        assert box.take("a") == 1, "the first answer"
    with app.command_id("done"), pytest.raises(CommandConflict):
        box.take("b")
    # A defect leaves no receipt, so the id is free for another try.
    for _ in range(2):
        with app.command_id("failed"), pytest.raises(Defect):
            box.take("torn", effects.path)
    assert effects() == ["torn", "torn"]
    # A message that waits for its next try is the one message of its id, until an operator takes it out.
    with yard.runner(app):
        for _ in range(2):
            with app.command_id("sent"):
                app.send(box.take, "torn", "")
        ((intent_id, _),) = shared.until(
            "it failed", lambda: rows("SELECT intent_id, attempts FROM {akter}.actor_outbox WHERE last_error IS NOT NULL")
        )
    operator.discard(intent_id)
    with app.command_id("sent"):
        app.send(box.take, "mended")
    with yard.runner(app) as one:
        one.drain()
    assert shared.things(rows, "y") == ["a", "mended"]
