"""A message to another actor and a timer, both committed with the command that asks for them.

Run it twice: the second time the order is known already, and its refusal is the first one's.
"""

from __future__ import annotations

import sys
from datetime import timedelta

from akter import Actor, Akter, Rejection, Runner, command, query


class AlreadyPlaced(Rejection):
    """The order was placed before."""

    order: str


class Shipment(Actor):
    """What leaves the warehouse for one order; its id is the order's."""

    status: str = "unknown"

    @command(internal=True)
    def open(self, customer: str) -> None:
        """Get it ready."""
        self.status = f"ready for {customer}"

    @query
    def summary(self) -> str:
        """Say how far it is."""
        return self.status


class Order(Actor):
    """One customer's order, held for a second."""

    status: str = "new"

    @command
    def place(self, customer: str) -> None:
        """Place it, open the shipment, and let the order expire unless it is paid."""
        if self.status != "new":
            raise AlreadyPlaced(order=self.id)
        self.status = "placed"
        self.send(self.actor(Shipment, self.id).open, customer=customer)
        self.after(timedelta(seconds=1), key="hold").send(self.expire)

    @command
    def pay(self) -> None:
        """Pay it, and take back the timer."""
        self.status = "paid"
        self.cancel("hold")

    @command(internal=True)
    def expire(self) -> None:
        """Let go of what nobody paid."""
        if self.status == "placed":
            self.status = "expired"

    @query
    def summary(self) -> str:
        """Say how far it is."""
        return self.status


def main(target: str) -> None:
    """Place two orders, pay one, and wait until the timer of the other has come."""
    with Akter(target, actors=[Order, Shipment]) as app:
        app.migrate()
        paid, forgotten = app.actor(Order, "o-1"), app.actor(Order, "o-2")
        for order in (paid, forgotten):
            try:
                order.place("ada")
            except AlreadyPlaced as refusal:
                print(refusal)
        paid.pay()
        with Runner(app) as runner:
            while forgotten.summary() != "expired" or not app.actor(Shipment, "o-1").summary().startswith("ready"):
                runner.wait(0.05)
        print(f"o-1 is {paid.summary()} and {app.actor(Shipment, 'o-1').summary()}; o-2 is {forgotten.summary()}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "embedded:./data")
