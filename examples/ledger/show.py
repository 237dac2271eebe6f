"""What the demo looks like: bars and colours in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .audit import Line
from .work import Worker

TELLING = 10
"""How many problems of the audit are shown."""


class Show:
    """Where the demo prints."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def say(self, line: str) -> None:
        """Print a line, which may have rich's marks in it."""
        self._console.print(line, soft_wrap=True)

    @contextmanager
    def bars(self, here: int, there: int) -> Generator[Bars]:
        """Show how far this process and the worker are."""
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        with progress:
            yield Bars(self._console, progress, here, there)

    def audit(self, lines: list[Line], file: str) -> None:
        """Show the audit and its verdict."""
        table = Table(title="The audit", title_justify="left", title_style="bold", caption_justify="left")
        table.add_column("what was compared")
        table.add_column(file, justify="right")
        table.add_column("the database", justify="right")
        table.add_column("")
        for line in lines:
            table.add_row(line.what, f"{line.file:,}", f"{line.database:,}", "[red]WRONG[/]" if line.wrong else "[green]right[/]")
        self._console.print()
        self._console.print(table)
        wrong = [problem for line in lines for problem in line.wrong]
        for problem in wrong[:TELLING]:
            self._console.print(f"  {problem}", markup=False, style="red", soft_wrap=True)
        if wrong[TELLING:]:
            self.say(f"  and {len(wrong) - TELLING:,} more")
        self.say(
            "[bold red]The database is not what the file says.[/]" if wrong else "[bold green]Nothing was lost, and nothing was doubled.[/]"
        )


class Bars:
    """Two bars, or without a terminal a line for every tenth of the way."""

    def __init__(self, console: Console, progress: Progress, here: int, there: int) -> None:
        self._console, self._progress = console, progress
        self._total, self._tenth = here + there, 0
        self._here = progress.add_task("this process", total=here)
        self._there = progress.add_task("the worker process", total=there)

    def update(self, here: int, worker: Worker) -> None:
        """Show how many transfers are done."""
        self._progress.update(self._here, completed=here)
        self._progress.update(self._there, completed=worker.done, description=f"the worker process {worker.pid}")
        done = here + worker.done
        if self._progress.disable and self._total and (tenth := done * 10 // self._total) > self._tenth:
            self._tenth = tenth
            self._console.print(f"{tenth * 10:4d} %  {done:,} of {self._total:,} transfers")

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, soft_wrap=True)
