"""Values: each comes back equal or is refused, with the path, before anything is stored. Wherever a value can stand."""

from __future__ import annotations

import dataclasses
import enum
import math
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest

from akter import rejection
from akter.actor import Actor
from akter.codec import MAX_DEPTH, Codec, upcast
from akter.command import command
from akter.errors import DeclarationError, PayloadInvalid
from akter.payload import Event, Payload, event_codec, field
from akter.rejection import Rejection

BERLIN = ZoneInfo("Europe/Berlin")


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Colour(enum.StrEnum):
    RED = "red"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Line(Payload):
    sku: str
    quantity: int = 1


class LongLine(Line):
    note: str = ""


class Tree(Payload):
    children: list[Tree] = field(default_factory=list["Tree"])


class Circle(Payload, tag=True):
    size: int


class Square(Payload, tag=True):
    size: int


@dataclasses.dataclass
class Point:
    x: int
    y: float | None = None


@dataclasses.dataclass(eq=False)
class Apart:
    x: int
    names: Sequence[str] = ()


@dataclasses.dataclass
class Counted:
    x: int
    calls: int = dataclasses.field(default=0, compare=True)

    def __post_init__(self) -> None:
        self.calls += 1


@attrs.define
class Box:
    width: int
    label: str = "none"


class Address(pydantic.BaseModel):
    street: str
    number: int = 1


class Person(pydantic.BaseModel):
    name: str
    born: date | None = None
    home: Address | None = None
    tags: set[str] = set()
    nick: str = pydantic.Field(default="", alias="nickName")


class Strict(pydantic.BaseModel, strict=True, extra="forbid"):
    id: uuid.UUID
    when: datetime
    cost: Decimal

    @pydantic.computed_field
    def doubled(self) -> Decimal:
        return self.cost * 2


class Loose(pydantic.BaseModel, extra="allow"):
    known: int = 0


class Poor(pydantic.BaseModel):
    ratio: float | None = None


class Renamed(pydantic.BaseModel):
    value: int = pydantic.Field(default=0, validation_alias="in", serialization_alias="out")


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class SubText(str):
    """As Django's SafeString."""


class SubFloat(float):
    """As numpy's float64."""


class Scalar:
    """As numpy's int64: it can be made a number, but is none."""

    def __int__(self) -> int:
        return 3

    def __index__(self) -> int:
        return 3

    def __float__(self) -> float:
        return 3.0

    def item(self) -> int:
        return 3


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth - 1):
        made = [made]
    return made


def itself() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


