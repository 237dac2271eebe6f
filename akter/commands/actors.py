"""`akter actors` and `akter actor`: list the actors of a type, let one begin again, delete one."""

from __future__ import annotations

import click

from akter.cli import Target
from akter.commands import show
from akter.commands.outbox import BY, WHY, operator_of
from akter.identity import DEFAULT_TENANT
from akter.operating import Removed

_TENANT = click.option("--tenant", default=DEFAULT_TENANT, show_default=True, metavar="NAME", help="Whose actor it is.")


@click.command()
@click.argument("kind")
@_TENANT
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Actors to show.")
@click.option("--after", default="", metavar="ID", help="The next page: the last id of this one.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@click.pass_obj
def actors(target: Target, kind: str, tenant: str, limit: int, after: str, as_json: bool) -> None:
    """List the actors of the type KIND, by their ids.

    An actor is listed once it was created, or its state was written.
    """
    with operator_of(target) as operator:
        found = operator.actors(kind, tenant=tenant, after=after, limit=limit)
    columns = ("actor_id", "written", "events", "created", "lives")
    show.rows(found, columns, as_json=as_json, empty=f"there is no {kind} in the tenant {tenant}")
    if len(found) == limit and not as_json:
        click.echo(f"more: --after {found[-1].actor_id}", err=True)


@click.group()
def actor() -> None:
    """Let one actor begin again, or delete it."""


@actor.command()
@click.argument("kind")
@click.argument("id")
@_TENANT
@BY
@WHY
@click.option("--yes", is_flag=True, help="Yes, its state is gone then.")
@click.pass_obj
def reset(target: Target, kind: str, id: str, tenant: str, by: str, why: str, yes: bool) -> None:
    """Let the actor KIND ID begin again with its defaults.

    Its receipts, events and schedules stay.
    """
    if not yes:
        raise click.ClickException("the state of a reset actor is gone: say --yes")
    with operator_of(target, by) as operator:
        _say(f"reset {kind}/{id}", operator.reset(kind, id, tenant=tenant, why=why))


@actor.command()
@click.argument("kind")
@click.argument("id")
@_TENANT
@BY
@WHY
@click.option("--with-receipts", is_flag=True, help="Its receipts, too: a command that is repeated runs again.")
@click.option("--yes", is_flag=True, help="Yes, it is gone then, with what waits for it.")
@click.pass_obj
def delete(target: Target, kind: str, id: str, tenant: str, by: str, why: str, with_receipts: bool, yes: bool) -> None:
    """Delete the actor KIND ID.

    Its events go, too, and what others asked of it.
    """
    if not yes:
        raise click.ClickException("a deleted actor is gone, with its events and what waits for it: say --yes")
    with operator_of(target, by) as operator:
        _say(f"deleted {kind}/{id}", operator.delete(kind, id, tenant=tenant, with_receipts=with_receipts, why=why))


def _say(done: str, removed: Removed) -> None:
    words = {"asked": "requests of its own", "waiting": "requests of others", "dead_letters": "dead letters"}
    counts = [f"{number} {words.get(name, name)}" for name, number in removed._asdict().items() if number]
    click.echo(f"akter: {done}; removed: {', '.join(counts) or 'nothing'}")
