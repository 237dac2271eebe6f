"""A process of its own that runs commands of an actor when its parent says so.

`child.py URL SCHEMA`: prints `ready`; for every line `ID PIECES` it reads, it prints the answer.
"""

from __future__ import annotations

import sys

from sqlalchemy import text

from akter import Actor, Akter, CommandConflict, command


class Stock(Actor):
    """Counts pieces, and every run of its handler in a table that no rollback reaches."""

    pieces: int = 0

    @command
    def add(self, pieces: int) -> int:
        self.connection.execute(text("SELECT nextval('runs')"))
        self.pieces += pieces
        return self.pieces


def main(url: str, schema: str) -> None:
    with Akter(url, actors=[Stock], schema=schema) as app:
        app.verify()
        print("ready", flush=True)
        for line in sys.stdin:
            id, pieces = line.split()
            try:
                with app.command_id(id):
                    print(app.actor(Stock, id).add(int(pieces)), flush=True)
            except CommandConflict:
                print("conflict", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
