"""The benchmarks run and report what their page says. How fast anything is, no test asks."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
QUANTITIES = {"rate", "p50_ms", "p99_ms"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the benchmarks and nothing else, so that the akter they import is the installed one."""
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    return tmp_path


@pytest.fixture
def benchmark(place: Path, akter_server: Callable[[str], str]) -> Callable[..., Any]:
    """Runs a benchmark's command on the test server; returns its JSON and what it printed."""

    def run(name: str, *arguments: str) -> tuple[dict[str, Any], str]:
        out = place / "result.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", "--pairs=1", "--seconds=0.3", f"--json={out}", *arguments]
        done = subprocess.run([*command, f"--url={akter_server('postgres')}"], cwd=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text()), done.stdout

    return run


def check_results(results: list[dict[str, Any]], printed: str) -> None:
    for result in results:
        assert result["name"] in printed
        assert set(result["median"]) == QUANTITIES
        assert len(result["runs"]) == 1
        assert result["runs"][0]["count"] > 0
        assert result["references"]
        for label, reference in result["references"].items():
            assert label in printed
            assert len(reference["runs"]) == 1
            assert set(reference["ratios"]) == QUANTITIES
            assert all(ratio["low"] <= ratio["median"] <= ratio["high"] for ratio in reference["ratios"].values())


def check_machine(machine: dict[str, Any]) -> None:
    assert machine["synchronous_commit"] == "on"
    assert {"cores", "python", "postgresql", "psycopg", "sqlalchemy", "akter", "pgbench", "data", "load"} <= set(machine)


def test_events_are_measured_beside_turns_without(benchmark: Callable[..., Any]) -> None:
    found, printed = benchmark("events")
    check_machine(found["machine"])
    check_results(found["results"], printed)
    assert [result["name"] for result in found["results"]] == [
        "turns that emit 1 event",
        "turns that emit 10 events",
        "pages of 100 events",
    ]


def test_turns_are_measured_beside_pgbench(benchmark: Callable[..., Any]) -> None:
    found, printed = benchmark("turns", "--peers")
    check_machine(found["machine"])
    check_results(found["results"], printed)
    assert [result["name"] for result in found["results"]] == [
        "turns, 1 thread",
        "turns, 8 threads",
        "turns, 32 threads",
        "turns, 32 threads, the process on one core",
        "turns of one actor, 8 threads",
        "turns with 2 own statements",
        "replays of a receipt",
        "queries, 1 thread",
    ]


def test_memory_is_measured_in_processes_of_its_own(benchmark: Callable[..., Any]) -> None:
    found, printed = benchmark("memory", "--first=5", "--last=10", "--apps=2")
    check_machine(found["machine"])
    check_results(found["states"]["results"], printed)
    assert list(found["idle"]) == ["python", "with psycopg and SQLAlchemy", "with akter", "with an app", "idle after its first turn"]
    assert list(found["growth"]) == ["after turn 5", "after turn 10", "growth"]
    assert set(found["apps"]) == {"apps", "MiB per app"}


@pytest.mark.timeout(300)  # a dozen processes, one after another
def test_the_relay_is_measured_with_its_tables(benchmark: Callable[..., Any]) -> None:
    # The peers are not installed for it, and not by it.
    few = ("--peers", "--jobs=30", "--keys=30", "--timers=50", "--idle=0.2", "--most=10")
    found, printed = benchmark("relay", "turns", "latency", "timers", "idle", "staging", "--seconds=0.1", *few)
    check_machine(found["machine"])
    assert list(found["turns"]["results"]) == ["akter, 1 process", "akter, 2 processes", "pgbench, five statements, 8 clients"]
    for result in found["turns"]["results"].values():
        assert result["rate"]["median"] > 0
        assert result["akter to this"]["median"] > 0
    assert list(found["latency"]["results"]) == ["akter, two processes", "akter, one process"]
    for result in found["latency"]["results"].values():
        assert result["samples"] >= 3
        assert 0 <= result["p50_ms"]["median"] <= result["p99_ms"]
    for result in found["timers"]["results"].values():
        assert list(result["claims"]) == ["custom", "generic"]
        for claim in result["claims"].values():
            assert claim["due"] == 30
            assert min(claim["rows"], claim["pages"]) > 0
    assert set(found["idle"]["results"]["akter"]) == {"statements", "transactions", "processor seconds"}
    assert list(found["staging"]["turns"]) == ["0", "1", "10"]
    assert [name.partition(" of ")[0] for name in found["staging"]["bulk"]] == ["send_many", "psycopg, executemany", "psycopg, COPY"]
    for part in ("turns", "latency", "idle", "staging"):
        assert found[part]["missing"] == {}
    for name in (*found["turns"]["results"], *found["latency"]["results"], *found["timers"]["results"], *found["staging"]["bulk"]):
        assert name in printed


