"""Group C: what may wait for what, deadlocks, and who starves."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import yard
from yard import Yard

from akter import Akter, AkterError
from akter.operating import Operator
from akter.testing import sweep

Rows = Callable[..., list[Any]]
SECONDS = 6.0
OURS = "datname = current_database()"
IN_A_TRANSACTION = f"SELECT count(*) FROM pg_stat_activity WHERE {OURS} AND state LIKE 'idle in transaction%'"
ADVISORY = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE {OURS})"


def test_what_is_due_now_waits_neither_for_a_timer_nor_for_a_failing_message_of_its_actor(app: Akter, rows: Rows, shared: Any) -> None:
    box = app.actor(Yard, "y")
    box.remind("tomorrow", "k", after_ms=86_400_000)
    shared.send(app, ["torn"], yard="y")
    with yard.runner(app):
        shared.until("the failing one waits", lambda: rows("SELECT count(*) FROM {akter}.actor_outbox WHERE last_error IS NOT NULL") == [1])
        shared.send(app, ["now"], yard="y")
        shared.until("what is due now is delivered", lambda: shared.things(rows, "y") == ["now"])
    assert rows("SELECT count(*) FROM {akter}.actor_outbox") == [2]


def test_one_busy_actor_does_not_hold_up_a_hundred_others(app: Akter, rows: Rows, shared: Any) -> None:
    shared.send(app, [f"{number}" for number in range(3000)], yard="busy")
    others = [f"other{number}" for number in range(100)]
    shared.send(app, others)
    # Rows of one bucket are taken in the order in which they are due.
    same = rows(
        "SELECT count(*) FROM {akter}.actor_outbox o WHERE o.target_id <> 'busy'"
        " AND o.bucket = (SELECT min(bucket) FROM {akter}.actor_outbox WHERE target_id = 'busy')"
    )[0]
    with yard.runner(app) as one:
        one.drain()
    assert len(shared.things(rows, "busy")) == 3000
    when = "SELECT committed_at_ms FROM {akter}.actor_receipts WHERE (actor_id = 'busy') = :busy ORDER BY 1"
    busy, quick = rows(when, busy=True), rows(when, busy=False)
    assert quick[99 - same] < busy[1500], "the others were through before half of the busy one's"


def test_nothing_that_akter_does_at_once_deadlocks_takes_advisory_locks_or_idles_in_a_transaction(
    app: Akter, rows: Rows, shared: Any, akter_schema: str
) -> None:
    operator, end = Operator(app.engine, schema=akter_schema), time.monotonic() + SECONDS
    problems: list[BaseException] = []

    def again(work: Callable[[random.Random], object], seed: int) -> threading.Thread:
        def run() -> None:
            chance = random.Random(seed)
            try:
                while time.monotonic() < end:
                    work(chance)
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def timers(chance: random.Random) -> None:
        box = app.actor(Yard, f"y{chance.randrange(5)}")
        box.remind("later", f"k{chance.randrange(3)}", after_ms=chance.randrange(50))
        box.forget(f"k{chance.randrange(3)}")

    def many(chance: random.Random) -> None:
        boxes = [f"y{number}" for number in range(5)] * 4
        chance.shuffle(boxes)
        with app.engine.begin() as connection:
            app.within(connection).send_many([(app.actor(Yard, box).forget, {"key": "none"}) for box in boxes])

    def step_in(chance: random.Random) -> None:
        for found in operator.waiting(limit=20):
            # It may be delivered, or held, by now.
            with suppress(AkterError):
                if chance.random() < 0.5:
                    operator.redirect(found.intent_id, to={"target_id": f"y{chance.randrange(5)}"})
                else:
                    operator.discard(found.intent_id)
        operator.pause("intents", "Yard")
        operator.resume("intents", "Yard")
        operator.overview()
        operator.findings()
        sweep(app)

    threads = [again(timers, 1), again(timers, 2), again(many, 3), again(many, 4), again(step_in, 5), again(step_in, 6)]
    with yard.runner(app), yard.runner(app):
        while any(thread.is_alive() for thread in threads):
            assert rows(ADVISORY) == [0]
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        shared.until("no session is left in a transaction", lambda: rows(IN_A_TRANSACTION) == [0])
    assert problems == []
    assert rows(f"SELECT deadlocks FROM pg_stat_database WHERE {OURS}") == [0]
