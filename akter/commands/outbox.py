"""`akter outbox`, `akter pause` and `akter resume`: look at what waits, and step in, with a record of who did what."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager

import click

from akter.cli import Target
from akter.commands import show
from akter.operating import Operator
from akter.runner.settings import FAMILIES
from akter.store.backlog import REASONS, Cursor, Reason

WHY = click.option("--why", default="", metavar="TEXT", help="The reason, for the record.")
BY = click.option("--by", default=lambda: _login(), show_default="your login name", help="Who does it, for the audit row.")


@click.group()
def outbox() -> None:
    """Look at what waits, and discard or redirect a message."""


@outbox.command(name="list")
@click.argument("intent_id", required=False)
@click.option("--reason", type=click.Choice(REASONS), help="Only rows that wait for this.")
@click.option("--type", "target_type", metavar="NAME", help="Only rows for this actor type.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Rows to show.")
@click.option("--after", metavar="CURSOR", help="The next page, as the last one said.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, each with its cursor.")
@click.pass_obj
def list_(
    target: Target, intent_id: str | None, reason: Reason | None, target_type: str | None, limit: int, after: str | None, as_json: bool
) -> None:
    """List what waits, or INTENT_ID alone, and why."""
    with operator_of(target) as operator:
        found = operator.waiting(
            reason=reason, target_type=target_type, intent_id=intent_id, limit=limit, after=None if after is None else _cursor(after)
        )
        if not found:
            _refuse_unknown(operator, intent_id, target_type)
    columns = ("intent_id", "kind", "reason", "target_type", "target_id", "command", "due_in_ms", "attempts", "key", "last_error")
    show.rows(found, columns, as_json=as_json, empty="nothing waits")
    if len(found) == limit and not as_json:
        click.echo(f"more: --after {':'.join(str(part) for part in found[-1].cursor)}", err=True)


@outbox.command()
@click.argument("intent_id")
@BY
@WHY
@click.option("--yes", is_flag=True, help="Yes, it will never be delivered.")
@click.pass_obj
def discard(target: Target, intent_id: str, by: str, why: str, yes: bool) -> None:
    """Delete the message INTENT_ID; the audit row keeps it."""
    if not yes:
        raise click.ClickException("a discarded message is never delivered: say --yes")
    with operator_of(target, by) as operator:
        operator.discard(intent_id, why=why)
    click.echo(f"akter: discarded {intent_id}")


@outbox.command()
@click.argument("intent_id")
@click.option("--type", "target_type", metavar="NAME", help="The actor type that shall get it.")
@click.option("--id", "target_id", metavar="ID", help="The actor that shall get it.")
@click.option("--command", "command_name", metavar="NAME", help="The command that shall get it.")
@BY
@WHY
@click.pass_obj
def redirect(
    target: Target, intent_id: str, target_type: str | None, target_id: str | None, command_name: str | None, by: str, why: str
) -> None:
    """Give the message INTENT_ID another receiver, due at once."""
    given = {"target_type": target_type, "target_id": target_id, "command": command_name}
    to = {name: value for name, value in given.items() if value is not None}
    if not to:
        raise click.UsageError("say what shall change: --type, --id or --command")
    with operator_of(target, by) as operator:
        if target_type is not None:
            _warn_of_stranger(operator, target_type)
        operator.redirect(intent_id, to=to, why=why)
    click.echo(f"akter: redirected {intent_id}")


@click.command()
@click.argument("family", type=click.Choice(FAMILIES))
@click.option("--type", "target_type", default="", metavar="NAME", help="Only this actor type.")
@WHY
@click.pass_obj
def pause(target: Target, family: str, target_type: str, why: str) -> None:
    """Let no runner claim work of FAMILY until it is resumed.

    What runs goes on.
    """
    with operator_of(target) as operator:
        if target_type:
            _warn_of_stranger(operator, target_type)
        fresh = operator.pause(family, target_type, why=why)
    click.echo(f"akter: {family} {target_type or '(all)'} {'is paused' if fresh else 'was paused already'}")


@click.command()
@click.argument("family", type=click.Choice(FAMILIES))
@click.option("--type", "target_type", default="", metavar="NAME", help="Only this actor type.")
@click.pass_obj
def resume(target: Target, family: str, target_type: str) -> None:
    """Let runners claim work of FAMILY again."""
    with operator_of(target) as operator:
        was = operator.resume(family, target_type)
    click.echo(f"akter: {family} {target_type or '(all)'} {'is resumed' if was else 'was not paused'}")


@contextmanager
def operator_of(target: Target, by: str = "") -> Iterator[Operator]:
    """An operator on the command's database, who is `by` in audit rows."""
    with target.engine() as engine:
        yield Operator(engine, schema=target.schema, by=by)


def _refuse_unknown(operator: Operator, intent_id: str | None, target_type: str | None) -> None:
    """An empty answer about an id or a type that nobody knows would look like good news."""
    if intent_id is not None and not operator.waiting(intent_id=intent_id, limit=1):
        raise click.ClickException(f"there is no message {intent_id} in the outbox: it was delivered, cancelled or discarded")
    if target_type is not None and target_type not in (served := operator.served()):
        if not operator.waiting(target_type=target_type, limit=1):
            known = ", ".join(served) or "none"
            raise click.ClickException(f"nothing waits for {target_type!r}, and no live runner serves such a type; served are: {known}")


def _warn_of_stranger(operator: Operator, target_type: str) -> None:
    if target_type not in (served := operator.served()):
        click.echo(f"akter: no live runner serves {target_type!r}; served are: {', '.join(served) or 'none'}", err=True)


def _cursor(said: str) -> Cursor:
    bucket, kind, due, intent_id = (said.split(":", 3) + [""] * 3)[:4]
    try:
        return int(bucket), kind, int(due), intent_id
    except ValueError:
        raise click.UsageError(f"--after {said!r} is not what an earlier page said") from None


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