def test_followers_are_measured_with_their_tables(benchmark: Callable[..., Any]) -> None:
    found, printed = benchmark("followers", "--followers=20")
    check_machine(found["machine"])
    assert list(found["rates"]) == ["no event", "an event, nobody follows", "an event, 10 follow", "an event, 20 follow"]
    for name, rate in found["rates"].items():
        assert rate["median"] > 0
        assert found["ratios"][name]["median"] > 0
        assert name in printed
    assert found["fan-out"]["rate"]["median"] > 0
    assert "one event to 20 followers" in printed


def test_schedules_are_measured_with_their_tables(benchmark: Callable[..., Any]) -> None:
    found, printed = benchmark("schedules", "--actors=40", "--ticks=20")
    check_machine(found["machine"])
    assert list(found["rates"]) == [
        "first turns, no schedule",
        "first turns, a schedule",
        "later turns, no schedule",
        "later turns, a schedule",
        "messages",
        "ticks",
    ]
    assert list(found["pass"]) == ["no rows", "40 future ticks"]
    for name, rate in (*found["rates"].items(), *found["pass"].items()):
        assert rate["median"] > 0
        assert name in printed
    assert set(found["ratios"]) == {"first turns, a schedule", "later turns, a schedule", "ticks"}
    assert min(found["planted"], found["flood"]["rate"]) > 0
    assert "40 ticks due at the same moment" in printed


@pytest.mark.timeout(300)  # a dozen processes, one after another
def test_jobs_are_measured_with_their_tables(benchmark: Callable[..., Any]) -> None:
    found, printed = benchmark("jobs", "--seconds=0.1", "--peers", "--jobs=30", "--future=50", "--crowd=3")
    check_machine({**found["machine"], "pgbench": ""})
    assert list(found["drain"]["results"]) == [
        "akter, 1 process",
        "akter with 16 seats, 1 process",
        "akter, 2 processes",
        "akter with 16 seats, 2 processes",
    ]
    assert list(found["enqueue"]["results"]) == list(found["latency"]["results"]) == ["akter"]
    assert list(found["future"]["results"]) == ["none", "50 future jobs"]
    assert list(found["crowd"]["results"]) == ["none", "3 waiting jobs of one actor"]
    for part, quantity in (("drain", "rate"), ("enqueue", "rate"), ("latency", "p50_ms"), ("future", "rate"), ("crowd", "rate")):
        for name, result in found[part]["results"].items():
            assert name in printed
            assert result[quantity]["median"] > 0
    assert found["enqueue"]["results"]["akter"]["bulk"] > 0


def test_a_sweep_is_measured_beside_turns(benchmark: Callable[..., Any]) -> None:
    found, printed = benchmark("sweep", "--rows=400", "--keys=20")
    assert found["rows"] == 400
    (run,) = found["runs"]
    assert run["pruned"] == 400
    assert set(found["result"]) == {"rows per s", "p50_ms", "p99_ms"}
    assert set(found["result"]["p99_ms"]) == {"idle", "beside", "ratio"}
    assert "beside a sweep of" in printed
    check_machine(found["machine"])


def test_a_peer_that_cannot_be_installed_is_left_out_with_its_reason(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("AKTER_BENCHMARK_CACHE", str(tmp_path / "cache"))
    environments = importlib.import_module("benchmarks.environments")
    monkeypatch.setattr(environments, "_pythons", lambda least: iter(()))
    with pytest.raises(environments.NotInstalled, match=r"needs a Python 4\.0 or newer"):
        environments.python_of("peer", ["peer"], (4, 0))
    delivery = importlib.import_module("benchmarks.delivery")
    result = {"results": {}, "missing": {"peer": "needs a Python 4.0 or newer, and none was found"}}
    assert "| peer | left out: needs a Python 4.0" in delivery.turns_table(result)


def test_percentiles_and_quartiles(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(place)
    measure = importlib.import_module("benchmarks.measure")
    run = measure.run_of([number / 1000 for number in range(1, 101)], 2.0)
    assert (run.rate, run.p50_ms, run.p99_ms, run.count) == (50.0, 51.0, 100.0, 100)
    assert measure.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert measure.spread([7.0]) == {"median": 7.0, "low": 7.0, "high": 7.0}
