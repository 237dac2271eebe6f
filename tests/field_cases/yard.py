"""The application that the field cases mistreat; what happened is told by `effects`, lines in a file that knows nothing of transactions."""

from __future__ import annotations

import os
from datetime import timedelta

from akter import Actor, Akter, command
from akter.runner import Runner


class Yard(Actor):
    """Takes things in, holds on to them, or brings its process down."""

    things: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def take(self, thing: str, effects: str = "") -> int:
        note(effects, thing)
        if thing == "poison":
            os._exit(137)
        if thing.startswith("torn"):
            raise ValueError(f"{thing} is torn")
        self.things = [*self.things, thing]
        return len(self.things)

    @command
    def remind(self, thing: str, key: str, after_ms: int) -> None:
        self.after(timedelta(milliseconds=after_ms), key=key).send(self.take, thing)

    @command
    def forget(self, key: str) -> None:
        self.cancel(key)


def note(effects: str, what: str) -> None:
    """Tell that it happened, whatever becomes of the transaction."""
    if effects:
        with open(effects, "a", encoding="utf-8") as file:
            file.write(f"{what}\n")


def made(url: str, schema: str) -> Akter:
    """An app whose turns, and so its leases, are short."""
    return Akter(url, actors=[Yard], schema=schema, execution=1.5)


def runner(app: Akter) -> Runner:
    """A runner that needs nobody to wake it."""
    return Runner(app, claim_lease=4.0, poll=0.05, listen=False)


def serve(url: str, schema: str) -> None:
    """Deliver until the process is killed."""
    with made(url, schema) as app, runner(app) as one:
        one.wait(120)


def serve_together(url: str, schema: str) -> None:
    """As a process that has delivered for a while: the command was seen to be quick, so its messages share a transaction."""
    with made(url, schema) as app:
        one = runner(app)
        one._deliverer.pace.saw(app.actors["Yard"].members["take"], 0.0, used_sql=False)
        with one:
            one.wait(120)


app = made(os.environ.get("AKTER_DATABASE_URL", "postgresql://nowhere.invalid/db"), os.environ.get("AKTER_SCHEMA", "akter"))
