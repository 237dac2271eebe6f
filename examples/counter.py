"""The counter of the README: run it twice, and it goes on where it was."""

from __future__ import annotations

from akter import Actor, Akter, command


class Counter(Actor):
    """Counts."""

    count: int = 0

    @command
    def increment(self, by: int = 1) -> int:
        """Count on; this is a turn, one transaction."""
        self.count += by
        return self.count


if __name__ == "__main__":
    app = Akter("embedded:./data", actors=[Counter])
    app.migrate()
    print(app.actor(Counter, "visits").increment(by=2))
