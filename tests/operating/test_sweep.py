"""`akter sweep` prunes what the application says, now."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from shop import Parcel

from akter.app import Akter
from akter.testing import advance


def test_a_sweep_by_hand_says_what_it_pruned(app: Akter, akter: Callable[..., Any], rows: Callable[..., list[Any]]) -> None:
    app.actor(Parcel, "p").move()
    advance(app, timedelta(days=8))
    app.actor(Parcel, "p").move()
    done = akter("sweep", "shop:app")
    assert (done.code, done.err) == (0, "")
    assert done.out == "akter: Crate: pruned 0 receipts and 0 events\nakter: Parcel: pruned 1 receipts and 0 events\n"
    assert rows("SELECT count(*) FROM {akter}.actor_receipts") == [(1,)]
    again = akter("sweep", "shop:app", "--json")
    assert [json.loads(line) for line in again.out.splitlines()] == [
        {"actor_type": "Crate", "receipts": 0, "events": 0},
        {"actor_type": "Parcel", "receipts": 0, "events": 0},
    ]


def test_a_sweep_needs_an_application(akter: Callable[..., Any]) -> None:
    done = akter("sweep", "nowhere:app")
    assert (done.code, "there is no module 'nowhere' here" in done.err) == (2, True)
