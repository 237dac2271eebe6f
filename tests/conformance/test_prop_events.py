"""Cursors of events against a model: whatever is emitted, pruned or deleted, nothing is skipped in silence and no number comes twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akter import Actor, Akter, Event, RetentionGap, UnknownCursor, command
from akter.operating import Operator
from akter.testing import advance, sweep

NUMBERS = itertools.count()
KEPT = 30


class Rose(Event):
    """It rose to this."""

    to: int


class Fell(Event):
    """It fell to this."""

    to: int


KINDS = {"rose": Rose, "fell": Fell}


class Tide(Actor, keep_events=timedelta(days=KEPT)):
    """Tells how it goes."""

    count: int = 0

    @command
    def move(self, ways: list[str]) -> None:
        for way in ways:
            self.count += 1
            self.emit(KINDS[way](to=self.count))


@dataclass
class Model:
    """Each event's kind, content and day, in the order of their numbers; how many of the first ones are gone."""

    events: list[tuple[str, int, int]] = field(default_factory=list)
    count: int = 0
    day: int = 0
    gone: int = 0

    def move(self, ways: list[str]) -> None:
        for way in ways:
            self.count += 1
            self.events.append((way, self.count, self.day))

    def sweep(self) -> None:
        self.gone = max([self.gone, *(number for number, (_, _, day) in enumerate(self.events, 1) if self.day - day >= KEPT)])

    def delete(self) -> None:
        self.count, self.gone = 0, len(self.events)

    def read(self, kind: str, after: str | None, limit: int) -> object:
        if after == "junk" or int(after or 0) > len(self.events):
            return UnknownCursor
        begin = int(after or 0)
        if begin < self.gone:
            return ("gap", str(begin), str(self.gone))
        page = [(str(number), to) for number, (way, to, _) in enumerate(self.events, 1) if way == kind and number > begin]
        return page[:limit]


cursors = st.none() | st.sampled_from(["junk", *map(str, range(14))])
steps = st.one_of(
    st.tuples(st.just("move"), st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4)),
    st.tuples(st.just("read"), st.sampled_from(sorted(KINDS)), cursors, st.integers(1, 3)),
    st.tuples(st.just("advance"), st.sampled_from([1, 10, 29])),
    st.tuples(st.just("sweep")),
    st.tuples(st.just("delete")),
)


@pytest.mark.conformance("PROP-05")
def test_cursors_match_a_model_with_pruning(akter_app: Callable[..., Akter], akter_schema: str) -> None:
    app = akter_app(Tide)
    operator = Operator(app.engine, schema=akter_schema)

    @given(story=st.lists(steps, min_size=4, max_size=14))
    @settings(max_examples=25, deadline=None, database=None)
    def follows(story: list[Any]) -> None:
        model, id = Model(), f"t-{next(NUMBERS)}"
        tide = app.actor(Tide, id)
        for step, *asked in story:
            if step == "move":
                tide.move(*asked)
                model.move(*asked)
            elif step == "read":
                assert read(app, tide, *asked) == model.read(*asked)
            elif step == "advance":
                advance(app, timedelta(days=asked[0]))
                model.day += asked[0]
            elif step == "sweep":
                sweep(app)
                model.sweep()
            elif model.events:
                operator.delete("Tide", id)
                model.delete()
        for kind in KINDS:
            assert read(app, tide, kind, str(model.gone), 100) == model.read(kind, str(model.gone), 100)

    follows()


def read(app: Akter, tide: Tide, kind: str, after: str | None, limit: int) -> object:
    try:
        return [(entry.cursor, entry.event.to) for entry in app.events(tide, KINDS[kind], after=after, limit=limit)]
    except UnknownCursor:
        return UnknownCursor
    except RetentionGap as gap:
        return ("gap", gap.after, gap.resume_after)
