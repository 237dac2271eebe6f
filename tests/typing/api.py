"""What users write: both checkers must accept every line, and infer what is asserted. It is read, never run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal, assert_type

from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from akter import (
    Access,
    Actor,
    Akter,
    Anonymous,
    Attempt,
    Cancellation,
    CommandId,
    DeadLetter,
    Entry,
    Event,
    Job,
    Payload,
    Rejection,
    Retry,
    System,
    User,
    command,
    cron,
    field,
    query,
)
from akter.testing import outbox


class Line(Payload):
    sku: str
    quantity: int
    price: int = 0


class GiftLine(Line):
    note: str = ""
    tags: list[str] = field(default_factory=list[str])


@dataclasses.dataclass
class Point:
    x: int


class OrderPlaced(Event, name="order.placed", aliases=["OrderPlaced"], migrations=[lambda stored: stored]):
    order: str
    total: int


class AlreadyPlaced(Rejection):
    """The order was placed before."""

    order: str
    since: datetime | None = None


class Closed(Rejection, name="closed", aliases=["Shut"]):
    """We are closed."""


class Payment(Payload):
    charge_id: str


def charge_card(attempt: Attempt, customer: str, amount: int, *, currency: str = "EUR") -> Payment:
    """Charge the customer."""
    assert_type(attempt.job_id, str)
    assert_type(attempt.remaining(), float)
    attempt.raise_if_cancelled()
    return Payment(charge_id=f"{attempt.job_id}{customer}{amount}{currency}")


def fetch(attempt: Attempt) -> None: ...


def staff_only(access: Access) -> bool:
    return isinstance(access.caller, System) or access.kind == "query"


class Shipment(Actor, placement="tenant"):
    skus: list[str] = field(default_factory=list[str])
    status: Literal["pending", "ready"] = "pending"

    @command(internal=True, creates=True)
    def open(self, skus: list[str], *, fast: bool = False) -> None:
        self.skus = skus


class Clock(Actor):
    @cron("0 3 * * *", tz="Europe/Berlin")
    def strike(self) -> None: ...

    @cron(every=timedelta(minutes=5))
    @command
    def tick(self) -> int:
        return 1

    @cron("0 4 * * *")
    def close_day(self, due: datetime) -> None: ...


class Front(Actor, singleton=True):
    doors: int = 1

    @command
    def knock(self, times: int = 1) -> bool:
        return times == self.doors


class Order(
    Actor, name="Order", aliases=["OldOrder"], migrations=[lambda stored: {**stored, "total": 0}], max_state_bytes=1000, access=staff_only
):
    """One customer's order and its payment."""

    LIMIT: ClassVar[int] = 5
    status: str = "new"
    total: int = 0
    lines: list[Line] = field(default_factory=list[Line])
    origin: Point | None = None

    charge = Job(charge_card, retry=Retry(attempts=4, base=1.0, cap=256.0), timeout=30.0, lease=60.0, concurrency=2, isolation="process")
    fetch = Job(fetch, migrations=[lambda stored: stored])

    @command
    def place(self, customer: str, lines: Sequence[Line]) -> int:
        assert_type(self.id, str)
        if self.status != "new":
            raise AlreadyPlaced(order=self.id, since=datetime.now(UTC))
        if not lines:
            raise Closed
        self.status, self.total = "awaiting payment", sum(line.quantity * line.price for line in lines)
        self.emit(OrderPlaced(order=self.id, total=self.total))
        assert_type(self.events(OrderPlaced), list[Entry[OrderPlaced]])
        assert_type(self.event_cursor, str)
        assert_type(self.enqueue(self.charge, customer=customer, amount=self.total), str)
        self.enqueue(self.charge, customer, self.total, currency="USD")
        self.enqueue(self.fetch)
        other = self.actor(Shipment, self.id)
        assert_type(other, Shipment)
        assert_type(self.send(other.open, skus=[line.sku for line in lines]), str)
        self.send(self.actor(Front).knock)
        self.send(self.expire)
        self.after(timedelta(minutes=30), key="hold").send(self.expire)
        self.after(timedelta(0)).send(other.open, ["a"], fast=True)
        assert_type(self.at(datetime(2030, 1, 1, tzinfo=UTC), key="later").enqueue(self.charge, customer, 5), str)
        self.cancel("hold")
        child = self.mint(Shipment)
        assert_type(child, Shipment)
        assert_type(self.send(child.open, skus=[], fast=True), str)
        assert_type(self.mint(Shipment).id, str)
        return self.total

    @charge.on_success
    def charged(self, payment: Payment) -> None:
        self.status = payment.charge_id

    @charge.on_dead_letter
    def charge_failed(self, letter: DeadLetter) -> None:
        assert_type(letter.ambiguous, bool)
        self.status = "unknown" if letter.ambiguous else "unpaid"

    @charge.on_cancelled
    def charge_cancelled(self, cancellation: Cancellation) -> None:
        self.status = cancellation.outcome

    @fetch.on_success
    def fetched(self, nothing: None) -> None: ...

    @command(internal=True, timeout=2.5, aliases=["timed_out"], sql=True, migrations=[lambda stored: {**stored, "late": True}])
    def expire(self) -> None:
        assert_type(self.connection, Connection)
        assert_type(self.session, Session)
        self.connection.execute(text("select 1"))

    @query
    def summary(self) -> tuple[str, int]:
        return self.status, self.total

    @query
    def totals(self, after: str | None = None) -> list[tuple[str, int]]:
        page = self.events(OrderPlaced, after=after, limit=100)
        return [(entry.cursor, entry.event.total) for entry in page if entry.timestamp < datetime.now(UTC)]

    @query(timeout=1.0)
    def count(self, at_least: int = 0) -> int:
        return max(at_least, len(self.lines))


