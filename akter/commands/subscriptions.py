"""`akter subscriptions`: look at followers that are behind, and step in, with a record of who did what."""

from __future__ import annotations

import click

from akter.cli import Target
from akter.commands import show
from akter.commands.outbox import BY, WHY, operator_of


@click.group()
def subscriptions() -> None:
    """Look at followers that are behind, and help one on."""


@subscriptions.command(name="list")
@click.option("--attempts", default=0, show_default=True, type=click.IntRange(0), help="Only those tried so often or more.")
@click.option("--type", "subscriber_type", metavar="NAME", help="Only followers of this actor type.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Rows to show.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@click.pass_obj
def list_(target: Target, attempts: int, subscriber_type: str | None, limit: int, as_json: bool) -> None:
    """List who is behind, and why.

    The one that is due longest comes first.
    """
    with operator_of(target) as operator:
        found = operator.lagging(limit=limit, attempts=attempts, subscriber_type=subscriber_type)
    columns = ("tenant", "source", "subscription", "subscriber_id", "reason", "delivered", "behind", "due_in_ms", "attempts", "last_error")
    show.rows(found, columns, as_json=as_json, empty="nobody is behind")


@subscriptions.command()
@click.argument("source")
@click.argument("subscription")
@click.argument("subscriber_id", required=False, default="")
@click.option("--through", required=True, type=click.IntRange(1), metavar="CURSOR", help="The last event to pass over.")
@click.option("--tenant", default="default", show_default=True, metavar="NAME", help="The source's tenant.")
@BY
@WHY
@click.option("--yes", is_flag=True, help="Yes, it will never be told of them.")
@click.pass_obj
def skip(
    target: Target, source: str, subscription: str, subscriber_id: str, through: int, tenant: str, by: str, why: str, yes: bool
) -> None:
    """Let a follower pass over events that it cannot be told.

    SOURCE (Type/id) is the actor whose events they are, SUBSCRIPTION (Type.name) what follows it; SUBSCRIBER_ID is for those without `to`.
    """
    if not yes:
        raise click.ClickException("what is passed over is never told: say --yes")
    with operator_of(target, by) as operator:
        operator.skip_events(source, subscription, subscriber_id, through=through, tenant=tenant, why=why)
    click.echo(f"akter: {subscription} {subscriber_id}".rstrip() + f" passes over the events of {source} up to {through}")


@subscriptions.command()
@click.argument("subscription")
@BY
@WHY
@click.option("--yes", is_flag=True, help="Yes, nobody follows by it any more.")
@click.pass_obj
def forget(target: Target, subscription: str, by: str, why: str, yes: bool) -> None:
    """Forget a subscription that left the code with its type.

    SUBSCRIPTION is Type.name.
    """
    if not yes:
        raise click.ClickException("those that follow by it are told nothing more: say --yes")
    with operator_of(target, by) as operator:
        number = operator.forget_subscription(subscription, why=why)
    click.echo(f"akter: forgot {subscription}, by which {number} followed")
