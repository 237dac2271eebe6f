"""`akter status`, `akter health` and `akter doctor`: who runs, what waits, and what is wrong."""

from __future__ import annotations

import dataclasses
import json

import click

from akter.cli import Seconds, Target
from akter.commands import show
from akter.commands.application import load
from akter.operating import IDLE_MS, SILENT_MS, Operator
from akter.store.backlog import AT_MOST


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def status(target: Target, as_json: bool) -> None:
    """Say who runs and what waits."""
    with target.engine() as engine:
        seen = Operator(engine, schema=target.schema).overview()
    if as_json:
        runners = [{**dataclasses.asdict(runner), "alive": runner.alive} for runner in seen.runners]
        waiting = [dataclasses.asdict(count) for count in seen.waiting]
        click.echo(json.dumps({"runners": runners, "waiting": waiting, "paused": seen.paused}, ensure_ascii=False))
        return
    columns = ("label", "silent_ms", "idle_ms", "stopping", "lanes", "types", "library")
    living = [runner for runner in seen.runners if runner.alive]
    show.rows(living, columns, as_json=False, empty="nobody is running a Runner: start one with `akter run module:app`")
    for runner in living:
        for family, threads in runner.overdue.items():
            click.echo(f"{runner.label}, {family}: {threads} {'thread' if threads == 1 else 'threads'} in handlers past their time limit")
        for one in runner.running:
            said = json.dumps(one["progress"], ensure_ascii=False)
            click.echo(f"{runner.label}: {one['actor']} {one['job']}, attempt {one['attempt']}, {one['seconds']} s: {said:.200}")
    click.echo()
    show.rows(seen.waiting, ("kind", "target_type", "reason", "rows", "late_ms", "stuck"), as_json=False, empty="nothing waits")
    if sum(count.rows for count in seen.waiting) >= AT_MOST:
        click.echo(f"there may be more: counting stopped at {AT_MOST} rows")
    for pause in seen.paused:
        click.echo(f"paused: {pause['family']} {pause['target'] or '(all)'}  {pause['reason']}".rstrip())


@click.command()
@click.option("--label", default="", metavar="TEXT", help="Only runners whose label begins so, such as the name of this host.")
@click.option(
    "--silent",
    default=SILENT_MS / 1000,
    show_default=True,
    type=Seconds(),
    metavar="SECONDS",
    help="Without a sign of life, a runner is gone.",
)
@click.option(
    "--idle",
    default=IDLE_MS / 1000,
    show_default=True,
    type=Seconds(),
    metavar="SECONDS",
    help="Without a look for work, a runner is stuck.",
)
@click.pass_obj
def health(target: Target, label: str, silent: float, idle: float) -> None:
    """Say whether a runner lives and looks for work.

    Exits with 0 when one does, else with 1 and the reason.

    It asks the database alone, so it needs nothing of your application.
    """
    with target.engine() as engine:
        found = Operator(engine, schema=target.schema).health(label=label, silent=silent, idle=idle)
    click.echo(f"akter: {found.said}")
    if not found.good:
        raise SystemExit(1)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="Also ask whether the code of this application can read all that is stored.")
@click.pass_obj
def doctor(target: Target, as_json: bool, app: str | None) -> None:
    """Name what is wrong and what to do about it.

    Exits with 1 when there is something.
    """
    code = None if app is None else load(app)
    with target.engine() as engine:
        found = Operator(engine, schema=target.schema).findings(code)
    if as_json:
        show.rows(found, (), as_json=True, empty="")
    else:
        for one in found:
            click.echo(f"{one.finding}\n    {one.remedy}")
        if not found:
            click.echo("akter: nothing is wrong")
    if found:
        raise SystemExit(1)
