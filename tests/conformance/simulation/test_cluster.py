"""SIM: the programs on three processes that work all the time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster import KINDS, cluster_program, simulate_cluster
from world import Failed

conformance = pytest.mark.conformance
Run = Callable[..., list[tuple[str, str, str]]]


@pytest.fixture
def run(akter_clone: Callable[[], str], akter_schema: str) -> Run:
    return lambda seed, *lines: simulate_cluster(seed, akter_clone(), akter_schema, *lines)


@conformance("SIM-07")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_everything_happens_once_while_processes_are_killed_and_fall_silent_and_lose_their_connections(run: Run, seed: int) -> None:
    met = run(seed)
    assert {kind for _, kind, _ in met} >= {"kill", "connections"}


@conformance("SIM-08")
@pytest.mark.timeout(600)
def test_a_seed_says_what_is_done_to_which_process(run: Run) -> None:
    wanted = [(operation.id, fault.kind, fault.point) for (operation, fault), _ in cluster_program(4) if fault is not None]
    assert run(4) == run(4) == wanted
    assert {kind for _, kind, _ in wanted} == set(KINDS)
    assert cluster_program(4) == cluster_program(4) != cluster_program(5)


@conformance("SIM-09")
def test_an_empty_program_of_a_cluster_fails_by_its_seed(run: Run) -> None:
    with pytest.raises(Failed, match="seed 17: nothing was asked"):
        run(17, [])
