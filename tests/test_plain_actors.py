"""A constructed actor is a plain object: its methods run without a database, and what it asks for can be looked at."""

from __future__ import annotations

import copy
import math
import threading
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from akter.actor import Actor
from akter.command import command, query
from akter.errors import AkterError, InsideTurn, PayloadInvalid
from akter.intent import Cancel, Emit, Enqueue, Request, Send, When
from akter.job import Attempt, Cancellation, Cancelled, DeadLetter, Job, JobCall, Retry
from akter.payload import Event, Payload
from akter.rejection import Rejection, UnknownRejection, decode, encode
from akter.testing import outbox


class Line(Payload):
    sku: str
    quantity: int
    price: int


class OrderPlaced(Event):
    order: str
    total: int


class AlreadyPlaced(Rejection):
    """The order was placed before."""

    order: str


def charge_card(attempt: Attempt, customer: str, amount: int = 100) -> str:
    return f"{attempt.job_id}:{customer}:{amount}"


class Shipment(Actor):
    skus: list[str] = []  # noqa: RUF012

    @command
    def open(self, skus: list[str]) -> None:
        self.skus = skus


class Order(Actor):
    status: str = "new"
    total: int = 0
    charge = Job(charge_card, retry=Retry(attempts=2))
    refund = Job(charge_card)

    @command
    def place(self, customer: str, lines: list[Line]) -> int:
        if self.status != "new":
            raise AlreadyPlaced(order=self.id)
        self.status, self.total = "awaiting payment", sum(line.quantity * line.price for line in lines)
        self.emit(OrderPlaced(order=self.id, total=self.total))
        self.enqueue(self.charge, customer=customer, amount=self.total)
        self.send(self.actor(Shipment, self.id).open, skus=[line.sku for line in lines])
        self.after(timedelta(minutes=30), key="hold").send(self.expire)
        return self.total

    @charge.on_success
    def charged(self, charge_id: str) -> None:
        self.status = "paid"
        self.cancel("hold")

    @charge.on_dead_letter
    def charge_failed(self, letter: DeadLetter) -> None:
        self.status = "unknown" if letter.ambiguous else "unpaid"

    @charge.on_cancelled
    def charge_cancelled(self, cancellation: Cancellation) -> None:
        self.status = cancellation.outcome

    @command(internal=True)
    def expire(self) -> None:
        self.status = "expired"

    @query
    def summary(self) -> tuple[str, int]:
        return self.status, self.total


class Front(Actor, singleton=True):
    @command
    def knock(self) -> str:
        return self.id


KETTLE = Line(sku="kettle", quantity=1, price=3900)


def requests(actor: Actor) -> list[Request]:
    return cast(Any, actor)._turn.requests


def test_placing_charges_the_customer() -> None:
    order = Order()
    assert order.place("ada", [KETTLE]) == 3900
    assert order.summary() == ("awaiting payment", 3900)
    assert Order.charge(customer="ada", amount=3900) in outbox(order)
    order.charged("ch_1")
    assert order.status == "paid"
    assert requests(order)[-1] == Cancel("hold")


def test_what_was_asked_for_is_listed_in_order() -> None:
    order = Order()
    order.place("ada", [KETTLE])
    event, job, message, timer = requests(order)
    assert event == Emit(OrderPlaced(order="under-test", total=3900), b'{"order":"under-test","total":3900}')
    assert isinstance(job, Enqueue)
    assert (job.job, job.payload, job.when) == ("charge", b'{"customer":"ada","amount":3900}', When())
    assert isinstance(message, Send)
    assert (str(message.target), message.command, message.payload) == ("Shipment/under-test", "open", b'{"skus":["kettle"]}')
    assert isinstance(timer, Send)
    assert (timer.command, timer.when) == ("expire", When(delay_ms=1_800_000, key="hold"))


