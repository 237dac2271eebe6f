"""Group F: what a message costs the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yard

from akter import Akter

Rows = Callable[..., list[Any]]
VERSIONS = "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = 'actor_outbox'"


def test_a_message_is_written_claimed_and_deleted_and_leaves_no_other_version_of_its_row(app: Akter, rows: Rows, shared: Any) -> None:
    with yard.runner(app) as one:
        shared.send(app, [f"{number}" for number in range(100)])
        one.drain()
    # Sessions report when they end, or after a while.
    app.engine.dispose()
    shared.until("the statistics are complete", lambda: rows(VERSIONS)[0][2] >= 100)
    assert rows(VERSIONS) == [(100, 100, 100)]


def test_a_full_outbox_that_was_delivered_is_empty(app: Akter, rows: Rows, shared: Any) -> None:
    shared.send(app, [f"{number % 7}" for number in range(500)])
    with yard.runner(app) as one:
        one.drain()
    assert rows("SELECT count(*) FROM {akter}.actor_outbox") == [0]
