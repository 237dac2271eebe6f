"""`akter run`: a runner, or several in processes of their own, until a signal ends it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click
from click.core import ParameterSource
from sqlalchemy import Engine

from akter import lines
from akter.app import Akter
from akter.cli import Seconds, Target
from akter.commands.application import load
from akter.commands.ending import LEFT_SOMETHING, Ending, asked_to_end, say
from akter.commands.supervise import supervise
from akter.engine import engine_for
from akter.runner import Report, Runner

_LAST_WORDS = 2.0


@click.command()
@click.argument("app")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, 64), help="Runner processes; one that dies is restarted.")
@click.option("--lane", "lanes", multiple=True, metavar="FAMILY=SEATS", help="Seats of a work family, such as intents=32.")
@click.option("--poll", default=1.0, show_default=True, metavar="SECONDS", help="Between looks for due work without a hint.")
@click.option("--listen/--no-listen", default=True, show_default=True, help="Wait for hints of other processes.")
@click.option(
    "--grace",
    default=25.0,
    show_default=True,
    type=Seconds(),
    metavar="SECONDS",
    help="For what runs when a signal comes.",
)
@click.option("--label", metavar="TEXT", help="A name for people; host and process unless given.")
@click.option("--allow-test-clock", is_flag=True, help="Run although a test moved the database's clock.")
@click.pass_context
def run(
    ctx: click.Context,
    app: str,
    processes: int,
    lanes: tuple[str, ...],
    poll: float,
    listen: bool,
    grace: float,
    label: str | None,
    allow_test_clock: bool,
) -> None:
    """Run a runner for APP until a signal ends it.

    APP is module:attribute, an Akter or a function that returns one.

    It works on the database of APP. The first TERM or INT, or a HUP, stops claiming and finishes what runs within the grace time; the
    second TERM or INT ends the wait and gives back what runs; the third ends the process. Exit codes: 0 all finished, 75 something still
    ran, 1 failed, 2 called wrongly. It also ends, with 75, when every thread is in a handler past its time limit and work waits.
    """
    seats = _lanes(lanes)
    if processes > 1:
        raise SystemExit(supervise(processes, _alone(sys.orig_argv[1:]), grace))
    with asked_to_end() as ending:
        loaded = _loaded(ctx, app)
        lines.show()
        if loaded.clock_offset_ms() and not allow_test_clock:
            raise click.ClickException("a test moved this database's clock: say --allow-test-clock if that is meant")
        # What was imported stays as long as the process: no later collection has to go through it, which takes as long as a thousand jobs.
        gc.collect()
        gc.freeze()
        runner = Runner(loaded, lanes=seats, label=label, poll=poll, listen=listen)
        if not ending.stop.is_set():
            runner.start()
            say(f"akter: runner {runner.label} serves {', '.join(sorted(loaded.actors))}")
        lost: Sequence[str] = ()
        hung: Sequence[str] = ()
        while not lost and not hung and not ending.stop.wait(0.5):
            lost, hung = runner.lost, runner.hung
        if hung:
            say(f"akter: work waits, and every thread of {', '.join(hung)} is past its time limit, so this process ends")
        report = _stopped(runner, ending, grace)
        if report is None or not report.clean:
            _leave(runner, report)
        say(f"akter: stopped; {report.delivered} delivered, {report.released} given back")
        loaded.close()
    if hung:
        raise SystemExit(LEFT_SOMETHING)
    if lost:
        raise click.ClickException(f"the thread {', '.join(lost)} died, so this process cannot go on; see its log")


def _loaded(ctx: click.Context, name: str) -> Akter:
    """The application; a database or schema that the command line names is the one it has, or nothing runs."""
    target: Target = ctx.obj
    said = ctx.find_root()
    url = target.url if said.get_parameter_source("url") is ParameterSource.COMMANDLINE else None
    if url is not None:
        # For an application that leaves it to the environment.
        os.environ["AKTER_DATABASE_URL"] = url
    app = load(name)
    if url is not None and _place(engine_for(url)[0]) != _place(app.engine):
        raise click.UsageError(f"{name} says itself which database it works on, another one than --url: leave out --url")
    if said.get_parameter_source("schema") is ParameterSource.COMMANDLINE and target.schema != app.schema:
        raise click.UsageError(f"{name} works in the schema {app.schema}: leave out --schema, or say Akter(schema=...)")
    return app


def _place(engine: Engine) -> tuple[object, ...]:
    return engine.url.host, engine.url.port, engine.url.database


def _lanes(given: tuple[str, ...]) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for lane in given:
        family, _, seats = lane.partition("=")
        if not seats.isdecimal():
            raise click.UsageError(f"--lane {lane!r} is not FAMILY=SEATS, such as intents=32")
        found[family] = int(seats)
    return found or None


def _alone(arguments: Sequence[str]) -> list[str]:
    """The same command line for one process, however this one was started: by name, with -m, or by a manage.py."""
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


def _stopped(runner: Runner, ending: Ending, grace: float) -> Report | None:
    """Stop in a thread of its own, so that a second signal can end the wait; then there is no report."""
    result: list[Report] = []
    thread = threading.Thread(target=lambda: result.append(runner.stop(grace)), name="akter-stop", daemon=True)
    thread.start()
    while thread.is_alive() and not ending.now.is_set():
        thread.join(0.2)
    return result[0] if result else None


def _leave(runner: Runner, report: Report | None) -> NoReturn:
    """End the process over what still runs, which rolls it back; what can be given back is."""
    left: list[str] = list(report.left if report is not None else ())

    def give_back() -> None:
        left.extend(runner.abandon())

    words = threading.Thread(target=give_back, name="akter-abandon", daemon=True)
    words.start()
    words.join(_LAST_WORDS)
    say(f"akter: still ran, and will run again: {', '.join(dict.fromkeys(left)) or 'unknown'}")
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Threads of handlers cannot be ended, and the interpreter might wait for some.
    os._exit(LEFT_SOMETHING)