def test_a_job_call_equals_what_was_asked_for_whatever_way_it_is_written() -> None:
    order = Order()
    order.enqueue(order.charge, "ada")
    order.at(datetime(2030, 1, 1, tzinfo=UTC)).enqueue(order.charge, "eve", amount=5)
    assert Order.charge("ada") in outbox(order)
    assert Order.charge(customer="ada", amount=100) in outbox(order)
    assert Order.charge("eve", 5) in outbox(order)
    assert Order.charge("ada", 99) not in outbox(order)
    assert Order.refund("ada") not in outbox(order)
    assert outbox(order)[0] == Order.charge("ada")
    assert Order.charge("ada") == Order.charge(amount=100, customer="ada")
    assert Order.charge("ada") != Order.charge("eve")
    assert Order.charge("ada") != "charge"
    assert isinstance(Order.charge("ada"), JobCall)


def test_a_job_call_of_another_actor_with_the_same_names_is_another() -> None:
    class Other(Actor):
        charge = Job(charge_card)

    order = Order()
    order.enqueue(order.charge, "ada")
    assert Other.charge("ada") not in outbox(order)


def test_an_event_equals_what_was_emitted() -> None:
    order = Order()
    order.emit(OrderPlaced(order="x", total=1))
    assert OrderPlaced(order="x", total=1) in outbox(order)
    assert OrderPlaced(order="x", total=2) not in outbox(order)


def test_a_job_call_checks_its_arguments() -> None:
    with pytest.raises(TypeError, match=r"Order\.charge\(\): Missing required argument 'customer'"):
        Order.charge()  # type: ignore[call-arg]
    with pytest.raises(PayloadInvalid, match=r"Order\.charge\(\): Expected `int`, got `str` - at `\$\.amount`"):
        Order.charge("ada", "5")  # type: ignore[arg-type]


def test_what_is_asked_for_has_ids() -> None:
    order = Order()
    assert order.enqueue(order.charge, "ada") == "request-1"
    assert order.send(order.expire) == "request-2"
    assert order.after(timedelta(0)).send(order.expire) == "request-3"


def test_a_rejection_is_raised_as_it_is() -> None:
    order = Order(status="paid")
    with pytest.raises(AlreadyPlaced) as refused:
        order.place("ada", [])
    assert refused.value == AlreadyPlaced(order="under-test")
    assert str(refused.value) == "The order was placed before. (order='under-test')"
    assert requests(order) == []


def test_state_is_given_by_name_and_checked() -> None:
    assert Order(status="paid", total=3).summary() == ("paid", 3)
    with pytest.raises(TypeError, match=r"Order\(\) has no state field 'colour'"):
        Order(colour="red")  # type: ignore[call-arg]
    with pytest.raises(PayloadInvalid, match=r"the state of Order: Expected `int`, got `str` - at `\$\.total`"):
        Order(total="x")  # type: ignore[arg-type]


def test_state_is_declared() -> None:
    order = Order()
    with pytest.raises(AttributeError, match="Order has no state field 'totl': annotate it in the class, with a default"):
        order.totl = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="Order has no state field 'id'"):
        order.id = "x"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Order has no state field 'place'"):
        order.place = None  # type: ignore[assignment, method-assign]
    with pytest.raises(AttributeError, match="Order.total is state: assign its empty value instead of deleting it"):
        del order.total


def test_an_own_command_is_a_plain_method() -> None:
    order = Order()
    order.expire()
    assert order.status == "expired"
    assert requests(order) == []


def test_another_actors_command_is_sent_not_called() -> None:
    with pytest.raises(InsideTurn, match=r"use self.send\(...\)"):
        Order().actor(Shipment, "s-1").open(["x"])


def test_a_singleton_has_its_one_id() -> None:
    assert Front().knock() == "singleton"
    assert Order().actor(Front).id == "singleton"
    assert Order().id == "under-test"
    assert repr(Order()) == "<Order Order/under-test>"


def test_the_base_class_itself_is_no_actor() -> None:
    with pytest.raises(TypeError, match="Actor"):
        Actor()


