"""Group A: processes that freeze or die with messages in their hands, and bookkeeping that fails."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import yard

from akter import Akter, Runner
from akter.operating import Operator
from akter.testing import child

Rows = Callable[..., list[Any]]
LEASES_END = "UPDATE {akter}.actor_outbox SET due_at_ms = 1"


def test_a_frozen_process_loses_its_message_to_another_and_changes_nothing_when_it_wakes(
    app: Akter, rows: Rows, shared: Any, akter_database: str, akter_schema: str
) -> None:
    shared.send(app, ["a"])
    with child(yard.serve, akter_database, akter_schema, stop_at="before_commit") as frozen:
        frozen.wait_reached()
        pid = frozen._process.pid
        os.kill(pid, signal.SIGSTOP)
        frozen.release()
        with yard.runner(app):
            shared.until("another one delivers it when the lease is over", lambda: shared.things(rows, "a") == ["a"])
        assert rows("SELECT count(*) FROM {akter}.actor_outbox") == [0]
        os.kill(pid, signal.SIGCONT)
        shared.send(app, ["canary"])
        shared.until("it woke, and works on", lambda: shared.things(rows, "canary") == ["canary"])
    assert shared.things(rows, "a") == ["a"]


def die_of_it(url: str, schema: str, together: bool) -> None:
    """Deliver in a process of its own until that one has died."""
    with child(yard.serve_together if together else yard.serve, url, schema) as process:
        assert process._process.wait(60) == 137


def test_a_message_that_kills_its_process_is_counted_named_and_can_be_taken_out(
    app: Akter, rows: Rows, shared: Any, effects: Any, akter_database: str, akter_schema: str
) -> None:
    (poison,) = shared.send(app, ["poison"], effects.path)
    for died in range(1, 4):
        die_of_it(akter_database, akter_schema, False)
        assert rows("SELECT attempts FROM {akter}.actor_outbox") == [died]
        assert effects() == ["poison"] * died
        rows(LEASES_END)
    rows("UPDATE {akter}.actor_outbox SET attempts = 8")
    operator = Operator(app.engine, schema=akter_schema)
    (stuck,) = [found for found in operator.findings() if found.name == "stuck"]
    assert stuck.finding == f"{poison} to Yard/poison.take was tried 8 times: its runner died each time"
    operator.discard(poison, why="it kills")
    shared.send(app, ["canary"])
    with yard.runner(app):
        shared.until("others are delivered", lambda: shared.things(rows, "canary") == ["canary"])


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in one transaction"])
def test_its_neighbours_do_not_die_with_it_for_ever(
    app: Akter, rows: Rows, shared: Any, effects: Any, akter_database: str, akter_schema: str, together: bool
) -> None:
    others = [f"n{number}" for number in range(10)]
    # The poison is the oldest, so it is begun first.
    shared.send(app, ["poison", *others], effects.path)
    rows("UPDATE {akter}.actor_outbox SET scheduled_at_ms = 1 WHERE target_id = 'poison'")
    left, deaths = 10, 0
    while left:
        assert deaths < 20, f"{left} neighbours died with it each time"
        deaths += 1
        # All that is left is claimed by one process at once, again and again.
        die_of_it(akter_database, akter_schema, together)
        rows(LEASES_END)
        (left,) = rows("SELECT count(*) FROM {akter}.actor_outbox WHERE target_id <> 'poison'")
    assert [shared.things(rows, other) for other in others] == [[other] for other in others]


def test_bookkeeping_that_fails_costs_neither_seat_nor_message(app: Akter, rows: Rows, shared: Any) -> None:
    # What a failed transaction wrote is gone with it, so a sequence remembers.
    rows("CREATE SEQUENCE public.deletions")
    rows(
        """CREATE FUNCTION public.fall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('public.deletions') <= 10 THEN RAISE EXCEPTION 'planted' USING ERRCODE = 'deadlock_detected'; END IF;
        RETURN OLD; END $$"""
    )
    rows("CREATE TRIGGER fall BEFORE DELETE ON {akter}.actor_outbox FOR EACH ROW EXECUTE FUNCTION public.fall()")
    things = [f"t{number}" for number in range(10)]
    shared.send(app, things)
    with Runner(app, lanes={"intents": 2}, poll=0.05, listen=False, claim_lease=4.0):
        shared.until("all are delivered", lambda: rows("SELECT count(*) FROM {akter}.actor_outbox") == [0])
        shared.send(app, ["canary"])
        shared.until("and what comes then", lambda: shared.things(rows, "canary") == ["canary"])
    assert [shared.things(rows, thing) for thing in things] == [[thing] for thing in things]
    assert rows("SELECT last_value FROM public.deletions")[0] >= 21, "ten fell, and eleven stayed"
