"""`akter run`: a runner, or several in processes of their own, until a signal ends it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

import click

from akter.app import Akter
from akter.cli import Target
from akter.runner import Runner

LEFT_SOMETHING = 75
"""The exit code when work still ran at the deadline; its leases bring it back."""

_RESTARTS, _WITHIN = 5, 60.0


@click.command()
@click.argument("app")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, 64), help="Runner processes; one that dies is restarted.")
@click.option("--lane", "lanes", multiple=True, metavar="FAMILY=SEATS", help="Seats of a work family, such as intents=32.")
@click.option("--poll", default=1.0, show_default=True, metavar="SECONDS", help="Between looks for due work without a hint.")
@click.option("--listen/--no-listen", default=True, show_default=True, help="Wait for hints of other processes.")
@click.option("--grace", default=25.0, show_default=True, metavar="SECONDS", help="For what runs when a signal comes.")
@click.option("--label", metavar="TEXT", help="A name for people; host and process unless given.")
@click.option("--allow-test-clock", is_flag=True, help="Run although a test moved the database's clock.")
@click.pass_obj
def run(
    target: Target,
    app: str,
    processes: int,
    lanes: tuple[str, ...],
    poll: float,
    listen: bool,
    grace: float,
    label: str | None,
    allow_test_clock: bool,
) -> None:
    """Run the relay of APP, given as module:attribute.

    The first TERM or INT stops claiming and finishes what runs within the grace time; the second ends the wait; the third ends the
    process. Exit codes: 0 all finished, 75 work was left to its lease, 1 failed.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    if processes > 1:
        raise SystemExit(_supervise(processes, sys.argv, grace))
    loaded = load(app)
    if loaded.clock_offset_ms() and not allow_test_clock:
        raise click.ClickException("a test moved this database's clock: say --allow-test-clock if that is meant")
    runner = Runner(loaded, lanes=_lanes(lanes), label=label, poll=poll, listen=listen)
    with _signals() as wanted:
        runner.start()
        click.echo(f"akter: runner {runner.label} serves {', '.join(sorted(loaded.actors))}", err=True)
        while not wanted.stop.wait(0.5):
            continue
        report = _stopped(runner, wanted, grace)
    if report is None or not report.clean:
        left = report.left if report is not None else ()
        click.echo(f"akter: left to their leases: {', '.join(left) or 'unknown'}", err=True)
        sys.stderr.flush()
        # A handler that never returns must not hold the process.
        os._exit(LEFT_SOMETHING)
    click.echo(f"akter: stopped; {report.delivered} delivered, {report.released} given back", err=True)


def load(name: str) -> Akter:
    """The Akter at `module:attribute`, or what a function there returns; raises `click.UsageError` naming what is missing."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise click.UsageError(f"{name!r} is not module:attribute, such as shop.actors:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name is not None and (module == problem.name or module.startswith(problem.name + ".")):
            raise click.UsageError(f"there is no module {module!r} here: run akter where your application is importable") from None
        raise
    app: Any = found
    for part in attribute.split("."):
        app = getattr(app, part, None)
    if callable(app) and not isinstance(app, Akter):
        app = app()
    if not isinstance(app, Akter):
        raise click.UsageError(f"{name} is {type(app).__name__}, not an Akter")
    return app


def _lanes(given: tuple[str, ...]) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for lane in given:
        family, _, seats = lane.partition("=")
        if not seats.isdigit():
            raise click.UsageError(f"--lane {lane!r} is not FAMILY=SEATS, such as intents=32")
        found[family] = int(seats)
    return found or None


class _Wanted:
    def __init__(self) -> None:
        self.stop, self.now = threading.Event(), threading.Event()
        self.signals = 0

    def received(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        self.stop.set()
        if self.signals == 2:
            self.now.set()
        if self.signals > 2:
            os._exit(LEFT_SOMETHING)


@contextmanager
def _signals() -> Iterator[_Wanted]:
    wanted = _Wanted()
    before = {number: signal.signal(number, wanted.received) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopped(runner: Runner, wanted: _Wanted, grace: float) -> Any:
    """Stop in a thread of its own, so that a second signal can end the wait."""
    result: list[Any] = []

    def stop() -> None:
        result.append(runner.stop(grace))

    thread = threading.Thread(target=stop, name="akter-stop", daemon=True)
    thread.start()
    while thread.is_alive() and not wanted.now.is_set():
        thread.join(0.2)
    return result[0] if result else None


def _supervise(processes: int, arguments: list[str], grace: float) -> int:
    """Keep runner processes alive; an exit code is passed on when one keeps dying."""
    command = [sys.executable, "-m", "akter", *_alone(arguments[1:])]
    with _signals() as wanted:
        children = [subprocess.Popen(command) for _ in range(processes)]
        deaths: list[float] = []
        code = 0
        while not wanted.stop.wait(0.2):
            for at, child in enumerate(children):
                if child.poll() is None:
                    continue
                now = time.monotonic()
                deaths = [death for death in deaths if now - death < _WITHIN] + [now]
                click.echo(f"akter: runner process {child.pid} ended with {child.returncode}", err=True)
                if len(deaths) > _RESTARTS:
                    code = child.returncode or 1
                    wanted.stop.set()
                    break
                children[at] = subprocess.Popen(command)
        _end(children, wanted.now.is_set, grace)
    worst = max((child.returncode or 0 for child in children), default=0)
    return code or (worst if worst >= 0 else 1)


def _alone(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--processes":
            skip = True
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept


def _end(children: list[subprocess.Popen[bytes]], at_once: Callable[[], bool], grace: float) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    end = time.monotonic() + grace + 10.0
    hurried = False
    while any(child.poll() is None for child in children):
        if at_once() and not hurried:
            hurried = True
            for child in children:
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)
        if time.monotonic() > end:
            for child in children:
                if child.poll() is None:
                    child.kill()
        time.sleep(0.1)
