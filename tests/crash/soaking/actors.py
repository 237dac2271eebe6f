"""The actors of the soak that send, receive, publish and tick."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import column, func, insert, table

from akter import Actor, Rejection, command
from soaking.following import Follower, Listener, Noted, is_noted
from soaking.journal import ran
from soaking.plan import CHARGES, Step, steps
from soaking.till import Till

BEAT = 0.5
"""Seconds between two ticks of a canary."""

effects = table("soak_effects", column("tag"), column("actor"), column("number"), schema="public")
ticks = table("soak_ticks", column("canary"), column("number"), column("at"), schema="public")


class Refused(Rejection):
    """The message is not wanted."""

    tag: str


class Node(Actor, max_state_bytes=8_000_000):
    """Receives and sends. `history` has a numbered line for every turn that changed it, `sent` one for everything it asked for."""

    count: int = 0
    history: list[tuple[int, str]] = []  # noqa: RUF012 - a state field's default is copied
    sent: list[tuple[int, str, str, str, str, str, str]] = []  # noqa: RUF012

    @command
    def spread(self, order: str, seed: int, fan: int, actors: int) -> int:
        """Send `fan` messages."""
        number = self._turn_of(f"spread {order}")
        for place, step in enumerate(steps(seed, fan, actors)):
            self._carry_out(number, f"{order}.{place}", step)
        return number

    @command
    def note(self, tag: str) -> int:
        """Nothing but state, so it shares a transaction with others."""
        return self._turn_of(tag)

    @command(sql=True)
    def book(self, tag: str) -> int:
        """A row of its own beside the state."""
        number = self._turn_of(tag)
        self.connection.execute(insert(effects).values(tag=tag, actor=self.id, number=number))
        return number

    @command
    def scribble(self, tag: str) -> int:
        """As `book`, but nobody was told."""
        number = self._turn_of(tag)
        self.connection.execute(insert(effects).values(tag=tag, actor=self.id, number=number))
        return number

    @command
    def pass_on(self, tag: str, seed: int, actors: int) -> int:
        """Send on."""
        number = self._turn_of(tag)
        for place, step in enumerate(steps(seed, 2, actors, deeper=False)):
            self._carry_out(number, f"{tag}.{place}", step)
        return number

    @command
    def refuse(self, tag: str) -> int:
        """Keep a receipt and nothing else: neither state nor what it asked for."""
        number = self._turn_of(tag)
        self.send(self.actor(Node, self.id).note, f"{tag}!{uuid.uuid4()}")
        raise Refused(tag=tag if number else "")

    @command
    def stumble(self, tag: str) -> int:
        """Fail one time in three, and leave nothing behind that time."""
        number = self._turn_of(tag)
        if random.random() < 0.33:
            self.send(self.actor(Node, self.id).note, f"{tag}!{uuid.uuid4()}")
            raise ArithmeticError("as it happens")
        return number

    def _turn_of(self, what: str) -> int:
        ran(what)
        self.count += 1
        self.history.append((self.count, what))
        if is_noted(what):
            self.emit(Noted(tag=what, number=self.count))
        return self.count

    def _carry_out(self, number: int, tag: str, step: Step) -> None:
        if step.verb == "cancel":
            self.cancel(step.key)
            self.sent.append((number, "cancel", "", "", "", "", step.key))
            return
        target, values = self.actor(receiver(step), step.target), arguments(step, tag)
        send: Callable[..., str] = self.send
        if step.delay_ms:
            send = self.after(timedelta(milliseconds=step.delay_ms), key=step.key or None).send
        id = send(getattr(target, step.member), **values)
        self.sent.append((number, step.verb, tag, id, step.target, step.member, step.key))


def receiver(step: Step) -> type[Actor]:
    """The type that a step is sent to."""
    return Till if step.member in CHARGES else Node


def arguments(step: Step, tag: str) -> dict[str, Any]:
    """What a receiver is given."""
    if step.member != "pass_on":
        return {"tag": tag}
    drawn = random.Random(tag)
    return {"tag": tag, "seed": drawn.randrange(2**31), "actors": 200}


class Canary(Actor):
    """Ticks as long as anything moves."""

    count: int = 0
    resting: bool = False

    @command(sql=True)
    def tick(self, number: int) -> None:
        """Be alive, and be so again in a moment."""
        self.count += 1
        self.connection.execute(insert(ticks).values(canary=self.id, number=number, at=func.clock_timestamp()))
        if not self.resting:
            self.after(timedelta(seconds=BEAT), key="tick").send(self.tick, number + 1)

    @command
    def rest(self) -> None:
        """Tick no more."""
        self.resting = True
        self.cancel("tick")


EARLIER = (Node, Till, Canary, Listener)
"""What an earlier release knows: nobody asks to follow anybody."""

ACTORS = (*EARLIER, Follower)
