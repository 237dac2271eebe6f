"""Values at the database: what fits comes back as it was, what does not is refused before anything is written."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from akter import Actor, Defect, Payload, PayloadInvalid, Rejection, command, query
from akter.testing import inspect, receipts

ran: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


class Colour(Enum):
    """Two of them."""

    RED = "red"
    BLUE = "blue"


class Thing(Payload):
    text: str = ""
    number: int = 0
    ratio: float = 0.0
    price: Decimal = Decimal(0)
    moment: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    day: date = date(2000, 1, 1)
    id: UUID = UUID(int=0)
    colour: Colour = Colour.RED
    blob: bytes = b""
    maybe: int | None = None


class Told(Rejection):
    """It is said back."""

    thing: Thing


class Keeper(Actor, max_state_bytes=4_000_000):
    """Keeps, gives back and says back."""

    thing: Thing = Thing()
    text: str = ""

    @command
    def keep(self, thing: Thing) -> Thing:
        ran.append("keep")
        self.thing = thing
        return thing

    @command
    def write(self, text: str) -> int:
        ran.append("write")
        self.text = text
        return len(text)

    @command
    def give(self, length: int) -> str:
        ran.append("give")
        return "é" * length

    @command
    def set_raw(self, text: str, how: str) -> str:
        """Makes a value that could not come in as an argument."""
        made = {"nul": text + "\0", "surrogate": text + "\ud800"}[how]
        if text == "result":
            return made
        if text == "rejection":
            raise Told(thing=Thing(text=made))
        self.text = made
        return ""

    @command
    def tell(self, thing: Thing) -> None:
        raise Told(thing=thing)

    @query
    def look(self) -> Thing:
        return self.thing


WHOLE = [
    Thing(text="ключ ✓ \U0001f600 \"quoted\" \\ {braces} 'single' %s :name $1 \t\n\r\x01\x7f"),
    Thing(number=2**63 - 1, maybe=-(2**63)),
    Thing(ratio=5e-324, maybe=0),
    Thing(ratio=1.7976931348623157e308),
    Thing(ratio=0.1 + 0.2),
    Thing(price=Decimal("12345678901234567890.123456789012345678901234567890")),
    Thing(price=Decimal("1E+3")),
    Thing(moment=datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
    Thing(day=date(1, 1, 1)),
    Thing(id=UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff"), colour=Colour.BLUE, blob=bytes(range(256))),
]


@pytest.mark.parametrize("thing", WHOLE, ids=[str(number) for number in range(len(WHOLE))])
def test_a_value_comes_back_as_it_was_from_argument_state_result_receipt_and_rejection(akter_app, thing) -> None:
    app = akter_app(Keeper)
    keeper = app.actor(Keeper, "k-1")
    for _ in range(2):
        with app.command_id("keep"):
            assert keeper.keep(thing) == thing
    assert ran == ["keep"]
    assert keeper.look() == thing
    for _ in range(2):
        with app.command_id("tell"), pytest.raises(Told) as caught:
            keeper.tell(thing)
        assert caught.value.thing == thing


@pytest.mark.parametrize(
    "thing",
    [
        {"text": "a\0b"},
        {"text": "\ud800"},
        {"ratio": float("nan")},
        {"ratio": float("inf")},
        {"price": Decimal("NaN")},
        {"number": "1"},
        {"maybe": 1.5},
    ],
    ids=["NUL", "surrogate", "NaN", "infinity", "decimal NaN", "text for a number", "float for a number"],
)
def test_an_argument_that_cannot_be_stored_is_refused_before_anything_is_sent(akter_app, beside, thing) -> None:
    app = akter_app(Keeper)
    keeper = app.actor(Keeper, "k-1")
    with pytest.raises(PayloadInvalid):
        keeper.keep(Thing(**thing))
    assert ran == []
    assert [beside.count(table) for table in ("actor_generations", "actor_state", "actor_receipts")] == [0, 0, 0]


@pytest.mark.parametrize("how", ["nul", "surrogate"])
@pytest.mark.parametrize("where", ["state", "result", "rejection"])
def test_what_a_handler_makes_and_cannot_be_stored_is_a_defect_with_nothing_saved(akter_app, where, how) -> None:
    app = akter_app(Keeper)
    keeper = app.actor(Keeper, "k-1")
    keeper.write("before")
    with pytest.raises(Defect, match="NUL" if how == "nul" else "surrogate"):
        keeper.set_raw(where, how)
    found = inspect(app, keeper)
    assert (found.state["text"], found.version, len(found.receipts)) == ("before", 1, 1)


@pytest.mark.conformance("TURN-06")
def test_the_limit_of_arguments_counts_utf8_bytes_and_is_checked_before_anything_is_sent(akter_app, beside) -> None:
    app = akter_app(Keeper)
    keeper = app.actor(Keeper, "k-1")
    room = 1_048_576 - len('{"text":""}')
    with pytest.raises(PayloadInvalid, match="1048576"):
        keeper.write("é" * (room // 2) + "ab")
    assert ran == []
    assert beside.count("actor_generations") == 0
    assert keeper.write("é" * (room // 2) + "a") == room // 2 + 1


@pytest.mark.conformance("TURN-06")
def test_the_limit_of_results_counts_utf8_bytes_and_going_over_it_is_a_defect(akter_app) -> None:
    app = akter_app(Keeper)
    keeper = app.actor(Keeper, "k-1")
    room = 1_048_576 - len('""')
    assert len(keeper.give(room // 2)) == room // 2
    with pytest.raises(Defect, match="1048576"):
        keeper.give(room // 2 + 1)
    assert len(receipts(app, keeper)) == 1


@pytest.mark.conformance("TURN-06")
def test_the_app_may_lower_the_limit_of_arguments_and_results(akter_app) -> None:
    app = akter_app(Keeper, max_payload_bytes=100)
    keeper = app.actor(Keeper, "k-1")
    with pytest.raises(PayloadInvalid, match="100"):
        keeper.write("x" * 100)
    with pytest.raises(Defect, match="100"):
        keeper.give(50)
    assert keeper.write("x" * 80) == 80
    assert keeper.give(49) == "é" * 49


@pytest.mark.parametrize(
    "id", ["x" * 512, "é" * 256, "a/b:c$d e", "ключ", "'; DROP TABLE actor_state; --", "\\x00", "{}", '"', "NULL", "%s"]
)
def test_any_text_of_at_most_512_bytes_is_an_id(akter_app, id) -> None:
    app = akter_app(Keeper)
    with app.tenant(id[:60]):
        keeper = app.actor(Keeper, id)
    assert keeper.write("x") == 1
    assert keeper.id == id
    assert inspect(app, keeper).version == 1


@pytest.mark.parametrize("id", ["", "x" * 513, "é" * 257, "a\0", "\ud800", 5, None, b"x"])
def test_an_id_that_cannot_be_stored_is_refused(akter_app, id) -> None:
    app = akter_app(Keeper)
    with pytest.raises((PayloadInvalid, TypeError)):
        app.actor(Keeper, id)
    with pytest.raises(PayloadInvalid), app.tenant(id):
        pass


def test_a_result_is_the_callers_own_and_equal_to_its_replay(akter_app) -> None:
    class Lists(Actor):
        """Gives out its own list."""

        items: list[dict[str, Any]] = []  # noqa: RUF012

        @command
        def add(self, item: dict[str, Any]) -> list[dict[str, Any]]:
            self.items.append(item)
            return self.items

    app = akter_app(Lists)
    lists = app.actor(Lists, "l-1")
    given = {"a": [1, {"b": None}]}
    with app.command_id("a"):
        first = lists.add(given)
    first[0]["a"].append("mine")
    given["a"].append("mine")
    with app.command_id("a"):
        assert lists.add({"a": [1, {"b": None}]}) == [{"a": [1, {"b": None}]}]
    assert inspect(app, lists).state == {"items": [{"a": [1, {"b": None}]}]}
