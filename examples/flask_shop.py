"""A Flask shop: the row of an order and the message to its stock commit together, and the stock decides.

flask --app akter.examples.flask_shop init      the tables, akter's and its own
flask --app akter.examples.flask_shop run       the web server
akter run akter.examples.flask_shop:shop        the relay
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, abort, request
from sqlalchemy import Column, Identity, Integer, MetaData, Table, Text, insert, select, update

from akter import Actor, Akter, CommandConflict, Rejection, Unavailable, command, query

metadata = MetaData()
orders = Table(
    "flask_order",
    metadata,
    Column("id", Integer, Identity(), primary_key=True),
    Column("customer", Text, nullable=False),
    Column("sku", Text, nullable=False),
    Column("quantity", Integer, nullable=False),
    Column("status", Text, nullable=False, default="placed"),
)


class ShelfIsFull(Rejection):
    """There is no room for so many."""

    room: int


class Stock(Actor):
    """What is left of one product."""

    left: int = 0

    @command
    def deliver(self, quantity: int) -> int:
        """Put more of it on the shelf, which holds a hundred."""
        if self.left + quantity > 100:
            raise ShelfIsFull(room=100 - self.left)
        self.left += quantity
        return self.left

    @command(sql=True)
    def reserve(self, order: int, quantity: int) -> None:
        """Take it for an order, if there is enough; the order's row and the stock commit together."""
        enough = quantity <= self.left
        if enough:
            self.left -= quantity
        self.connection.execute(update(orders).where(orders.c.id == order).values(status="reserved" if enough else "sold out"))

    @query
    def count(self) -> int:
        """Say how much is left."""
        return self.left


shop = Akter(os.environ.get("AKTER_DATABASE_URL", "embedded:./data"), actors=[Stock])
web = Flask(__name__)


@web.cli.command("init")
def init() -> None:
    """Create the tables."""
    shop.migrate()
    metadata.create_all(shop.engine)


@web.post("/stock/<sku>")
def deliver(sku: str) -> dict[str, Any]:
    """A command, in the request: the same Idempotency-Key gets the same answer, and delivers once."""
    key = request.headers.get("Idempotency-Key") or abort(400, "say an Idempotency-Key, so that the request can be repeated")
    with shop.command_id(key):
        return {"left": shop.actor(Stock, sku).deliver(quantity=int(request.form["quantity"]))}


@web.post("/orders")
def place() -> tuple[dict[str, Any], int]:
    """A row and a message, in one transaction of the request; a runner delivers the message."""
    customer, sku, quantity = request.form["customer"], request.form["sku"], int(request.form["quantity"])
    row = insert(orders).values(customer=customer, sku=sku, quantity=quantity).returning(orders.c.id)
    with shop.engine.begin() as connection:
        order = connection.execute(row).scalar_one()
        shop.within(connection).send(shop.actor(Stock, sku).reserve, order=order, quantity=quantity)
    return {"id": order, "status": "placed"}, 201


@web.get("/orders/<int:order>")
def show(order: int) -> tuple[dict[str, Any], int]:
    """What became of an order."""
    with shop.engine.connect() as connection:
        row = connection.execute(select(orders).where(orders.c.id == order)).mappings().first()
    return (dict(row), 200) if row else ({"error": "no such order"}, 404)


@web.errorhandler(Rejection)
def refused(rejection: Rejection) -> tuple[dict[str, Any], int]:
    """An actor said no: nothing was changed."""
    return {"error": type(rejection).__name__, **rejection.fields}, 409


@web.errorhandler(CommandConflict)
def used(conflict: CommandConflict) -> tuple[dict[str, Any], int]:
    """The Idempotency-Key was used for something else."""
    return {"error": str(conflict)}, 422


@web.errorhandler(Unavailable)
def away(problem: Unavailable) -> tuple[dict[str, Any], int, dict[str, str]]:
    """The database is away, or did not say whether it committed: the same request under the same key is safe."""
    return {"error": str(problem)}, 503, {"Retry-After": "5"}
