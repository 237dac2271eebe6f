"""`akter outbox`, `akter pause` and `akter resume`: look at what waits, and step in, with a record of who did what."""

from __future__ import annotations

import getpass

import click

from akter.cli import Target
from akter.commands import show
from akter.commands.status import reading, served
from akter.runner.settings import FAMILIES
from akter.store import backlog, presence
from akter.tables import SCHEMA

_BY = click.option("--by", default=lambda: getpass.getuser(), show_default="your login name", help="Who does it, for the audit row.")
_WHY = click.option("--why", default="", metavar="TEXT", help="The reason, for the audit row.")


@click.group()
def outbox() -> None:
    """Look at messages and timers that wait, and discard or redirect one."""


@outbox.command(name="list")
@click.option("--reason", type=click.Choice(backlog.REASONS), help="Only rows that wait for this.")
@click.option("--type", "target_type", metavar="NAME", help="Only rows for this actor type.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Rows to show.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@click.pass_obj
def list_(target: Target, reason: str | None, target_type: str | None, limit: int, as_json: bool) -> None:
    """List what waits, and why it does not run."""
    with reading(target) as connection:
        types = served(presence.present(connection))
        found = backlog.waiting(connection, types, reason=reason, target_type=target_type, limit=limit)
    columns = ("intent_id", "kind", "reason", "target_type", "target_id", "command", "due_in_ms", "attempts", "key", "last_error")
    show.rows(found, columns, as_json=as_json, empty="nothing waits")


@outbox.command()
@click.argument("intent_id")
@_BY
@_WHY
@click.option("--yes", is_flag=True, help="Yes, it will never be delivered.")
@click.pass_obj
def discard(target: Target, intent_id: str, by: str, why: str, yes: bool) -> None:
    """Delete the message INTENT_ID."""
    if not yes:
        raise click.ClickException("a discarded message is never delivered: say --yes")
    with target.engine() as engine, engine.begin() as given:
        connection = given.execution_options(schema_translate_map={SCHEMA: target.schema})
        done = backlog.discard(connection, intent_id, by, why)
    if not done:
        raise click.ClickException(f"there is no message {intent_id} in the outbox: it was delivered, cancelled or discarded")
    click.echo(f"akter: discarded {intent_id}")


@outbox.command()
@click.argument("intent_id")
@click.option("--type", "target_type", metavar="NAME", help="The actor type that shall get it.")
@click.option("--id", "target_id", metavar="ID", help="The actor that shall get it.")
@click.option("--command", "command_name", metavar="NAME", help="The command that shall get it.")
@_BY
@_WHY
@click.pass_obj
def redirect(
    target: Target, intent_id: str, target_type: str | None, target_id: str | None, command_name: str | None, by: str, why: str
) -> None:
    """Give the message INTENT_ID another receiver, due at once."""
    given_values = {"target_type": target_type, "target_id": target_id, "command": command_name}
    to = {name: value for name, value in given_values.items() if value is not None}
    if not to:
        raise click.UsageError("say what shall change: --type, --id or --command")
    with target.engine() as engine, engine.begin() as given:
        connection = given.execution_options(schema_translate_map={SCHEMA: target.schema})
        done = backlog.redirect(connection, intent_id, to, by, why)
    if not done:
        raise click.ClickException(f"there is no message {intent_id} in the outbox: it was delivered, cancelled or discarded")
    click.echo(f"akter: redirected {intent_id}")


@click.command()
@click.argument("family", type=click.Choice(FAMILIES))
@click.option("--type", "target_type", default="", metavar="NAME", help="Only this actor type.")
@_WHY
@click.pass_obj
def pause(target: Target, family: str, target_type: str, why: str) -> None:
    """Let no runner claim work of FAMILY until it is resumed; what runs goes on."""
    with target.engine() as engine, engine.begin() as given:
        connection = given.execution_options(schema_translate_map={SCHEMA: target.schema})
        fresh = presence.pause(connection, family, target_type, why)
    click.echo(f"akter: {family} {target_type or '(all)'} {'is paused' if fresh else 'was paused already'}")


@click.command()
@click.argument("family", type=click.Choice(FAMILIES))
@click.option("--type", "target_type", default="", metavar="NAME", help="Only this actor type.")
@click.pass_obj
def resume(target: Target, family: str, target_type: str) -> None:
    """Let runners claim work of FAMILY again."""
    with target.engine() as engine, engine.begin() as given:
        connection = given.execution_options(schema_translate_map={SCHEMA: target.schema})
        was = presence.resume(connection, family, target_type)
    click.echo(f"akter: {family} {target_type or '(all)'} {'is resumed' if was else 'was not paused'}")