class RushOrder(Order):
    rush: bool = True

    @command
    def place(self, customer: str, lines: Sequence[Line]) -> int:
        return super().place(customer, lines)


def use(engine: Engine) -> None:
    app = Akter(engine, actors=[Order, Shipment, Front, RushOrder, Clock])
    assert_type(app.actor(Clock, "c").tick(), int)
    order = app.actor(Order, "o-1")
    assert_type(order, Order)
    assert_type(order.place("ada", [Line(sku="kettle", quantity=1, price=3900)]), int)
    assert_type(order.place(customer="ada", lines=[GiftLine(sku="kettle", quantity=1, note="!")]), int)
    assert_type(order.summary(), tuple[str, int])
    assert_type(order.count(at_least=1), int)
    assert_type(order.id, str)
    assert_type(app.actor(Front).knock(), bool)
    assert_type(app.new(Order), Order)
    assert_type(app.new(RushOrder).place("ada", []), int)
    with app.command_id("key-1"), app.acting_as(User("ada")), app.tenant("acme"):
        order.expire()
    with app.command_id(app.mint_command_id(), scope="shop"), app.acting_as(Anonymous()):
        order.expire()
    assert_type(app.mint_command_id(), CommandId)
    assert_type(app.events(order, OrderPlaced), list[Entry[OrderPlaced]])
    for entry in app.events(order, OrderPlaced, after="3", limit=10):
        assert_type((entry.cursor, entry.event, entry.command_id, entry.timestamp), tuple[str, OrderPlaced, str, datetime])
    assert_type(app.send(order.place, "ada", [Line(sku="kettle", quantity=1)]), str)
    assert_type(app.send(app.actor(Front).knock, times=2), str)
    with engine.begin() as connection:
        staging = app.within(connection)
        assert_type(staging.send(order.place, customer="ada", lines=[]), str)
        assert_type(staging.after(timedelta(hours=1)).send(order.expire), str)
        assert_type(staging.at(datetime(2030, 1, 1, tzinfo=UTC)).send(order.expire), str)
    with Session(engine) as session, session.begin():
        app.within(session).send(order.expire)


def test_placing_charges_the_customer() -> None:
    order = Order(status="new", total=3)
    assert_type(order.place("ada", [Line(sku="kettle", quantity=1)]), int)
    call = Order.charge(customer="ada", amount=3900)
    assert call == order.charge("ada", 3900, currency="EUR")
    assert call in outbox(order)
    order.charged(Payment(charge_id="ch_1"))
    assert_type(order.status, str)
    assert_type(order.lines, list[Line])
    assert_type(charge_card(Attempt(job_id="j"), "ada", 1), Payment)
    refused = AlreadyPlaced(order="x")
    assert_type(refused.order, str)
    assert_type(OrderPlaced(order="x", total=1).total, int)
    assert RushOrder(rush=False, total=1).total
