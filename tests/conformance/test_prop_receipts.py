"""Receipts against a model: whatever is called, under whatever id, by whomever, with a crash anywhere."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from akter import (
    Actor,
    Akter,
    CommandConflict,
    CommandExpired,
    Defect,
    InvalidCommandId,
    PayloadInvalid,
    Rejection,
    Unauthorized,
    User,
    command,
)
from akter.fault import POINTS
from akter.identity import CommandId
from akter.testing import clear_faults, crash_next, inspect

NUMBERS = itertools.count()
CALLERS = [User("ada"), User("eve")]


class TooFew(Rejection):
    """There are too few."""

    have: int


class Stock(Actor, access=lambda access: True):
    """Counts pieces."""

    pieces: int = 0

    @command
    def add(self, pieces: int, note: str = "") -> int:
        self.pieces += pieces
        return self.pieces

    @command
    def take(self, pieces: int) -> int:
        self.pieces -= pieces
        if self.pieces < 0:
            raise TooFew(have=self.pieces + pieces)
        return self.pieces

    @command
    def fail(self, pieces: int) -> None:
        self.pieces += pieces
        raise RuntimeError("broken")


@dataclass
class Model:
    """What an actor is, as simply as it can be said."""

    pieces: int = 0
    changes: int = 0
    receipts: dict[str, tuple[User, str, int, object]] = field(default_factory=dict)

    def call(self, id: str, caller: User, name: str, pieces: int) -> object:
        if id in self.receipts:
            owner, kept, given, answer = self.receipts[id]
            if owner != caller:
                return Unauthorized
            return answer if (kept, given) == (name, pieces) else CommandConflict
        if name == "fail":
            return Defect
        answer: object = self.pieces + (pieces if name == "add" else -pieces)
        if name == "take" and pieces > self.pieces:
            answer = TooFew(have=self.pieces)
        else:
            self.changes += pieces != 0
            self.pieces = int(str(answer))
        self.receipts[id] = (caller, name, pieces, answer)
        return answer


class Receipts(RuleBasedStateMachine):
    """One actor and its model, side by side."""

    app: ClassVar[Akter]
    crashes: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        self.model, self.left, self.minted = Model(), self.crashes, [self.app.mint_command_id() for _ in range(2)]
        name = f"s-{next(NUMBERS)}"
        self.handles = []
        for caller in CALLERS:
            with self.app.acting_as(caller):
                self.handles.append(self.app.actor(Stock, name))

    @rule(
        id=st.sampled_from(["a", "b", "c", 0, 1]),
        who=st.integers(0, 1),
        name=st.sampled_from(["add", "take", "fail"]),
        pieces=st.integers(0, 3),
    )
    def call(self, id: str | int, who: int, name: str, pieces: int) -> None:
        key: str | CommandId = self.minted[id] if isinstance(id, int) else id
        expected = self.model.call(str(id), CALLERS[who], name, pieces)
        assert self._answer(key, who, name, pieces) == expected

    @precondition(lambda self: self.left > 0)
    @rule(point=st.sampled_from(POINTS))
    def crash(self, point: Any) -> None:
        self.left -= 1
        crash_next(self.app, point)

    def _answer(self, key: str | CommandId, who: int, name: str, pieces: int) -> object:
        try:
            with self.app.command_id(key, scope="shared" if isinstance(key, str) else None):
                return getattr(self.handles[who], name)(pieces)
        except TooFew as refused:
            return refused
        except (CommandConflict, Unauthorized, Defect) as problem:
            return type(problem)

    @invariant()
    def stored_is_what_the_model_says(self) -> None:
        found = inspect(self.app, self.handles[0])
        assert (found.state or {"pieces": 0}) == {"pieces": self.model.pieces}
        assert found.version == self.model.changes
        stored = {receipt.command_id: (receipt.caller_key, receipt.command) for receipt in found.receipts}
        expected = {
            str(self.minted[int(id)]) if id in ("0", "1") else f"u:shared:{id}": (caller.key, name)
            for id, (caller, name, _, _) in self.model.receipts.items()
        }
        assert stored == expected

    def teardown(self) -> None:
        self.app.faults.clear()


@pytest.mark.conformance("PROP-03")
def test_receipts_match_a_model(akter_app) -> None:
    class Calm(Receipts):
        app = akter_app(Stock)

    run_state_machine_as_test(Calm, settings=settings(max_examples=20, stateful_step_count=15, deadline=None, database=None))
    clear_faults(Calm.app)


@pytest.mark.conformance("PROP-04")
def test_receipts_match_a_model_with_one_crash_anywhere(akter_app) -> None:
    class Crashing(Receipts):
        app = akter_app(Stock)
        crashes = 1

    run_state_machine_as_test(Crashing, settings=settings(max_examples=20, stateful_step_count=15, deadline=None, database=None))


UNSTORABLE = st.one_of(
    st.text(st.characters(), max_size=20),
    st.text(st.sampled_from(["\0", "\ud800", "\udfff", "a", "é"]), min_size=1, max_size=5),
    st.just("x" * 1_100_000),
)
EXPIRED = st.integers(1, 10**14).map(lambda issued: CommandId.mint(issued % 10**12, 86_400_000))
MALFORMED = st.one_of(
    st.just(""), st.text(min_size=256, max_size=300), st.text(max_size=20).map(lambda text: text + "\0"), st.just("\ud800"),
    EXPIRED.map(lambda id: CommandId(id.issued_at_ms, id.expires_at_ms + 1, id.unique)),
)  # fmt: skip


@pytest.mark.conformance("PROP-02", "ADM-05")
def test_a_malformed_or_expired_id_is_refused_for_good_whatever_the_arguments_are(akter_app, beside) -> None:
    app = akter_app(Stock)
    stock = app.actor(Stock, "s-1")

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(id=st.one_of(EXPIRED, MALFORMED), note=UNSTORABLE)
    def refused(id: str | CommandId, note: str) -> None:
        with pytest.raises((InvalidCommandId, CommandExpired, PayloadInvalid)) as caught, app.command_id(id):
            stock.add(1, note=note)
        assert not caught.value.retryable

    refused()
    assert [beside.count(table) for table in ("actor_generations", "actor_state", "actor_receipts")] == [0, 0, 0]