KEPT: list[tuple[Any, Any]] = [
    (str, ""),
    (str, "Ελλάδα 🚀 \\u0000 \u2028 \x01"),
    (str, "x" * 1_000_000),
    (str, SubText("safe")),
    (str, Colour.RED),
    (int, 2**63 - 1),
    (int, -(2**63)),
    (int, 2**63),
    (int, 2**64),
    (int, -(10**60)),
    (int, Level.HIGH),
    (float, 5e-324),
    (float, 1.7976931348623157e308),
    (float, 0.1 + 0.2),
    (float, 3),
    (float, SubFloat(1.5)),
    (bool, True),
    (type(None), None),
    (Decimal, Decimal("1.10")),
    (Decimal, Decimal("1E+1000")),
    (Decimal, Decimal("-0.00000000000000000000000000000000001")),
    (Decimal, Decimal("Infinity")),
    (datetime, datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)),
    (datetime, datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=5, minutes=45)))),
    (datetime, datetime(2024, 7, 1, 12, tzinfo=BERLIN)),
    (datetime, datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)),
    (datetime, datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)),
    (datetime, datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN)),
    (datetime, datetime(2024, 1, 1, 12)),  # noqa: DTZ001 - a naive one stays naive
    (datetime, datetime.min),  # noqa: DTZ901 - a naive one stays naive
    (datetime, datetime.max.replace(tzinfo=UTC)),
    (date, date(1, 1, 1)),
    (time, time(23, 59, 59, 999999)),
    (timedelta, timedelta(days=-1, seconds=3, microseconds=5)),
    (timedelta, timedelta.max),
    (timedelta, timedelta.min),
    (uuid.UUID, uuid.UUID("0190b7d8-7e1c-7f00-8000-000000000001")),
    (bytes, bytes(range(256))),
    (bytearray, bytearray(b"\0\xff")),
    (Size, Size.LARGE),
    (Level, Level.HIGH),
    (Rights, Rights.READ | Rights.WRITE),
    (Literal["a", "b"], "b"),
    (Literal[1, 2], 2),
    (list[int], [1, 2, 3]),
    (list[list[str]], [["a"], []]),
    (Sequence[str], ("a", "b")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"b", "a"}),
    (frozenset[int], frozenset({3, 1})),
    (dict[str, int], {"b": 1, "a": 2}),
    (dict[str, int], OrderedDict(b=1, a=2)),
    (dict[str, list[int]], defaultdict(list, a=[1])),
    (Mapping[str, int], {"a": 1}),
    (dict[int, str], {1: "a", -(2**63): "b"}),
    (dict[float, str], {1.5: "a"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=5): 1}),
    (dict[date, int], {date(2024, 1, 1): 1}),
    (dict[Colour, int], {Colour.RED: 1}),
    (int | None, None),
    (int | str, "1"),
    (int | float, 1.5),
    (Line | None, Line(sku="a")),
    (Circle | Square, Square(size=1)),
    (Line, Line(sku="a", quantity=2)),
    (list[Line], [Line(sku="a"), Line(sku="b")]),
    (dict[str, Line], {"x": Line(sku="a")}),
    (Tree, Tree(children=[Tree(), Tree(children=[Tree()])])),
    (Point, Point(1, 2.5)),
    (list[Point], [Point(1)]),
    (Apart, Apart(1, ("a",))),
    (Box, Box(3, "x")),
    (dict[str, Box], {"x": Box(3)}),
    (Person, Person(name="Ada", born=date(1815, 12, 10), home=Address(street="X"), tags={"a", "b"}, nickName="A")),
    (list[Person], [Person(name="Ada")]),
    (dict[str, list[Person]], {"x": [Person(name="Ada", home=Address(street="Y", number=2))]}),
    (Person | None, Person(name="Ada")),
    (Strict, Strict(id=uuid.UUID(int=1), when=datetime(2024, 1, 1, tzinfo=UTC), cost=Decimal("0.1"))),
    (Loose, Loose.model_validate({"known": 1, "more": [1, 2]})),
    (Movie, {"title": "x"}),
    (Movie, {"title": "x", "year": 1999}),
    (Pair, Pair(1)),
    (Any, {"a": [1, 2.5, "x", None, True, {"b": []}]}),
    (dict[str, Any], {"big": 2**70, "small": 1e-300}),
    (list[Any], nested(MAX_DEPTH - 10)),
    (Annotated[int, msgspec.Meta(ge=0)], 0),
]