def test_there_is_no_database() -> None:
    for name in ("connection", "session"):
        with pytest.raises(AkterError, match="a constructed actor has no database"):
            getattr(Order(), name)


def test_routes_are_plain_methods() -> None:
    order = Order()
    letter = DeadLetter(job_id="j", job="charge", attempts=2, cause="down", ambiguous=True)
    order.charge_failed(letter)
    assert order.status == "unknown"
    order.charge_cancelled(Cancellation(job_id="j", job="charge", attempts=1, outcome="succeeded"))
    assert order.status == "succeeded"


# -- wrong requests


def test_send_and_enqueue_check_what_they_are_given() -> None:
    order = Order()
    for wrong, said in [
        (lambda: order.send(order.summary), "Order.summary is a query"),
        (lambda: order.send(order.charged, "x"), "Order.charged is a route of a job"),
        (lambda: order.send(Order().expire), "constructed by hand"),
        (lambda: order.send(print), "takes a command"),
        (lambda: order.enqueue(charge_card, "ada"), r"enqueue\(...\) takes a Job bound in Order: self.enqueue\(self.charge, ...\)"),
        (lambda: Front().enqueue(order.charge, "ada"), r"enqueue\(...\) takes a Job bound in Front"),
        (lambda: order.enqueue(Job(charge_card), "ada"), "takes a Job bound in Order"),
        (
            lambda: order.enqueue(order.charge, "ada", key="k"),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
            r'no key: a key or a time stands before it, self.after\(timedelta\(seconds=0\), key="\.\.\."\)\.enqueue\(\.\.\.\)',
        ),
        (
            lambda: order.send(order.expire, after=5),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
            r"send\(\.\.\., after=\.\.\.\) takes the arguments of what it asks for, and no after",
        ),
        (lambda: order.enqueue(order.charge, "ada", 1, 2), r"Order\.charge\(\): Extra positional arguments"),
        (lambda: order.send(order.place, "ada"), r"Order\.place\(\): Missing required argument 'lines'"),
    ]:
        with pytest.raises(TypeError, match=said):
            cast(Any, wrong)()
    with pytest.raises(PayloadInvalid, match=r"Order\.place\(\): Expected `Line`, got `dict` - at `\$\.lines\[0\]`"):
        order.send(order.place, "ada", [{"sku": "x", "quantity": 1, "price": 1}])  # type: ignore[list-item]
    assert requests(order) == []


@pytest.mark.parametrize("wrong", [KETTLE, {"order": "x"}, "OrderPlaced", OrderPlaced, None], ids=range(5))
def test_emit_takes_an_event(wrong: Any) -> None:
    with pytest.raises(PayloadInvalid, match=r"emit\(...\) takes an Event, not "):
        Order().emit(wrong)


def test_an_event_with_wrong_values_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match=r"OrderPlaced: Expected `int`, got `str` - at `\$\.total`"):
        Order().emit(OrderPlaced(order="x", total="1"))  # type: ignore[arg-type]


def test_what_is_sent_is_a_copy() -> None:
    order, skus = Order(), ["a"]
    order.send(order.actor(Shipment, "s").open, skus)
    skus.append("b")
    message = requests(order)[0]
    assert isinstance(message, Send)
    assert cast(Any, message.arguments).skus == ["a"]
    assert message.payload == b'{"skus":["a"]}'


# -- when


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=999), 0),
        (timedelta(milliseconds=1), 1),
        (timedelta(days=25), 2_160_000_000),
        (timedelta(days=36_525), 3_155_760_000_000),
        (timedelta(milliseconds=2**53 - 1), 2**53 - 1),
    ],
    ids=str,
)
def test_a_delay_is_whole_milliseconds(delay: timedelta, milliseconds: int) -> None:
    order = Order()
    order.after(delay).send(order.expire)
    assert cast(Send, requests(order)[0]).when == When(delay_ms=milliseconds)


