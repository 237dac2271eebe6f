"""The stock of each product is an actor: orders for it are reserved one after the other, in whatever process."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from sqlalchemy import NullPool, text

from akter import Actor, Akter, command, query
from akter.contrib.django import engine, schema

DECIDED = text("UPDATE shop_order SET status = :status WHERE id = :id")


class Stock(Actor):
    """What is left of one product."""

    left: int = 0

    @command
    def deliver(self, quantity: int) -> int:
        """Put more of it on the shelf."""
        self.left += quantity
        return self.left

    @command(sql=True)
    def reserve(self, order: int, quantity: int) -> None:
        """Take it for an order, if there is enough; the order's row and the stock commit together."""
        enough = quantity <= self.left
        if enough:
            self.left -= quantity
        self.connection.execute(DECIDED, {"id": order, "status": "reserved" if enough else "sold out"})

    @query
    def count(self) -> int:
        """Say how much is left."""
        return self.left


# Django drops its test database in the end, and a connection that waits in a pool would keep it from that.
pool: dict[str, Any] = {"poolclass": NullPool} if settings.TESTING else {}
app = Akter(engine(**pool), actors=[Stock], schema=schema(), hint=not settings.TESTING)
