from __future__ import annotations

from akter import Actor, command, query
from akter.testing import crash_next, inspect, receipts


class Counter(Actor):
    """Counts."""

    count: int = 0

    @command
    def increment(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @query
    def value(self) -> int:
        return self.count


def test_a_counter_counts_and_survives_crashes(akter_app) -> None:  # type: ignore[no-untyped-def]
    app = akter_app(Counter)
    counter = app.actor(Counter, "visits")
    assert counter.increment(by=2) == 2
    for point in ("before_handler", "before_commit", "after_commit"):
        crash_next(app, point)
        counter.increment()
    assert counter.value() == 5
    assert inspect(app, counter).state == {"count": 5}
    assert len(receipts(app, counter, "increment")) == 4
