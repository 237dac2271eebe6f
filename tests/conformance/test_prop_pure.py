"""Properties of what is pure: hashes of arguments, routing keys, ids, callers. No database.

PROP-07 has two halves. This is the pure one; keyed timers against a model come with the relay, which they need.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akter.actor import Actor
from akter.caller import Anonymous, Caller, System, User
from akter.command import Command, command
from akter.digest import payload_hash
from akter.errors import InvalidCommandId
from akter.identity import Address, CommandId, address, check_admissible, own_id, routing_key
from akter.payload import Payload

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NAME = TEXT.filter(bool).map(lambda text: text[:100])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def always(*strategies: st.SearchStrategy[Any], examples: int = 100) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A property without a time limit: how fast it is checked is not part of it."""
    return lambda test: settings(deadline=None, max_examples=examples)(given(*strategies)(test))


class Before(Payload):
    sku: str
    extra: dict[str, Any] = {}  # noqa: RUF012


class After(Payload):
    note: str = "none"
    sku: str
    extra: dict[str, Any] = {}  # noqa: RUF012
    tags: list[str] = []  # noqa: RUF012


class Circle(Payload, tag=True):
    size: int = 1


class Square(Payload, tag=True):
    size: int = 1


class Old(Actor):
    @command
    def go(self, lines: list[Before], by: int = 1) -> None: ...

    @command
    def take(self, value: Any = None) -> None: ...

    @command
    def two(self, a: Any, b: Any) -> None: ...

    @command
    def draw(self, shape: Circle | Square) -> None: ...


class New(Actor):
    @command
    def go(self, lines: list[After], by: int = 1, *, note: str = "", shape: Circle | Square | None = None) -> None: ...


def member(kind: Any, name: str) -> Command:
    found = kind.__akter__.members[name]
    assert isinstance(found, Command)
    return found


def hashed(kind: Any, name: str, *args: Any, **kwargs: Any) -> str:
    found = member(kind, name)
    return found.hash(found.bind(args, kwargs)[1])


def other_way_round(value: Any) -> Any:
    """The same JSON value, with the keys of every object written in the opposite order."""
    if isinstance(value, dict):
        return {key: other_way_round(value[key]) for key in reversed(value)}
    return [other_way_round(item) for item in value] if isinstance(value, list) else value


def told(ask: Callable[[], object]) -> str:
    """What was answered, or the code it was refused with."""
    try:
        return str(ask())
    except InvalidCommandId as refused:
        return refused.code


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@pytest.mark.conformance("PROP-01", "TURN-31")
@always(JSON)
def test_the_payload_hash_ignores_the_order_of_keys(value: Any) -> None:
    assert hashed(Old, "take", value) == hashed(Old, "take", other_way_round(value))


@pytest.mark.conformance("PROP-01")
@always(JSON, JSON)
def test_the_payload_hash_ignores_how_arguments_are_passed_and_stored(a: Any, b: Any) -> None:
    two = member(Old, "two")
    raw, arguments = two.bind((a, b), {})
    loose = json.dumps({"b": b, "a": a}, indent=3, ensure_ascii=True)
    assert hashed(Old, "two", a, b) == hashed(Old, "two", b=b, a=a) == two.hash(arguments)
    assert two.hash(two.codec.decode(raw)) == two.hash(two.codec.decode(loose)) == two.hash(arguments)


@pytest.mark.conformance("PROP-01")
@always(st.lists(st.tuples(TEXT, st.dictionaries(TEXT, JSON, max_size=3)), max_size=4), st.integers())
def test_the_payload_hash_ignores_defaults_so_that_new_ones_change_nothing(lines: list[tuple[str, dict[str, Any]]], by: int) -> None:
    before = [Before(sku=sku, extra=extra) for sku, extra in lines]
    after = [After(sku=sku, extra=extra, note="none", tags=[]) for sku, extra in lines]
    assert hashed(Old, "go", before, by) == hashed(New, "go", after, by) == hashed(New, "go", after, by, note="", shape=None)
    assert hashed(Old, "go", before) == hashed(Old, "go", before, by=1)
    assert (hashed(Old, "go", before, by) == hashed(Old, "go", before)) == (by == 1)


@pytest.mark.conformance("PROP-01")
@always(JSON, JSON)
def test_the_payload_hash_tells_different_arguments_apart(a: Any, b: Any) -> None:
    assert (hashed(Old, "two", a, b) == hashed(Old, "two", b, a)) == (canonical(a) == canonical(b))
    assert (hashed(Old, "take", a) == hashed(Old, "take", b)) == (canonical(a) == canonical(b))


@pytest.mark.conformance("TURN-31")
@always(st.lists(JSON, min_size=2, max_size=5))
def test_the_payload_hash_keeps_the_order_of_arrays(items: list[Any]) -> None:
    backwards = items[::-1]
    assert (hashed(Old, "take", items) == hashed(Old, "take", backwards)) == (canonical(items) == canonical(backwards))


@pytest.mark.conformance("PROP-01")
def test_the_payload_hash_tells_values_apart_that_python_calls_equal() -> None:
    values = [0, 0.0, False, None, "0", [], [0], {}, "", 1, True, 1.0, [True], [1]]
    assert len({hashed(Old, "take", value) for value in values}) == len(values)
    assert hashed(Old, "draw", Circle(size=2)) != hashed(Old, "draw", Square(size=2))
    assert hashed(Old, "draw", Circle()) != hashed(Old, "draw", Square())


