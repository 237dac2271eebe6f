"""What the demo looks like: bars and colours in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .audit import Line, Unknown
from .processes import Asked

TELLING = 10
"""How many problems of the audit are shown."""

STEPS = ("placed", "paid", "shipped", "unpaid", "unknown")


class Show:
    """Where the demo prints."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def say(self, line: str) -> None:
        """Print a line, which may have rich's marks in it."""
        self._console.print(line, soft_wrap=True)

    @contextmanager
    def bars(self, total: int) -> Generator[Bars]:
        """Show how far the orders are."""
        columns = (
            TextColumn("{task.description:>9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        )
        progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        with progress:
            yield Bars(self._console, progress, total)

    def audit(self, lines: list[Line], unknown: list[Unknown]) -> None:
        """Show the audit, its verdict, and whom to ask about what."""
        table = Table(title="The audit", title_justify="left", title_style="bold")
        for column in ("what was compared", "should be", "is"):
            table.add_column(column, justify="left" if column.startswith("what") else "right")
        table.add_column("")
        for line in lines:
            table.add_row(line.what, f"{line.expected:,}", f"{line.found:,}", "[red]WRONG[/]" if line.wrong else "[green]right[/]")
        self._console.print()
        self._console.print(table)
        for one in unknown:
            truth = f"was {'' if one.charged else 'not '}charged"
            letter = f"a dead letter, ambiguous after {one.attempts} attempts ({one.cause})"
            said = f"  {one.order}: {letter}; the provider's ledger says it {truth}"
            self._console.print(said, markup=False, style="yellow", soft_wrap=True)
        wrong = [problem for line in lines for problem in line.wrong]
        for problem in wrong[:TELLING]:
            self._console.print(f"  {problem}", markup=False, style="red", soft_wrap=True)
        if wrong[TELLING:]:
            self.say(f"  and {len(wrong) - TELLING:,} more")
        good = "[bold green]Nothing was lost, nothing was charged twice, and what is unknown is said to be unknown.[/]"
        self.say("[bold red]Something went wrong.[/]" if wrong else good)


class Bars:
    """A bar for each step of an order, or without a terminal a line for every tenth of the way."""

    def __init__(self, console: Console, progress: Progress, total: int) -> None:
        self._console, self._progress, self._total, self._tenth = console, progress, total, 0
        self._tasks = {step: progress.add_task(step, total=total, said="") for step in STEPS}

    def update(self, reached: Mapping[str, int], ended: int, asked: Asked) -> None:
        """Show how many orders have come to which step, and what the provider has seen."""
        told = f"{asked.requests:,} requests, {asked.charges:,} charges, {asked.unanswered:,} without an answer"
        for step, task in self._tasks.items():
            self._progress.update(task, completed=reached.get(step, 0), said=told if step == "paid" else "")
        if self._progress.disable and (tenth := ended * 10 // self._total) > self._tenth:
            self._tenth = tenth
            self._console.print(f"{tenth * 10:4d} %  {ended:,} of {self._total:,} orders have ended; the provider: {told}", soft_wrap=True)

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, soft_wrap=True)
