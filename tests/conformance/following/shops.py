"""The actors of the subscriptions' tests: shops that publish, and all kinds of those that follow them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from nodes import Node as Node

from akter import Actor, Akter, CursorRejected, Delivered, Event, Gap, Rejection, command, subscription
from akter.testing import inspect


class Told:
    """How often each handler was told each event, and what is to happen inside it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.times: Counter[tuple[str, str, str]] = Counter()
        self.order: list[tuple[str, str, str]] = []
        self.on_event: Callable[[str, str, str], None] = lambda who, shop, item: None
        self.on_route: Callable[[Any], str] = lambda placed: placed.customer

    def __call__(self, who: str, shop: str, item: str) -> None:
        self.times[who, shop, item] += 1
        self.order.append((who, shop, item))
        self.on_event(who, shop, item)


told = Told()


class Unwanted(Rejection):
    """The subscriber does not want this item."""

    item: str


class Placed(Event):
    """An order was placed."""

    item: str
    customer: str = "ada"


class Shipped(Event):
    """An order left the shop."""

    item: str


class Painted(Event):
    """Nobody follows this."""

    colour: str


class Shop(Actor):
    """Publishes."""

    placed: int = 0

    @command
    def place(self, *, items: list[str], customer: str = "ada") -> None:
        self.placed += len(items)
        for item in items:
            self.emit(Placed(item=item, customer=customer))

    @command
    def ship(self, item: str) -> None:
        self.emit(Shipped(item=item))

    @command
    def paint(self, colour: str) -> None:
        self.emit(Painted(colour=colour))

    @command
    def place_and_refuse(self, item: str) -> None:
        self.emit(Placed(item=item))
        raise Unwanted(item=item)

    @command
    def place_and_break(self, item: str) -> None:
        self.emit(Placed(item=item))
        raise ValueError("broken")


class Customer(Actor):
    """Routed by the event."""

    items: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @subscription(Placed, source=Shop, to=lambda placed: told.on_route(placed))
    def ordered(self, placed: Placed, of: Delivered) -> None:
        told(f"customer {self.id}", of.source, placed.item)
        self.items = [*self.items, f"{of.source}:{of.cursor}:{placed.item}"]


class Branch(Actor):
    """Routed by the source's id."""

    items: list[str] = []  # noqa: RUF012

    @subscription(Placed, Shipped, source=Shop, to=lambda event, shop: f"branch of {shop}")
    def happened(self, event: Placed | Shipped) -> None:
        told(self.id, "", event.item)
        self.items = [*self.items, event.item]


class Books(Actor, singleton=True):
    """One for all shops."""

    items: list[str] = []  # noqa: RUF012
    gaps: list[str] = []  # noqa: RUF012

    @subscription(Placed, to="singleton")
    def book(self, placed: Placed | Gap) -> None:
        if isinstance(placed, Gap):
            self.gaps = [*self.gaps, f"{placed.source}:{placed.after}-{placed.resume_after}"]
        else:
            told("books", "", placed.item)
            self.items = [*self.items, placed.item]


class Watcher(Actor):
    """Follows the shops it asks for."""

    items: list[str] = []  # noqa: RUF012
    gaps: list[str] = []  # noqa: RUF012
    rejected: list[str] = []  # noqa: RUF012

    @subscription(Placed, source=Shop)
    def told(self, event: Placed | Gap | CursorRejected, of: Delivered) -> None:
        if isinstance(event, Gap):
            told(f"watcher {self.id}", event.source, f"gap {event.after}-{event.resume_after}")
            self.gaps = [*self.gaps, f"{event.source}:{event.after}-{event.resume_after}"]
        elif isinstance(event, CursorRejected):
            self.rejected = [*self.rejected, f"{event.source}:{event.cursor}"]
        else:
            told(f"watcher {self.id}", of.source, event.item)
            self.items = [*self.items, f"{of.source}:{event.item}"]

    @command
    def watch(self, shop: str, since: str = "now") -> None:
        self.subscribe(self.told, self.actor(Shop, shop), since=since)

    @command
    def watch_and_refuse(self, shop: str) -> None:
        self.subscribe(self.told, self.actor(Shop, shop))
        raise Unwanted(item=shop)

    @command
    def watch_and_break(self, shop: str) -> None:
        self.subscribe(self.told, self.actor(Shop, shop))
        raise ValueError("broken")

    @command
    def forget(self, shop: str) -> None:
        self.unsubscribe(self.told, self.actor(Shop, shop))


EVERYBODY = (Shop, Customer, Branch, Books, Watcher)


def state(app: Akter, handle: Any) -> dict[str, Any]:
    """An actor's fields; those of one that does not exist are empty."""
    return inspect(app, handle).state or {"items": [], "gaps": [], "rejected": []}


def items(app: Akter, kind: Any, id: str | None = None) -> list[str]:
    """What a subscriber was told of."""
    return list(state(app, app.actor(kind, id))["items"])
