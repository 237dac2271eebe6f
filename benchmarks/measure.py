"""What every benchmark shares: runs of threads, interleaved pairs, medians with their spread, a table and a JSON file."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

RESULTS = Path(__file__).with_name("results")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen in one window of time."""

    rate: float
    p50_ms: float
    p99_ms: float
    count: int


Measured: TypeAlias = Callable[[], Run]


def run_of(latencies: Iterable[float], seconds: float) -> Run:
    """A run from the latencies, in seconds, of everything that ended within `seconds`."""
    found = sorted(latencies)
    if not found:
        raise RuntimeError("nothing ended while it was measured: give it more --seconds")
    return Run(
        rate=len(found) / seconds,
        p50_ms=found[len(found) // 2] * 1000,
        p99_ms=found[min(len(found) - 1, int(len(found) * 0.99))] * 1000,
        count=len(found),
    )


def in_threads(count: int, make: Callable[[int], Callable[[], object]], seconds: float, warm: float) -> Run:
    """Repeat an operation in `count` threads; `make(number)` returns each thread's own. The first `warm` seconds do not count."""
    ended: list[list[tuple[float, float]]] = [[] for _ in range(count)]
    problems: list[BaseException] = []
    start, stop = threading.Barrier(count + 1), threading.Event()

    def repeat(number: int) -> None:
        operation, mine, now = make(number), ended[number], time.perf_counter
        start.wait()
        try:
            while not stop.is_set():
                began = now()
                operation()
                end = now()
                mine.append((end, end - began))
        except BaseException as problem:  # noqa: BLE001 - a benchmark whose work fails has no result
            problems.append(problem)
            stop.set()

    threads = [threading.Thread(target=repeat, args=(number,), name=f"benchmark-{number}") for number in range(count)]
    for thread in threads:
        thread.start()
    gc.collect()
    start.wait()
    first = time.perf_counter() + warm
    stop.wait(warm + seconds)
    stop.set()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return run_of((took for mine in ended for end, took in mine if first <= end <= first + seconds), seconds)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of a benchmark: what is measured, and what it is measured against."""

    name: str
    subject: Measured
    references: dict[str, Measured]


def interleaved(comparisons: Sequence[Comparison], pairs: int) -> list[dict[str, Any]]:
    """Measure every comparison `pairs` times, a subject and its references right after one another, in turning order."""
    found = [{"name": one.name, "subject": [], "references": {label: [] for label in one.references}} for one in comparisons]
    for round in range(pairs):
        for comparison, runs in zip(comparisons, found, strict=True):
            _progress(f"{round + 1}/{pairs} {comparison.name}")
            steps: list[tuple[list[Run], Measured]] = [(runs["subject"], comparison.subject)]  # type: ignore[list-item]
            steps += [(runs["references"][label], measured) for label, measured in comparison.references.items()]  # type: ignore[index]
            for into, measured in steps if round % 2 == 0 else reversed(steps):
                into.append(measured())
    _progress("")
    return [_summary(runs) for runs in found]


def rounds(subjects: Mapping[str, Callable[[], T]], pairs: int) -> dict[str, list[T]]:
    """Measure every subject `pairs` times, right after one another, in turning order."""
    found: dict[str, list[T]] = {name: [] for name in subjects}
    for round in range(pairs):
        for name in list(subjects) if round % 2 == 0 else list(subjects)[::-1]:
            _progress(f"{round + 1}/{pairs} {name}")
            found[name].append(subjects[name]())
    _progress("")
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The spread of the ratios of figures that were measured right after one another."""
    return spread([one / other for one, other in zip(ours, theirs, strict=True)])


def _progress(said: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{said}", end="", file=sys.stderr, flush=True)


def _summary(runs: dict[str, Any]) -> dict[str, Any]:
    subject: list[Run] = runs["subject"]
    references = {}
    for label, others in runs["references"].items():
        ratios = {
            quantity: spread([getattr(one, quantity) / getattr(other, quantity) for one, other in zip(subject, others, strict=True)])
            for quantity in ("rate", "p50_ms", "p99_ms")
        }
        references[label] = {"ratios": ratios, **_medians(others), "runs": [asdict(run) for run in others]}
    return {"name": runs["name"], **_medians(subject), "runs": [asdict(run) for run in subject], "references": references}


def _medians(runs: Sequence[Run]) -> dict[str, Any]:
    return {"median": {quantity: statistics.median(getattr(run, quantity) for run in runs) for quantity in ("rate", "p50_ms", "p99_ms")}}


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "low": low, "high": high}


def table(results: Sequence[dict[str, Any]], subject: str = "akter") -> str:
    """The results as a Markdown table: a line for each reference, ratios as median (lower quartile to upper quartile)."""
    lines = [
        f"| case | {subject}: per s, p50, p99 ms | reference | its per s, p50, p99 ms | rate ratio | p50 ratio | p99 ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for label, other in result["references"].items():
            ratios = " | ".join(_said(other["ratios"][quantity]) for quantity in ("rate", "p50_ms", "p99_ms"))
            lines.append(f"| {result['name']} | {_numbers(result)} | {label} | {_numbers(other)} | {ratios} |")
    return "\n".join(lines)


def _numbers(result: dict[str, Any]) -> str:
    median = result["median"]
    rate = f"{median['rate']:,.0f}".replace(",", "\N{NO-BREAK SPACE}")
    return f"{rate}, {median['p50_ms']:.2f}, {median['p99_ms']:.2f}"


def _said(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f}–{found['high']:.2f})"


def rows(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table of whatever kind."""
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (head, ["---"] * len(head), *lines))


def said(found: Mapping[str, float], digits: int = 2) -> str:
    """A median with its quartiles."""
    return "{median:,.{d}f} ({low:,.{d}f}–{high:,.{d}f})".format(**found, d=digits).replace(",", "\N{NO-BREAK SPACE}")


def save(benchmark: str, path: Path | None, result: dict[str, Any]) -> Path:
    """Write a benchmark's JSON, to `benchmarks/results/` unless told otherwise."""
    now = datetime.now(UTC)
    if path is None:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{benchmark}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps({"benchmark": benchmark, "finished": now.isoformat(timespec="seconds"), **result}, indent=1) + "\n")
    return path