@pytest.mark.conformance("PROP-01", "PROP-07", "TURN-31")
def test_the_payload_hash_is_sha_256_of_sorted_json_without_defaults() -> None:
    assert hashed(Old, "go", [Before(sku="a", extra={"z": [1, 2.5], "b": None})], 7) == (
        hashlib.sha256(b'{"by":7,"lines":[{"extra":{"b":null,"z":[1,2.5]},"sku":"a"}]}').hexdigest()
    )
    assert hashed(Old, "take") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert payload_hash(Before(sku="ä")) == hashlib.sha256('{"sku":"ä"}'.encode()).hexdigest()


@pytest.mark.conformance("PROP-07")
def test_routing_keys_are_a_hash_of_a_versioned_json_array() -> None:
    def expected(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode()).digest()[:8], "big", signed=True)

    assert (
        routing_key("actor", "default", "Counter", "visits") == expected('[1,"actor","default","Counter","visits"]') == -5471397470285865960
    )
    assert routing_key("tenant", "acme", "Counter", "visits") == expected('[1,"tenant","acme"]') == -1027050726445383115
    assert routing_key("actor", "default", "Zähler", '"') == expected('[1,"actor","default","Zähler","\\""]')


@pytest.mark.conformance("PROP-07")
@always(NAME, NAME, NAME)
def test_a_routing_key_is_64_bits_and_its_bucket_the_first_8(tenant: str, kind: str, id: str) -> None:
    for placement in ("actor", "tenant"):
        where = address(placement, tenant, kind, id)
        assert -(2**63) <= where.routing_key < 2**63
        assert where.bucket == where.routing_key >> 56
        assert -128 <= where.bucket <= 127
        assert where == address(placement, tenant, kind, id)
    assert address("tenant", tenant, kind, id).routing_key == address("tenant", tenant, id, kind).routing_key


@pytest.mark.conformance("PROP-07")
@always(st.lists(st.tuples(NAME, NAME, NAME), min_size=2, max_size=2, unique=True))
def test_actors_of_different_names_have_different_routing_keys(pair: list[tuple[str, str, str]]) -> None:
    first, second = pair
    assert routing_key("actor", *first) != routing_key("actor", *second)


TIMES = st.integers(0, 10**15 - 1)
IDS = st.builds(CommandId, TIMES, TIMES, st.uuids(version=4))


@pytest.mark.conformance("PROP-07")
@always(IDS)
def test_a_command_id_reads_back_from_its_text(id: CommandId) -> None:
    assert CommandId.parse(str(id)) == id
    assert str(CommandId.parse(str(id))) == str(id)


@pytest.mark.conformance("PROP-07")
@always(TEXT | IDS.flatmap(lambda id: st.tuples(st.just(str(id)), st.integers(0, 60), TEXT).map(lambda made: made[0][: made[1]] + made[2])))
def test_any_text_is_one_command_id_or_none(text: str) -> None:
    assert told(lambda: CommandId.parse(text)) in (text, "malformed", "version")


@pytest.mark.conformance("PROP-07")
@always(st.uuids())
def test_only_random_ids_are_minted_ids(unique: uuid.UUID) -> None:
    text = f"v1.1.2.{unique}"
    if unique.version == 4 and unique.variant == uuid.RFC_4122:
        assert CommandId.parse(text).unique == unique
    else:
        with pytest.raises(InvalidCommandId):
            CommandId.parse(text)


@pytest.mark.conformance("PROP-07")
@always(TIMES, st.integers(1, 2_592_000_000), st.integers(-5, 5), st.integers(-5, 5))
def test_an_id_is_admitted_exactly_in_its_window_and_from_its_issue_on(issued: int, window: int, off: int, late: int) -> None:
    id = CommandId(issued, issued + window + off, uuid.UUID(int=0, version=4))
    expected = "window" if off else "future" if late < 0 else "None"
    assert told(lambda: check_admissible(id, window, issued + late)) == expected


SCOPES = st.text(st.sampled_from("ab:%~é") | st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300)

SHORT = st.text(st.sampled_from("ab:%~u"), min_size=1)


@pytest.mark.conformance("PROP-07")
@always(SCOPES, SCOPES, SHORT, SHORT, IDS, examples=300)
def test_own_ids_are_injective_and_never_minted(scope: str, other: str, id: str, second: str, minted: CommandId) -> None:
    assert (own_id(scope, id) == own_id(other, second)) == ((scope, id) == (other, second))
    assert own_id(scope, str(minted)) != str(minted)
    assert own_id(scope, id).startswith("u:")
    assert len(own_id(scope, id).encode()) <= 203 + len(id.encode())


ADDRESSES = st.builds(lambda tenant, kind, id: Address(0, 0, tenant, kind, id), NAME, NAME, NAME)
PEOPLE = st.builds(User, NAME) | st.builds(Anonymous)
SOURCES = st.sampled_from(["process", "actor", "timer", "job", "cron", "subscription"])
CALLERS: st.SearchStrategy[Caller] = PEOPLE | st.builds(System, SOURCES, st.none() | ADDRESSES, st.none() | PEOPLE)


@pytest.mark.conformance("PROP-07")
@always(CALLERS, CALLERS)
def test_callers_of_one_key_are_one_caller(one: Caller, other: Caller) -> None:
    assert (one.key == other.key) == (one == other)
    assert json.loads(one.key)[0] == type(one).__name__
