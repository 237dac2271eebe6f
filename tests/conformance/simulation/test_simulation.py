"""SIM: programs drawn from seeds, the faults that meet them, and that the simulation finds what is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from plan import Fault, Line, Operation, due_after, program
from world import Failed, World

from akter.delivery import Delivery
from akter.runner.follow import Follows
from akter.runner.followed import Telling
from akter.runner.settler import Settler
from akter.store.wire import Wire
from akter.testing import crash_next

Simulated = Callable[..., Any]
conformance = pytest.mark.conformance
SEEDS = range(1, 6)
MUTANTS = range(1, 16)
"""Seeds of which one at least has to see what a mutation breaks."""
NOTE = Operation("op-0001", "note", "n0")


@conformance("SIM-01", "SIM-05")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_everything_happens_once_whatever_a_seed_does_to_it(simulated: Simulated, seed: int) -> None:
    done = simulated(seed)
    assert len(done.lines) == 25
    assert len(done.met) == sum(fault is not None for _, fault in done.lines) > 0


@conformance("SIM-02")
@pytest.mark.timeout(300)
def test_a_seed_says_which_operations_and_faults_there_are_and_who_is_answered(simulated: Simulated) -> None:
    first, second = simulated(3), simulated(3)
    # How much was delivered before a command is answered depends on how long a retry has waited, in real time, too.
    assert (first.lines, first.met, set(first.answers)) == (second.lines, second.met, set(second.answers))
    assert first.met == [(operation.id, fault.kind, f"{fault.family} {fault.point}".strip()) for operation, fault in first.lines if fault]
    assert program(3) != program(4)


@conformance("SIM-03")
def test_a_command_without_a_receipt_fails_the_simulation_by_its_seed(simulated: Simulated) -> None:
    def lose(world: World) -> None:
        finish = world.finish

        def and_lose() -> None:
            finish()
            world.rows("DELETE FROM {schema}.actor_receipts WHERE command = 'note' RETURNING 1")

        world.finish = and_lose  # type: ignore[method-assign]

    with pytest.raises(Failed, match=r"(?s)seed 17: .*has 0 receipts"):
        simulated(17, [(NOTE, None)], prepare=lose)


@conformance("SIM-03")
@pytest.mark.parametrize(
    "line",
    [
        (NOTE, Fault("crash", "before_outbox_delete")),
        (Operation("op-0002", "drain"), Fault("crash", "before_execute", "jobs")),
        (Operation("op-0002", "drain"), Fault("network", "drop NOTHING")),
    ],
    ids=["of a call", "of a relay", "of the network"],
)
def test_a_fault_that_nothing_comes_to_fails_the_simulation_by_its_seed(simulated: Simulated, line: Line) -> None:
    with pytest.raises(Failed, match=r"seed 17: op-000\d: (nothing came to|no flight met) "):
        simulated(17, [line])


@conformance("SIM-03")
def test_an_empty_program_fails_the_simulation_by_its_seed(simulated: Simulated) -> None:
    with pytest.raises(Failed, match="seed 17: nothing was asked"):
        simulated(17, [])


@conformance("SIM-04")
def test_no_relay_is_disturbed_that_has_nothing_to_do() -> None:
    kinds: set[str] = set()
    for seed in range(150):
        due: set[str] = set()
        for operation, fault in program(seed):
            if operation.what == "drain":
                if fault is not None:
                    assert due
                    assert not fault.family or fault.family in due
                    kinds.add(f"{fault.kind} {fault.family}".strip())
                due.clear()
            elif operation.text != "again":
                due |= due_after(operation)
    families = ("intents", "jobs", "feed", "control", "subscription")
    assert kinds >= {f"{kind} {family}" for kind in ("crash", "stall") for family in families} | {"network", "connections"}


@conformance("SIM-05")
def test_a_fault_that_is_left_at_the_end_fails_the_simulation_by_its_seed(simulated: Simulated) -> None:
    def leak(world: World) -> None:
        finish = world.finish

        def and_leak() -> None:
            finish()
            crash_next(world.two.app, "after_claim")

        world.finish = and_leak  # type: ignore[method-assign]

    with pytest.raises(Failed, match="seed 17: faults are left at its end: after_claim"):
        simulated(17, [(NOTE, None)], prepare=leak)


@conformance("SIM-06")
def test_a_simulation_does_not_begin_with_faults_that_somebody_planted(simulated: Simulated) -> None:
    with pytest.raises(Failed, match="seed 17: there were faults before it began: before_commit"):
        simulated(17, prepare=lambda world: crash_next(world.one.app, "before_commit"))


def under_another_id(patch: pytest.MonkeyPatch) -> None:
    """A retry asks under an id of its own, so no receipt answers it."""
    again = Delivery._again

    def changed(self: Delivery, call: Any, *rest: Any) -> Any:
        call.id += "'"
        return again(self, call, *rest)

    patch.setattr(Delivery, "_again", changed)


def dropped_when_it_fails(patch: pytest.MonkeyPatch) -> None:
    """A message whose handler fails is not tried again."""

    def drop(self: Settler, failed: Any, wire: Any = None) -> None:
        with Wire(self._engine, self._statements) as own:
            self.end([row for row, _ in failed], 0, own)

    patch.setattr(Settler, "wait", drop)


def settled_before_it_is_told(patch: pytest.MonkeyPatch) -> None:
    """An event counts as told before the subscriber's turn."""
    deliver = Follows._deliver

    def early(self: Follows, one: Telling, until: float, wire: Wire) -> bool:
        self.note([one], wire)
        return deliver(self, one, until, wire)

    patch.setattr(Follows, "_deliver", early)
    patch.setattr(Follows, "_may_share", lambda self, row: False)


@conformance("SIM-01")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", [under_another_id, dropped_when_it_fails, settled_before_it_is_told])
def test_the_simulation_finds(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, mutation: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutation(monkeypatch)
    with pytest.raises(Failed, match=r"seed \d+: "):
        for seed in MUTANTS:
            simulated(seed)
