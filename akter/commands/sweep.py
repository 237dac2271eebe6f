"""`akter sweep`: prune old receipts and events now."""

from __future__ import annotations

import json

import click

from akter.commands.application import load
from akter.commands.ending import asked_to_end
from akter.runner.retention import Sweeper


@click.command()
@click.argument("app")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
def sweep(app: str, as_json: bool) -> None:
    """Prune old receipts and events of the actors of APP.

    Its runners do that every minute. APP is module:attribute, an Akter or a function that returns one.

    How long they are kept says APP. A TERM or INT ends it after the batch it is in; what was pruned until then stays pruned.
    """
    with asked_to_end() as ending:
        loaded = load(app)
        for swept in Sweeper(loaded, ending.stop).sweep():
            if as_json:
                click.echo(json.dumps(swept._asdict(), ensure_ascii=False))
            else:
                click.echo(f"akter: {swept.actor_type}: pruned {swept.receipts} receipts and {swept.events} events")
        loaded.close()
