"""What users get wrong: both checkers must complain on every marked line, and nowhere else. It is read, never run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from akter import Actor, Akter, Attempt, Cancellation, DeadLetter, Event, Job, Payload, Rejection, Retry, User, command, cron, field, query


class Line(Payload):
    sku: str
    quantity: int = 1


class Placed(Event):
    order: str
    total: int


class Refused(Rejection):
    order: str
    code: int = 0


class Payment(Payload):
    charge_id: str


def charge_card(attempt: Attempt, customer: str, amount: int) -> Payment:
    return Payment(charge_id=f"{customer}{amount}")


def without_attempt(customer: str, amount: int) -> Payment:
    return Payment(charge_id=f"{customer}{amount}")


class Counter(Actor):
    count: int = 0
    names: list[str] = field(default_factory=list[str])

    @command
    def increment(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @query
    def value(self) -> int:
        return self.count


class Shipment(Actor):
    @command
    def open(self, order: str, skus: list[str]) -> None: ...


class Alarm(Actor):
    @cron("0 3 * * *")  # expect-error: a tick brings no arguments
    def ring(self, loud: bool) -> None: ...

    @cron(every=60)  # expect-error: a timedelta
    def tick(self) -> None: ...

    @cron("0 3 * * *", every=timedelta(hours=1))  # expect-error: one of them
    def tock(self) -> None: ...

    @cron("0 3 * * *", tz=2)  # expect-error: the name of a zone
    def wake(self) -> None: ...


class Order(Actor):
    status: str = "new"
    wrong: int = "0"  # expect-error: a default of another type
    charge = Job(charge_card)
    broken = Job(without_attempt)  # expect-error: the first parameter is the attempt
    loose = Job(charge_card, timeout="30")  # expect-error: seconds are numbers
    retried = Job(charge_card, retry=Retry(times=3))  # expect-error: attempts, not times
    placed = Job(charge_card, isolation="fiber")  # expect-error: thread or process

    @command
    def place(self, customer: str, lines: list[Line]) -> int:
        self.status = 5  # expect-error: another type
        self.stauts += "x"  # expect-error: misspelt
        self.emit(Line(sku="a"))  # expect-error: no event
        self.emit(Placed(order="x", totl=1))  # expect-error: misspelt field
        self.emit(Placed(order="x"))  # expect-error: a field is missing
        self.emit(Placed(order="x", total="1"))  # expect-error: another type
        self.enqueue(self.charge, customer="ada", amount="12")  # expect-error: another type
        self.enqueue(self.charge, customer="ada")  # expect-error: an argument is missing
        self.enqueue(self.charge, "ada", 1, "EUR")  # expect-error: one argument too many
        self.enqueue(self.charge, customer="ada", amont=12)  # expect-error: misspelt argument
        self.enqueue(charge_card, "ada", 12)  # expect-error: a function is no job
        self.enqueue(self.chrage, "ada", 12)  # expect-error: misspelt job
        self.send(self.actor(Shipment, "s").open, order="o")  # expect-error: an argument is missing
        self.send(self.actor(Shipment, "s").open, order="o", skus=["a", 5])  # expect-error: another type
        self.send(self.actor(Shipment, "s").opne, order="o", skus=[])  # expect-error: misspelt command
        self.send(self.actor(Shipment, "s"), order="o", skus=[])  # expect-error: a handle is no command
        self.send("open", order="o", skus=[])  # expect-error: a name is no command
        self.actor(Line, "l")  # expect-error: no actor
        self.actor(Shipment, 5)  # expect-error: ids are text
        self.mint(Line)  # expect-error: no actor
        self.mint("Shipment")  # expect-error: a class, not its name
        self.mint(Shipment, "s")  # expect-error: the id is made
        self.send(self.mint(Shipment).open, order="o")  # expect-error: an argument is missing
        self.after(30).send(self.expire)  # expect-error: a timedelta
        self.after(datetime.now(UTC)).send(self.expire)  # expect-error: a timedelta
        self.after(timedelta(1), "hold").send(self.expire)  # expect-error: the key has a name
        self.after(timedelta(1)).send(self.expire, 5)  # expect-error: one argument too many
        self.after(timedelta(1)).enqueue(self.charge, "ada", "12")  # expect-error: another type
        self.after(timedelta(1)).emit(Placed(order="x", total=1))  # expect-error: events happen now
        self.at(timedelta(1)).send(self.expire)  # expect-error: a datetime
        self.cancel(5)  # expect-error: keys are text
        if not lines:
            raise Refused(ordre="x")  # expect-error: misspelt field
        if len(lines) > 5:
            raise Refused(order=5)  # expect-error: another type
        if len(lines) > 4:
            raise Refused("x")  # expect-error: fields have names
        return customer  # expect-error: another result

    @charge.on_success  # expect-error: the job returns a Payment
    def charged(self, payment: str) -> None: ...

    @charge.on_dead_letter  # expect-error: a DeadLetter
    def charge_failed(self, letter: Payment) -> None: ...

    @charge.on_cancelled  # expect-error: a Cancellation
    def charge_cancelled(self, letter: DeadLetter) -> None: ...

    @loose.on_success  # expect-error: one argument
    def lost(self) -> None: ...

    @loose.on_dead_letter  # expect-error: one argument
    def lost_again(self, letter: DeadLetter, more: int) -> None: ...

    @loose.on_cancelled  # expect-error: returns nothing
    def lost_for_ever(self, cancellation: Cancellation) -> int:
        return 1

    @command
    def expire(self) -> None: ...

    @query
    def summary(self) -> tuple[str, int]:
        return self.status, 1

    @query
    def history(self) -> list[int]:
        self.events(Line)  # expect-error: no event
        self.events(Placed, after=5)  # expect-error: cursors are text
        self.events(Placed, 5)  # expect-error: the cursor has a name
        self.event_cursor = "5"  # expect-error: it is read
        return [entry.event.totle for entry in self.events(Placed)]  # expect-error: misspelt field

    @command(intern=True)  # expect-error: misspelt option
    def misspelt(self) -> None: ...

    @command(migrations=[len])  # expect-error: a mapping from a mapping
    def changed(self) -> None: ...

    @command(aliases=[5])  # expect-error: names are text
    def renamed(self) -> None: ...

    @query(creates=True)  # expect-error: a query creates nothing
    def look(self) -> None: ...


class Misspelt(Actor, singelton=True): ...  # expect-error: misspelt option


class Moved(Event, nmae="moved"): ...  # expect-error-pyright: misspelt option


class Shut(Rejection, alias=["Closed"]): ...  # expect-error: misspelt option


class Nearby(Actor, placement="nearby"): ...  # expect-error: actor or tenant


def use(engine: Engine, anything: Any) -> None:
    app = Akter(engine, actors=[Counter, Order, Shipment])
    Akter(engine)  # expect-error: no actors
    Akter(engine, actors=[Line])  # expect-error: no actor
    app.actor(Counter, "v").increment(by="two")  # expect-error: another type
    app.actor(Counter, "v").increment(buy=2)  # expect-error: misspelt argument
    app.actor(Counter, "v").increment(1, 2)  # expect-error: one argument too many
    app.actor(Order, "o").place("ada")  # expect-error: an argument is missing
    app.actor(Order, "o").plaice("ada", [])  # expect-error: misspelt command
    app.actor(Order, "o").place("ada", ["kettle"])  # expect-error: another type
    app.actor(Order, "o").place("ada", [{"sku": "kettle"}])  # expect-error: a dict is no Line
    app.actor(Line, "l")  # expect-error: no actor
    app.actor(Counter, 5)  # expect-error: ids are text
    app.actor("Counter", "v")  # expect-error: a class, not its name
    text: str = app.actor(Counter, "v").increment()  # expect-error: another result
    size: tuple[int, int] = app.actor(Order, "o").summary()  # expect-error: another result
    app.actor(Counter, "v").value(5)  # expect-error: one argument too many
    app.actor(Counter, "v").value() + "x"  # expect-error: a number
    app.new(Line)  # expect-error: no actor
    app.events(app.actor(Order, "o"), Line)  # expect-error: no event
    app.events(Order, Placed)  # expect-error: a handle, not the class
    print(app.events(app.actor(Order, "o"), Placed)[0].total)  # expect-error: the event is in the entry
    app.command_id(5)  # expect-error: text, or a minted id
    app.acting_as("ada")  # expect-error: a caller
    User(5)  # expect-error: subjects are text
    app.send(app.actor(Order, "o").place, "ada")  # expect-error: an argument is missing
    app.send(app.actor(Order, "o").place, "ada", "kettle")  # expect-error: another type
    app.send(app.actor(Order, "o"), "ada")  # expect-error: a handle is no command
    sent: int = app.send(app.actor(Order, "o").expire)  # expect-error: an id is text
    app.within(anything).send(app.actor(Order, "o").place, "ada", lines=5)  # expect-error: another type
    app.within(anything).enqueue(Order.charge, "ada", 5)  # expect-error: jobs belong to a turn
    app.within(anything).after(5).send(app.actor(Order, "o").expire)  # expect-error: a timedelta
    print(text, size, sent)


def build() -> None:
    Counter(count="x")  # expect-error: another type
    Counter(cuont=1)  # expect-error: misspelt field
    Counter(1)  # expect-error: fields have names
    Counter().cuont = 1  # expect-error: misspelt field
    Counter().count = "x"  # expect-error: another type
    Counter().id = "x"  # expect-error: given when it is made
    Line("kettle")  # expect-error: fields have names
    Line(quantity=1)  # expect-error: a field is missing
    Line(sku="a").sku = "b"  # expect-error: frozen
    Placed(order="x", total=1).total = 2  # expect-error: frozen
    Order.charge(customer="ada", amount="12")  # expect-error: another type
    Order.charge(customer="ada")  # expect-error: an argument is missing
    print(Order().charged(Payment(charge_id="x")).status)  # expect-error: returns nothing
    Retry(attempts="4")  # expect-error: a number
    charge_card("ada", 5)  # expect-error: the attempt is missing
