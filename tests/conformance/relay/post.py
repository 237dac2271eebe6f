"""The actors of the relay's tests, and what they share: a place for what happens inside a handler, and for who ran when."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from nodes import NEVER as NEVER
from nodes import Node as Node
from nodes import eventually as eventually
from nodes import in_thread as in_thread
from sqlalchemy import text

from akter import Actor, Akter, Event, Rejection, command
from akter.testing import inspect

LEASE = timedelta(seconds=37)
"""How long a claimed row is a runner's when nothing else is said."""


class Handled:
    """Which messages a handler began with, and what is to happen inside it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.taken: Counter[str] = Counter()
        self.threads: dict[str, set[str]] = {}
        self.order: list[str] = []
        self.on_take: Callable[[Mailbox, str], None] = lambda mailbox, letter: None

    def take(self, mailbox: Mailbox, letter: str) -> None:
        self.taken[letter] += 1
        self.order.append(letter)
        self.threads.setdefault(letter, set()).add(threading.current_thread().name)
        self.on_take(mailbox, letter)


handled = Handled()


class Returned(Rejection):
    """The letter was not taken."""

    letter: str


class Arrived(Event):
    """A letter arrived."""

    letter: str


class Mailbox(Actor):
    """Keeps letters in the order they came."""

    letters: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def take(self, letter: str) -> int:
        handled.take(self, letter)
        self.letters = [*self.letters, letter]
        self.emit(Arrived(letter=letter))
        return len(self.letters)

    @command
    def refuse(self, letter: str) -> None:
        handled.take(self, letter)
        self.letters = [*self.letters, letter]
        raise Returned(letter=letter)

    @command
    def hit(self, letter: str, exit: bool = False) -> None:
        handled.take(self, letter)
        raise SystemExit(3) if exit else ValueError(f"{letter} is torn")

    @command
    def file(self, letter: str, statement: str = "SELECT 1") -> None:
        """Looks like any command, and turns out to use SQL of its own."""
        handled.take(self, letter)
        self.letters = [*self.letters, letter]
        self.connection.execute(text(statement))

    @command
    def breaks_the_statement(self, letter: str) -> None:
        """Its event's number is taken when it commits, so PostgreSQL refuses the whole group's statement."""
        handled.take(self, letter)
        self.emit(Arrived(letter=letter))


class Sender(Actor):
    """Sends letters from its turns."""

    sent: int = 0

    @command
    def send_all(self, letters: list[str], boxes: list[str], after_ms: int = 0, member: str = "take") -> None:
        self.sent += len(letters)
        for letter, box in zip(letters, boxes, strict=True):
            target = getattr(self.actor(Mailbox, box), member)
            self.after(timedelta(milliseconds=after_ms)).send(target, letter) if after_ms else self.send(target, letter)

    @command
    def send_and_refuse(self, letter: str) -> None:
        self.send(self.actor(Mailbox, "m").take, letter)
        raise Returned(letter=letter)

    @command
    def send_and_break(self, letter: str) -> None:
        self.send(self.actor(Mailbox, "m").take, letter)
        raise ValueError("broken")

    @command
    def remind(self, letter: str, minutes: float, key: str, box: str = "m") -> None:
        self.after(timedelta(minutes=minutes), key=key).send(self.actor(Mailbox, box).take, letter)

    @command
    def forget(self, key: str, refuse: bool = False) -> None:
        self.cancel(key)
        if refuse:
            raise Returned(letter=key)

    @command
    def ping(self) -> None:
        self.send(self.actor(Sender, self.id).ping)


def send_many(app: Akter, letters: list[str], boxes: list[str] | None = None, member: str = "take") -> None:
    """Send letters in one transaction, each to a mailbox of its own unless given."""
    targets = boxes or [f"box-{letter}" for letter in letters]
    with app.engine.begin() as connection:
        pairs = zip(letters, targets, strict=True)
        messages = [(getattr(app.actor(Mailbox, box), member), {"letter": letter}) for letter, box in pairs]
        app.within(connection).send_many(messages)


def letters(app: Akter, box: str) -> list[str]:
    """What a mailbox has kept."""
    return list((inspect(app, app.actor(Mailbox, box)).state or {"letters": []})["letters"])


class Ledger:
    """What happened to the outbox's rows, written by a trigger: claims, settles and releases, in the order they committed."""

    def __init__(self, sql: Any) -> None:
        self._sql = sql
        sql("CREATE TABLE ledger (at bigserial, id text, what text, attempts int, wait bigint)")
        sql(
            """CREATE FUNCTION keep_ledger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO ledger (id, what, attempts, wait) VALUES (OLD.intent_id,
                CASE WHEN TG_OP = 'DELETE' THEN 'gone' WHEN NEW.attempts > OLD.attempts THEN 'claimed' ELSE 'moved' END,
                CASE WHEN TG_OP = 'DELETE' THEN OLD.attempts ELSE NEW.attempts END,
                CASE WHEN TG_OP = 'UPDATE' THEN NEW.due_at_ms - floor(extract(epoch FROM statement_timestamp()) * 1000) END);
            RETURN NULL; END $$"""
        )
        sql("CREATE TRIGGER ledger AFTER UPDATE OR DELETE ON {akter}.actor_outbox FOR EACH ROW EXECUTE FUNCTION keep_ledger()")

    def of_rows(self) -> dict[str, list[tuple[str, int]]]:
        """For each row, what happened to it and how many claims there had been."""
        found: dict[str, list[tuple[str, int]]] = {}
        for id, what, attempts in self._sql("SELECT id, what, attempts FROM ledger ORDER BY at"):
            found.setdefault(id, []).append((what, attempts))
        return found

    def waits(self) -> list[tuple[str, int, int]]:
        """What happened, the claims there had been, and the milliseconds from the statement to the row's new due time."""
        return [tuple(row) for row in self._sql("SELECT what, attempts, wait FROM ledger ORDER BY at")]

    def broken(self) -> list[str]:
        """Every claim of a row that its last holder had not settled, and every claim that is not the row's next attempt."""
        wrong: list[str] = []
        for id, story in self.of_rows().items():
            held, claims = False, 0
            for what, attempts in story:
                if what == "claimed":
                    claims += 1
                    if held:
                        wrong.append(f"{id}: claim {claims} while it was held")
                    if attempts != claims:
                        wrong.append(f"{id}: claim {claims} is attempt {attempts}")
                held = what == "claimed"
        return wrong