REFUSED: list[tuple[Any, Any, str, str]] = [
    (str, "a\0b", "NUL character", ""),
    (str, "a\ud800b", "lone surrogate", ""),
    (list[str], ["ok", "a\0b"], "NUL character", "[1]"),
    (list[Line], [Line(sku="a"), Line(sku="\udfff")], "lone surrogate", "[1].sku"),
    (dict[str, int], {"a\0": 1}, "a key is wrong: text must not contain a NUL", ""),
    (dict[str, int], {"\ud900": 1}, "a key is wrong: text must not contain a lone", ""),
    (dict[str, Any], {"a": {"b": ["x", "\0"]}}, "NUL character", ".a.b[1]"),
    (Person, Person(name="a\0"), "NUL character", ".name"),
    (Box, Box(1, "\0"), "NUL character", ".label"),
    (float, math.nan, "nan is no JSON number", ""),
    (float, math.inf, "inf is no JSON number", ""),
    (float, -math.inf, "-inf is no JSON number", ""),
    (float | None, math.nan, "nan is no JSON number", ""),
    (float, SubFloat("nan"), "nan is no JSON number", ""),
    (float | None, SubFloat("inf"), "inf is no JSON number", ""),
    (list[float], [0.0, math.inf], "inf is no JSON number", "[1]"),
    (dict[str, Any], {"a": [{"b": math.nan}]}, "nan is no JSON number", ".a[0].b"),
    (Point, Point(1, math.nan), "nan is no JSON number", ".y"),
    (Apart | None, Apart(1, ("\0",)), "NUL character", ".names[0]"),
    (Poor, Poor(ratio=math.nan), "nan is no JSON number", ".ratio"),
    (list[Poor], [Poor(), Poor(ratio=math.inf)], "inf is no JSON number", "[1].ratio"),
    (Decimal, Decimal("NaN"), "is no number", ""),
    (Decimal | None, Decimal("sNaN"), "is no number", ""),
    (int, True, "Expected `int`, got `bool`", ""),
    (int, 1.0, "Expected `int`, got `float`", ""),
    (int, "1", "Expected `int`, got `str`", ""),
    (bool, 1, "Expected `bool`, got `int`", ""),
    (str, b"abc", "Expected `str`, got `bytes`", ""),
    (str, uuid.UUID(int=1), "Expected `str`, got `UUID`", ""),
    (str, Size.SMALL, "Expected `str`, got `Size`", ""),
    (bytes, "abcd", "Expected `bytes`, got `str`", ""),
    (datetime, "2024-01-01T00:00:00Z", "Expected `datetime`, got `str`", ""),
    (datetime, datetime(1890, 1, 1, tzinfo=BERLIN), "offset of whole minutes", ""),
    (uuid.UUID, str(uuid.UUID(int=1)), "Expected `UUID`, got `str`", ""),
    (Decimal, 0.1, "Expected `Decimal`, got `float`", ""),
    (float, 2**53 + 1, "Expected `float`, got `int`", ""),
    (Size, "medium", "Invalid enum value", ""),
    (Size, "small", "Expected `Size`, got `str`", ""),
    (Literal["a", "b"], "c", "Invalid enum value", ""),
    (list[int], [1, "2"], "Expected `int`, got `str`", "[1]"),
    (list[int], {1, 2}, "Expected `list`, got `set`", ""),
    (set[int], [1, 1], "Expected `set`, got `list`", ""),
    (list[Line], [{"sku": "a"}], "Expected `Line`, got `dict`", "[0]"),
    (Line, LongLine(sku="a", note="lost"), "Expected `Line`, got `LongLine`", ""),
    (Counted, Counted(1), "another value", ".calls"),
    (Movie, {"title": "x", "extra": 1}, "would not come back", ".extra"),
    (Renamed, Renamed.model_validate({"in": 3}), "another value", ".value"),
    (Any, (1, 2), "Expected `list`, got `tuple`", ""),
    (dict[str, Any], {"when": date(2024, 1, 1)}, "Expected `str`, got `date`", ".when"),
    (dict[str, Any], {"n": {1: "a"}}, "would not come back", ".n[...]"),
    (dict[str, Any], {"someone@example.org": Decimal(1)}, "Expected `str`, got `Decimal`", "[...]"),
    (Any, {1, 2}, "Expected `list`, got `set`", ""),
    (Any, Line(sku="a"), "Expected `dict`, got `Line`", ""),
    (Any, Scalar(), "Scalar cannot be stored", ""),
    (int, Scalar(), "Scalar cannot be stored", ""),
    (list[Any], [object()], "object cannot be stored", "[0]"),
    (dict[str, Any], {"f": Fraction(1, 3)}, "Fraction cannot be stored", ".f"),
    (Any, 1j, "complex", ""),
    (list[Any], nested(MAX_DEPTH + 10), f"deeper than {MAX_DEPTH}", "[0]"),
    (list[Any], nested(100_000), f"deeper than {MAX_DEPTH}", "[0]"),
    (list[Any], itself(), "contains itself", "[1]"),
    (Any, dict(enumerate("ab")), "would not come back", "[...]"),
]


class Wrapped(Payload):
    """Names a value inside another one, so that its path can be told."""

    inside: Any


def make_argument(kind: Any) -> tuple[Callable[[Any], Any], str]:
    class Holder(Actor):
        @command
        def go(self, value: kind) -> None: ...

    member = Holder.__akter__.members["go"]
    return lambda value: member.bind((value,), {})[1].value, "$.value"


def make_nested_argument(kind: Any) -> tuple[Callable[[Any], Any], str]:
    class Holder(Actor):
        @command
        def go(self, *, value: dict[str, list[kind]]) -> None: ...

    member = Holder.__akter__.members["go"]
    return lambda value: member.bind((), {"value": {"key": [value]}})[1].value["key"][0], "$.value.key[0]"


def make_result(kind: Any) -> tuple[Callable[[Any], Any], str]:
    class Holder(Actor):
        @command
        def go(self) -> kind: ...

    result = Holder.__akter__.members["go"].result
    return lambda value: result.decode(result.encode(value)), "$"


def make_state_field(kind: Any) -> tuple[Callable[[Any], Any], str]:
    class Holder(Actor, max_state_bytes=2_000_000):
        value: kind | None = None

    definition = Holder.__akter__
    return lambda value: definition.load(definition.dump({"value": value}), 0)["value"], "$.value"


def make_rejection_field(kind: Any) -> tuple[Callable[[Any], Any], str]:
    class Refused(Rejection):
        value: kind

    return lambda value: rejection.decode(rejection.encode(Refused(value=value))).value, "$.value"  # type: ignore[attr-defined]


