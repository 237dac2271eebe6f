"""What `docs/production.md` says of connections and of copies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy
from processes import until
from shop import Crate, Parcel

from akter import Runner
from akter.app import Akter
from akter.operating import Operator
from akter.testing import settle

Rows = Callable[..., list[Any]]
FAMILIES = "{intents,jobs,feed,control,subscription}"


def test_a_process_with_a_runner_keeps_to_the_formula(akter_app: Callable[..., Akter], akter_database: str, rows: Rows) -> None:
    pool = 4
    engine = sqlalchemy.create_engine(akter_database, pool_size=pool, max_overflow=0, connect_args={"application_name": "formula"})
    app = akter_app(Parcel, Crate, engine=engine)
    most, counted = 0, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'formula'"
    with ThreadPoolExecutor(12) as threads, Runner(app, lanes={"intents": 32}, sweep=0.1):
        for number in range(40):
            app.send(app.actor(Parcel, f"p-{number}").hold, 0.05)
        calls = [threads.submit(app.actor(Crate, f"c-{number}").move) for number in range(200)]
        calls += [threads.submit(app.actor(Parcel, f"q-{number}").hold, 0.2) for number in range(20)]

        def done() -> bool:
            nonlocal most
            most = max(most, rows(counted)[0][0])
            return all(call.done() for call in calls) and rows("SELECT count(*) FROM {akter}.actor_outbox") == [(0,)]

        until(done)
        for call in calls:
            call.result()
    engine.dispose()
    assert pool < most <= 2 * pool + 3


def test_a_copy_delivers_nothing_of_the_original(app: Akter, operator: Operator, rows: Rows) -> None:
    app.send(app.actor(Parcel, "kept").move)
    rows("INSERT INTO {akter}.actor_pauses (family, paused_at_ms) SELECT unnest(CAST(:families AS text[])), 0", families=FAMILIES)
    settle(app)
    assert [(row.reason, row.attempts) for row in operator.waiting()] == [("paused", 0)]
    rows("TRUNCATE {akter}.actor_outbox, {akter}.actor_runners")
    rows("UPDATE {akter}.actor_deployment SET deployment_id = gen_random_uuid()::text")
    rows("TRUNCATE {akter}.actor_pauses")
    settle(app)
    assert operator.waiting() == []
    assert rows("SELECT count(*) FROM {akter}.actor_receipts") == [(0,)]