@pytest.mark.parametrize(
    ("delay", "said"),
    [
        (timedelta(microseconds=-1), "a delay that is not negative"),
        (timedelta.min, "a delay that is not negative"),
        (timedelta(milliseconds=2**53), "a delay of at most"),
        (timedelta.max, "a delay of at most"),
        (30, "takes a timedelta, not int"),
        (1.5, "takes a timedelta, not float"),
        (math.nan, "takes a timedelta, not float"),
        (None, "takes a timedelta, not NoneType"),
        (datetime(2030, 1, 1, tzinfo=UTC), "takes a timedelta, not datetime"),
    ],
    ids=range(9),
)
def test_a_delay_that_cannot_be_is_refused(delay: Any, said: str) -> None:
    with pytest.raises(PayloadInvalid, match=said):
        Order().after(delay)


@pytest.mark.parametrize(
    ("moment", "due_at_ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1960, 1, 1, tzinfo=UTC), 0),
        (datetime(2030, 1, 1, tzinfo=UTC), 1_893_456_000_000),
        (datetime(2030, 1, 1, 2, 0, 0, 1999, tzinfo=timezone(timedelta(hours=2))), 1_893_456_000_001),
        (datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_989_000_000),
        (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_992_600_000),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_799_999),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), 253_402_343_999_999),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=12))), 0),
    ],
    ids=str,
)
def test_a_moment_is_whole_milliseconds(moment: datetime, due_at_ms: int) -> None:
    order = Order()
    order.at(moment, key="k").enqueue(order.charge, "ada")
    assert cast(Enqueue, requests(order)[0]).when == When(due_at_ms=due_at_ms, key="k")


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (datetime(2030, 1, 1), "a datetime with a time zone"),  # noqa: DTZ001 - that is what is refused
        (timedelta(1), "takes a datetime, not timedelta"),
        (1_893_456_000, "takes a datetime, not int"),
        ("2030-01-01", "takes a datetime, not str"),
    ],
    ids=range(4),
)
def test_a_moment_that_cannot_be_is_refused(moment: Any, said: str) -> None:
    with pytest.raises(PayloadInvalid, match=said):
        Order().at(moment)


@pytest.mark.parametrize("key", ["", "$", "$cron", "a\0", "\ud800", "x" * 513, 5], ids=range(7))
def test_a_key_that_cannot_be_is_refused(key: Any) -> None:
    order = Order()
    for use in (lambda: order.after(timedelta(1), key=key), lambda: order.at(datetime.now(UTC), key=key), lambda: order.cancel(key)):
        with pytest.raises(PayloadInvalid, match="key"):
            use()


def test_cancel_needs_a_key() -> None:
    with pytest.raises(PayloadInvalid, match=r"cancel\(...\) takes the key the request was made under"):
        Order().cancel(None)  # type: ignore[arg-type]


# -- rejections


class Refused(Rejection, name="refused", aliases=["denied"]):
    code: int
    reasons: list[str] = []  # noqa: RUF012


class Gone(Rejection):
    was: str = "x"


def test_a_rejection_comes_back_as_the_same_class_with_the_same_fields() -> None:
    refused = Refused(code=3, reasons=["a"])
    again = decode(encode(refused))
    assert type(again) is Refused
    assert again == refused
    assert (again.code, again.reasons, again.fields) == (3, ["a"], {"code": 3, "reasons": ["a"]})
    assert hash(again) == hash(refused)
    assert encode(Refused(code=3)) == b'{"type":"refused","module":"' + __name__.encode() + b'","fields":{"code":3,"reasons":[]}}'


def test_a_rejection_is_found_under_its_older_names() -> None:
    assert decode(b'{"type":"denied","module":"elsewhere","fields":{"code":1,"more":2}}') == Refused(code=1)


