"""The shop's actors: what a customer owes, what an order is waiting for, and what leaves the warehouse."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Literal

from akter import Actor, Akter, DeadLetter, Job, Payload, Rejection, Retry, command, field

from .gateway import charge_card

PACKING = timedelta(seconds=0.5)
ENDED = ("shipped", "unpaid", "unknown")
"""What an order may be when nothing happens to it any more."""

LEASE = 4.0
"""Seconds after which a worker that says nothing is taken for dead, and another one charges again."""


class AlreadyPlaced(Rejection):
    """The order was placed before."""

    order: str


class Line(Payload):
    """Some of one thing; the price of each is in cents."""

    item: str
    quantity: int
    price: int


class Customer(Actor):
    """What a customer ordered and what became of that, in cents."""

    ordered: int = 0
    paid: int = 0
    unpaid: int = 0
    unknown: int = 0

    @command(internal=True)
    def order(self, total: int) -> None:
        """Note an order."""
        self.ordered += total

    @command(internal=True)
    def settle(self, outcome: Literal["paid", "unpaid", "unknown"], total: int) -> None:
        """Note what became of one."""
        if outcome == "paid":
            self.paid += total
        elif outcome == "unpaid":
            self.unpaid += total
        else:
            self.unknown += total


class Shipment(Actor):
    """What leaves the warehouse for an order, whose id it has."""

    items: list[str] = field(default_factory=list)
    status: str = "new"

    @command(internal=True)
    def open(self, items: list[str]) -> None:
        """Pack it, which takes a moment."""
        self.items, self.status = items, "packing"
        self.after(PACKING).send(self.leave)

    @command(internal=True)
    def leave(self) -> None:
        """Send it off, and tell the order."""
        self.status = "sent"
        self.send(self.actor(Order, self.id).shipped)


class Order(Actor):
    """A customer's order: placed, then paid and shipped, or unpaid, or unknown if nobody can say whether it was paid."""

    status: str = "new"
    customer: str = ""
    total: int = 0
    lines: list[Line] = field(default_factory=list)
    charge_id: str = ""
    charge = Job(charge_card, retry=Retry(attempts=4, base=0.5, cap=4.0), timeout=3.0, lease=LEASE)

    @command
    def place(self, customer: str, lines: list[Line]) -> None:
        """Place it; its payment is a job, which begins when this is committed."""
        if self.status != "new":
            raise AlreadyPlaced(order=self.id)
        self.status, self.customer, self.lines = "placed", customer, lines
        self.total = sum(line.quantity * line.price for line in lines)
        self.send(self.actor(Customer, customer).order, total=self.total)
        self.enqueue(self.charge, order=self.id, customer=customer, amount=self.total)

    @charge.on_success
    def charged(self, charge_id: str) -> None:
        """The provider has charged."""
        self.status, self.charge_id = "paid", charge_id
        self.send(self.actor(Customer, self.customer).settle, outcome="paid", total=self.total)
        self.send(self.actor(Shipment, self.id).open, items=[line.item for line in self.lines])

    @charge.on_dead_letter
    def not_charged(self, letter: DeadLetter) -> None:
        """The provider has not charged, or there is no telling: then nothing is shipped, and somebody has to ask the provider."""
        outcome: Literal["unpaid", "unknown"] = "unknown" if letter.ambiguous else "unpaid"
        self.status = outcome
        self.send(self.actor(Customer, self.customer).settle, outcome=outcome, total=self.total)

    @command(internal=True)
    def shipped(self) -> None:
        """It has left the warehouse."""
        self.status = "shipped"


def shop(url: str | None = None) -> Akter:
    """The application, on the database at `url` or at `$SHOP_DATABASE`."""
    return Akter(url or os.environ["SHOP_DATABASE"], actors=[Order, Shipment, Customer])