def make_event_field(kind: Any) -> tuple[Callable[[Any], Any], str]:
    made: Any = type(Event)("Happened", (Event,), {"__annotations__": {"value": kind}, "__module__": __name__})
    codec: Codec[Any] = event_codec(made)
    return lambda value: codec.decode(codec.encode(made(value=value))).value, "$.value"


PLACES = [make_argument, make_nested_argument, make_result, make_state_field, make_rejection_field, make_event_field]


def names(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    return [f"{number}-{type(case[1]).__name__}" for number, case in enumerate(cases)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.removeprefix("make_"))
@pytest.mark.parametrize(("kind", "value"), KEPT, ids=names(KEPT))
def test_a_value_comes_back_equal(place: Callable[..., Any], kind: Any, value: Any) -> None:
    store, _ = place(kind)
    kept = store(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        assert (kept.utcoffset(), kept.replace(tzinfo=None)) == (value.utcoffset(), value.replace(tzinfo=None, fold=0))
    elif isinstance(value, Apart):
        assert (kept.x, list(kept.names)) == (value.x, list(value.names))
    elif kind == Sequence[str]:
        assert list(kept) == list(value)
    else:
        assert kept == value
        if isinstance(value, dict):
            assert list(kept) == list(value), "a dict keeps its order"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.removeprefix("make_"))
@pytest.mark.parametrize(("kind", "value", "reason", "path"), REFUSED, ids=names(REFUSED))
def test_a_value_is_refused_with_its_path(place: Callable[..., Any], kind: Any, value: Any, reason: str, path: str) -> None:
    store, before = place(kind)
    with pytest.raises(PayloadInvalid) as refused:
        store(value)
    message = str(refused.value)
    assert "Holder" in message or "Happened" in message or "Refused" in message
    if "deeper" in message:
        return
    assert reason.partition(", got")[0].split("`")[0] in message
    if f"{before}{path}" != "$":
        # The codec's own paths name a key, msgspec's do not.
        assert f"at `{before}{path}`" in message or f"at `{before}{path}`".replace("value.key", "value[...]") in message


def test_what_a_value_is_refused_for_is_said_exactly() -> None:
    for kind, value, reason, path in REFUSED:
        with pytest.raises(PayloadInvalid) as refused:
            Codec(list[kind], "here").encode([value])
        assert reason in str(refused.value)
        assert f"at `$[0]{path}`" in str(refused.value) or "deeper" in reason or "itself" in reason


@pytest.mark.parametrize(
    "kind",
    [
        object,
        pytest.param(object(), id="an object"),
        complex,
        Fraction,
        Callable[[], int],
        type,
        Scalar,
        str | bytes,
        Line | Box,
        dict[tuple[int, int], int],
        dict[bool, int],
        memoryview,
        msgspec.Raw,
    ],
    ids=repr,
)
def test_a_type_that_cannot_be_stored_is_refused_when_it_is_declared(kind: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^here: "):
        Codec(kind, "here")


def test_an_enum_of_other_values_is_refused_when_it_is_declared() -> None:
    class Odd(enum.Enum):
        PAIR = (1, 2)

    with pytest.raises(DeclarationError, match="here"):
        Codec(Odd, "here")


def test_errors_do_not_say_the_value() -> None:
    secret = "hunter2-token"
    for kind, value in [(Size, secret), (Literal["a"], secret), (int, secret), (Person, {"name": [secret]}), (list[int], [secret])]:
        with pytest.raises(PayloadInvalid) as refused:
            Codec(kind, "here").decode(msgspec.json.encode(value))
        assert secret not in str(refused.value)
    with pytest.raises(PayloadInvalid) as refused:
        Codec(Person, "here").encode({"name": secret})  # type: ignore[arg-type]
    assert secret not in str(refused.value)


def test_a_pydantic_error_names_the_field_inside() -> None:
    with pytest.raises(PayloadInvalid, match=r"home\.number: Input should be a valid integer.* - at `\$\[0\]`"):
        Codec(list[Person], "here").decode(b'[{"name": "x", "home": {"street": "s", "number": "many"}}]')


def test_a_pydantic_model_that_was_changed_to_something_wrong_is_refused_without_a_warning() -> None:
    person = Person(name="Ada")
    person.name = 5  # type: ignore[assignment]
    with pytest.raises(PayloadInvalid, match="name: Input should be a valid string"):
        Codec(Person, "here").encode(person)


def test_a_validator_that_fails_with_anything_is_an_invalid_payload() -> None:
    class Odd(pydantic.BaseModel):
        value: int = 0

        @pydantic.model_validator(mode="before")
        @classmethod
        def check(cls, data: Any) -> Any:
            raise KeyError("secret")

    with pytest.raises(PayloadInvalid, match="KeyError") as refused:
        Codec(Odd, "here").decode(b"{}")
    assert "secret" not in str(refused.value)


def test_stored_text_that_is_no_json_is_refused() -> None:
    for raw in [b"", b"nope", b'{"a":', b"\x80\x04\x95", b"[1,]"]:
        with pytest.raises(PayloadInvalid, match="here: "):
            Codec(Any, "here").decode(raw)


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    assert Codec(Line, "here").decode(b'{"sku":"a","colour":"red"}') == Line(sku="a", quantity=1)
    with pytest.raises(PayloadInvalid, match="missing required field `sku`"):
        Codec(Line, "here").decode(b"{}")


def test_sets_are_stored_in_one_order() -> None:
    names = [f"name-{number}" for number in range(50)]
    codec: Codec[set[str]] = Codec(set[str], "here")
    assert codec.encode(set(names)) == codec.encode(set(names[25:] + names[:25])) == msgspec.json.encode(sorted(names))


def test_a_limit_is_in_encoded_bytes_and_says_the_remedy() -> None:
    codec: Codec[str] = Codec(str, "the note", 8, ": write less")
    assert codec.encode("ä" * 3) == '"äää"'.encode()
    with pytest.raises(PayloadInvalid, match="the note is 9 bytes long; the limit is 8: write less"):
        codec.encode("ä" * 3 + "x")


def test_plain_says_whether_a_value_can_be_changed_in_place() -> None:
    class Still(Payload):
        a: int = 0
        b: tuple[str, ...] = ()
        c: Decimal | None = None
        d: Literal["x"] = "x"

    class Moving(Payload, frozen=False):
        a: int = 0

    class Deep(Payload):
        still: Still
        moving: tuple[Moving, ...]

    assert Codec(Still, "here").plain
    assert not Codec(Deep, "here").plain
    for kind in (list[int], dict[str, int], set[int], Any, Person, Point, Movie):
        made = msgspec.defstruct("Holder", [("value", kind)])
        assert not Codec(made, "here").plain


# -- upcasts


def add(key: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda stored: {**stored, key: value}


def rename(stored: dict[str, Any]) -> dict[str, Any]:
    return {"title": stored.pop("name"), **stored}


def test_a_chain_brings_every_older_version_up_to_date() -> None:
    chain = [rename, add("pages", 1), lambda stored: {**stored, "pages": stored["pages"] + 1}]
    assert upcast(b'{"name":"x"}', 0, chain, "here") == b'{"title":"x","pages":2}'
    assert upcast(b'{"title":"x"}', 1, chain, "here") == b'{"title":"x","pages":2}'
    assert upcast(b'{"title":"x","pages":7}', 2, chain, "here") == b'{"title":"x","pages":8}'


def test_the_newest_version_is_left_as_it_is() -> None:
    assert upcast(b'{ "a" : 1 }', 1, [rename], "here") == b'{ "a" : 1 }'


def test_a_newer_version_is_refused_and_never_guessed() -> None:
    with pytest.raises(PayloadInvalid, match="stored as version 3, but this code knows only 1: deploy the newer code again"):
        upcast(b"{}", 3, [rename], "here")


def test_a_failing_step_says_which_and_not_what() -> None:
    with pytest.raises(PayloadInvalid, match=r"^here: the migration from version 1 failed with KeyError$") as failed:
        upcast(b'{"secret":1}', 1, [add("a", 1), rename], "here")
    assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.parametrize("made", [None, [], "text", 3])
def test_a_step_that_returns_no_mapping_is_refused(made: Any) -> None:
    with pytest.raises(PayloadInvalid, match="the migration from version 0 returned"):
        upcast(b"{}", 0, [lambda stored: made], "here")


@pytest.mark.parametrize("made", [math.nan, "\0", "\ud800", object(), math.inf])
def test_a_step_that_makes_what_cannot_be_stored_is_refused(made: Any) -> None:
    with pytest.raises(PayloadInvalid, match=r"a migration made what cannot be stored: .* - at `\$\.deep\.value`"):
        upcast(b"{}", 0, [add("deep", {"value": made})], "here")


def test_a_step_may_use_types_that_json_has_not() -> None:
    assert upcast(b"{}", 0, [add("at", date(2024, 1, 1))], "here") == b'{"at":"2024-01-01"}'