@pytest.mark.parametrize("fields", [b'{"code":"3"}', b"{}", b"[]", b"null"])
def test_a_rejection_whose_fields_do_not_fit_any_more_stays_a_rejection(fields: bytes) -> None:
    found = decode(b'{"type":"refused","module":"' + __name__.encode() + b'","fields":' + fields + b"}")
    assert found == UnknownRejection(name="refused", raw=fields.decode())


def test_a_rejection_whose_class_is_gone_is_unknown() -> None:
    found = decode(b'{"type":"Vanished","module":"old","fields":{"a":[1]}}')
    assert found == UnknownRejection(name="Vanished", raw='{"a":[1]}')
    assert decode(encode(found)) == found


def test_of_two_rejections_with_one_name_the_one_of_the_module_is_meant() -> None:
    class Twin(Rejection):
        a: int = 0

    first = Twin
    first.__module__ = "one"

    class Twin(Rejection):  # type: ignore[no-redef]
        a: int = 0

    Twin.__module__, Twin.__qualname__ = "two", "Twin"
    assert type(decode(encode(first()))) is first
    assert type(decode(encode(Twin()))) is Twin
    assert type(decode(b'{"type":"Twin","module":"moved","fields":{}}')) is UnknownRejection, "nobody can tell which"


def test_a_rejection_is_an_exception_like_others() -> None:
    refused = Refused(code=1)
    assert copy.copy(refused) == refused
    assert copy.deepcopy(refused) == refused
    assert refused != Refused(code=2)
    assert refused != ValueError("x")
    assert str(Gone()) == "Gone (was='x')"
    assert str(Rejection()) != ""
    with pytest.raises(TypeError, match=r"Refused\(\): Missing required argument 'code'"):
        raise Refused
    with pytest.raises(TypeError):
        Refused(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"Refused\(\): Unexpected keyword argument 'x'"):
        Refused(code=1, x=2)  # type: ignore[call-arg]


def test_defaults_of_rejections_are_not_shared() -> None:
    Refused(code=1).reasons.append("a")
    assert Refused(code=1).reasons == []


def test_rejections_inherit_fields() -> None:
    class Worse(Refused):
        worse: bool = True

    worse = decode(encode(Worse(code=1, worse=False)))
    assert (type(worse), worse.fields) == (Worse, {"code": 1, "reasons": [], "worse": False})


# -- attempts


def test_an_attempt_knows_what_time_is_left() -> None:
    assert Attempt(job_id="j").remaining() > 2_000_000
    over = Attempt(job_id="j", deadline=0.0)
    assert over.remaining() == 0.0
    with pytest.raises(Cancelled):
        over.raise_if_cancelled()
    Attempt(job_id="j").raise_if_cancelled()


def test_a_cancelled_attempt_says_so() -> None:
    flag = threading.Event()
    attempt = Attempt(job_id="j", cancelled=flag)
    flag.set()
    with pytest.raises(Cancelled, match="stop now"):
        attempt.raise_if_cancelled()


def test_a_function_may_wait_for_the_cancellation_of_its_attempt() -> None:
    attempt = Attempt(job_id="j")
    assert isinstance(attempt.cancelled, threading.Event)
    assert (attempt.cancelled.is_set(), attempt.cancelled.wait(0.0), repr(attempt.cancelled)) == (False, False, "<Event: unset>")
    woken: list[bool] = []
    waiting = [threading.Thread(target=lambda: woken.append(attempt.cancelled.wait(30))) for _ in range(4)]
    for thread in waiting:
        thread.start()
    attempt.cancelled.set()
    for thread in waiting:
        thread.join(30)
    assert woken == [True] * 4
    assert repr(attempt.cancelled) == "<Event: set>"
    attempt.cancelled.clear()
    assert not attempt.cancelled.is_set()


def test_a_job_is_a_plain_function() -> None:
    assert charge_card(Attempt(job_id="j-1"), "ada", 5) == "j-1:ada:5"
    assert Order.charge.function is charge_card
    assert Order.charge is Order().charge
