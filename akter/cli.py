"""The command `akter`. It exits with 0 when all is well, 1 when it refused or failed, 2 when it was called wrongly.

To add a command, write it with click in a module of its own and name it in `ELSEWHERE`: it is imported only when it is called.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import click
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

import akter
from akter.errors import AkterError, ConfigurationError

ELSEWHERE = {
    "demo": "akter.examples.orders.demo:demo",
    "run": "akter.commands.run:run",
    "inspect": "akter.commands.inspect:inspect",
    "actors": "akter.commands.actors:actors",
    "actor": "akter.commands.actors:actor",
    "sweep": "akter.commands.sweep:sweep",
    "status": "akter.commands.status:status",
    "health": "akter.commands.status:health",
    "doctor": "akter.commands.status:doctor",
    "letters": "akter.commands.letters:letters",
    "outbox": "akter.commands.outbox:outbox",
    "subscriptions": "akter.commands.subscriptions:subscriptions",
    "pause": "akter.commands.outbox:pause",
    "resume": "akter.commands.outbox:resume",
}
"""Commands in other modules: name to "module:attribute"."""


class Commands(click.Group):
    """A group that imports commands when they are called, and tells what went wrong in a line instead of a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands of here and elsewhere."""
        return sorted({*super().list_commands(ctx), *ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command, importing its module if need be."""
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = ELSEWHERE[cmd_name].partition(":")
        return cast(click.Command, getattr(import_module(module), attribute))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what akter or the database refuses is an error message."""
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            raise click.UsageError(_hidden(str(error), ctx.params.get("url"))) from error
        except AkterError as error:
            raise click.ClickException(_hidden(str(error), ctx.params.get("url"))) from error
        except DBAPIError as error:
            raise click.ClickException(_hidden(_explained(error), ctx.params.get("url"))) from error


class Seconds(click.FloatRange):
    """A number of seconds from 0 to a day; "nan" and "inf" are numbers to Python, but no time to wait."""

    def __init__(self) -> None:
        super().__init__(0, 86_400)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it; fails for what is out of range or not finite."""
        seconds = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds from 0 to 86400.", param, ctx)
        return seconds


class Target:
    """The database and the schema that a command works on."""

    def __init__(self, url: str | None, schema: str) -> None:
        self.url = url
        self.schema = schema

    @contextmanager
    def engine(self, *, making: bool = False) -> Generator[Engine]:
        """An engine for the database, disposed of at the end; only a command that is `making` one starts an embedded server anew."""
        from akter.engine import engine_for

        scheme, _, directory = (self.url or "").partition(":")
        if scheme == "embedded" and directory and not making and not Path(directory).expanduser().exists():
            raise ConfigurationError(f"there is no {directory} here: run akter where your application runs, or `akter migrate` to make one")
        engine, _ = engine_for(self.url, pool_size=1)
        try:
            yield engine
        finally:
            engine.dispose()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", envvar="AKTER_DATABASE_URL", metavar="URL", help="The database: postgresql://..., or embedded:./data.")
@click.option(
    "--schema", envvar="AKTER_SCHEMA", default="akter", show_default=True, metavar="NAME", help="The PostgreSQL schema of its tables."
)
@click.version_option(akter.__version__, prog_name="akter")
@click.pass_context
def main(ctx: click.Context, url: str | None, schema: str) -> None:
    """Durable actors on PostgreSQL.

    Without --url, the database is the one that AKTER_DATABASE_URL names, and without --schema, the schema that AKTER_SCHEMA names.

    Exit codes: 0 all is well, 1 refused or failed, 2 called wrongly.
    """
    ctx.obj = Target(url, schema)


@main.command()
@click.argument("revision", default="head")
@click.option(
    "--check", "checking", is_flag=True, help="Change nothing; exit with 1 and the reason unless this library can use the schema."
)
@click.option("--sql", "offline", is_flag=True, help="Print the SQL instead of running it; REVISION may be FROM:TO.")
@click.option("--wait", default=60.0, show_default=True, type=Seconds(), metavar="SECONDS", help="How long to wait for another migration.")
@click.pass_obj
def migrate(target: Target, revision: str, checking: bool, offline: bool, wait: float) -> None:
    """Create the akter schema, or bring it up to date.

    To REVISION, when one is given.
    """
    from akter import lines, schema

    if checking and offline:
        raise click.UsageError("--check and --sql exclude each other")
    if offline:
        start, _, end = revision.rpartition(":")
        click.echo(schema.sql(start or "base", end, schema=target.schema, transaction=True), nl=False)
        return
    lines.show(logging.WARNING)
    with target.engine(making=not checking) as engine:
        if checking:
            reason = schema.check(engine, schema=target.schema)
            click.echo(f"akter: {reason}" if reason else f"akter: schema {target.schema} is what this library needs")
            raise SystemExit(1 if reason else 0)
        move = schema.upgrade(engine, revision, schema=target.schema, wait=wait)
    if move.before is None:
        click.echo(f"akter: created schema {target.schema} at {move.after}")
    elif move.before == move.after:
        click.echo(f"akter: schema {target.schema} is at {move.after}: nothing to do")
    else:
        click.echo(f"akter: schema {target.schema} went from {move.before} to {move.after}")


@main.command()
@click.option("--yes", is_flag=True, help="Yes, every actor, receipt and job in it.")
@click.pass_obj
def drop(target: Target, yes: bool) -> None:
    """Drop the akter schema with everything in it."""
    from akter import schema

    if not yes:
        raise click.ClickException(f"this drops schema {target.schema} with every actor, receipt and job in it: say --yes")
    with target.engine() as engine:
        found = schema.drop(engine, schema=target.schema)
    click.echo(f"akter: dropped schema {target.schema}" if found else f"akter: there is no schema {target.schema}: nothing to do")


@main.command()
@click.argument("role")
@click.option("--views", "reads", is_flag=True, help="Let ROLE read the views instead, and nothing else.")
@click.option("--view", "views", multiple=True, metavar="NAME", help="Only this view, such as actors; may be said several times.")
@click.pass_obj
def grants(target: Target, role: str, reads: bool, views: tuple[str, ...]) -> None:
    """Print the SQL that gives ROLE the rights it needs.

    To run the application and no more, or to read the views. The schema's owner runs it.
    """
    from akter import schema

    if reads or views:
        click.echo(schema.grants_of_views(role, views, schema=target.schema), nl=False)
    else:
        click.echo(schema.grants(role, schema=target.schema), nl=False)


def _explained(error: DBAPIError) -> str:
    message = " ".join(str(error.orig).split())
    if getattr(error.orig, "sqlstate", None) == "42501":
        return f"{message}: run this as the owner of the schema, or of the database if there is no schema yet"
    return f"{'the database refused' if error.statement else 'there is no way to the database'}: {message}"


def _hidden(message: str, url: object) -> str:
    found = re.match(r"[^:/]+://[^:/@]*:(.*)@", url) if isinstance(url, str) else None
    return message.replace(found.group(1), "***") if found and found.group(1) else message
