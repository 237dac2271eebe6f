"""Names of things. The literals were computed once: another result would lose every stored actor and receipt."""

from __future__ import annotations

import enum
import uuid

import pytest

from akter.caller import Access, Anonymous, System, User, allowed
from akter.errors import InvalidCommandId, PayloadInvalid
from akter.identity import Address, CommandId, Placement, address, check_admissible, check_name, own_id, routing_key

VECTORS: list[tuple[Placement, str, str, str, int, int]] = [
    ("actor", "default", "Counter", "visits", -5471397470285865960, -76),
    ("actor", "default", "Order", "o-1", -2197592249645584746, -31),
    ("actor", "acme", "Order", "o-1", 1286158865420237383, 17),
    ("tenant", "acme", "Order", "o-1", -1027050726445383115, -15),
    ("tenant", "default", "Order", "o-2", 8532717608590641819, 118),
    ("actor", "default", "Zähler", "日本/ü:🚀", -3283655429349265671, -46),
    ("actor", "default", 'Month"End', "singleton", -7658665008052911348, -107),
    ("actor", "default", "Order", " ", -6674243903641669353, -93),
]

ID = "v1.1700000000000.1700086400000.0b0e7f3a-9c1d-4f7e-8a55-0123456789ab"


class Kind(enum.StrEnum):
    ORDER = "order-1"


class OldKind(str, enum.Enum):  # noqa: UP042 - as it was written before there was StrEnum
    ORDER = "order-1"


@pytest.mark.parametrize(("placement", "tenant", "kind", "id", "key", "bucket"), VECTORS)
def test_routing_keys_never_change(placement: Placement, tenant: str, kind: str, id: str, key: int, bucket: int) -> None:
    assert routing_key(placement, tenant, kind, id) == key
    assert address(placement, tenant, kind, id) == (bucket, key, tenant, kind, id)
    assert bucket == key >> 56
    assert -128 <= bucket <= 127


def test_placement_by_tenant_keeps_a_tenant_together_and_placement_by_actor_does_not() -> None:
    assert address("tenant", "acme", "Order", "1")[:2] == address("tenant", "acme", "Shipment", "2")[:2]
    assert address("actor", "acme", "Order", "1")[:2] != address("actor", "acme", "Order", "2")[:2]


def test_names_that_look_alike_in_one_text_have_keys_of_their_own() -> None:
    alike = [
        ("a", "b", "c"),
        ("a", "b,c", "x"),
        ("a,b", "c", "x"),
        ('a","b', "c", "x"),
        ("a", 'b","c', "x"),
        ("a", "b", 'c","x'),
        ("", "ab", "c"),
    ]
    assert len({routing_key("actor", *names) for names in alike}) == len(alike)


def test_an_address_is_said_shortly() -> None:
    assert str(address("actor", "default", "Order", "o-1")) == "Order/o-1"
    assert str(address("actor", "acme", "Order", "o-1")) == "acme:Order/o-1"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "must be text, not int"),
        (None, "must be text, not NoneType"),
        (b"x", "must be text, not bytes"),
        ("", "must not be empty"),
        ("a\0", "NUL"),
        ("\ud800", "lone surrogate"),
        ("x" * 513, "513 bytes long; the limit is 512"),
        ("ä" * 257, "514 bytes long; the limit is 512"),
    ],
    ids=repr,
)
def test_a_name_that_cannot_be_a_key_is_refused(value: object, said: str) -> None:
    with pytest.raises(PayloadInvalid, match=f"^a name .*{said}"):
        check_name(value, "a name")


@pytest.mark.parametrize("value", ["x" * 512, "ä" * 256, " ", "a:b/c%", "\U0001f680"], ids=range(5))
def test_any_other_text_is_a_name(value: str) -> None:
    assert check_name(value, "a name") == value


@pytest.mark.parametrize("value", [Kind.ORDER, OldKind.ORDER], ids=["StrEnum", "str and Enum"])
def test_a_text_of_another_type_is_stored_as_the_text_it_is(value: str) -> None:
    kept = check_name(value, "a name")
    assert type(kept) is str
    assert kept == "order-1"


# -- minted ids


def test_a_minted_id_reads_back() -> None:
    id = CommandId.parse(ID)
    assert (id.issued_at_ms, id.expires_at_ms, id.unique) == (
        1_700_000_000_000,
        1_700_086_400_000,
        uuid.UUID("0b0e7f3a-9c1d-4f7e-8a55-0123456789ab"),
    )
    assert str(id) == ID


def test_minting_takes_the_window_from_now_and_is_unique() -> None:
    first, second = CommandId.mint(1000, 60_000), CommandId.mint(1000, 60_000)
    assert (first.issued_at_ms, first.expires_at_ms) == (1000, 61_000)
    assert first != second
    assert CommandId.parse(str(first)) == first


MALFORMED = [
    "",
    "hello",
    "v1",
    "v1.",
    "v1.1.2",
    f" {ID}",
    f"{ID}\n",
    ID.upper(),
    ID.replace("v1", "V1"),
    ID.replace("1700000000000", "01700000000000"),
    ID.replace("1700000000000", "-1"),
    ID.replace("1700000000000", "1" * 16),
    ID.replace("1700000000000", ""),
    ID.replace("1700000000000", "١٧"),
    ID.replace("-4f7e-", "-1f7e-"),
    ID.replace("-4f7e-", "-8f7e-"),
    ID.replace("-8a55-", "-0a55-"),
    ID.replace("-8a55-", "-ca55-"),
    ID.replace("-", ""),
    ID + "0",
    "u::x",
    "w1.1.2.3",
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_what_was_not_minted_is_malformed(text: str) -> None:
    with pytest.raises(InvalidCommandId) as refused:
        CommandId.parse(text)
    assert (refused.value.code, refused.value.command_id, refused.value.retryable) == ("malformed", text, False)


@pytest.mark.parametrize("text", ["v2." + ID[3:], "v0.1.2.x", "v10.anything", "v02."])
def test_an_id_of_another_version_says_so(text: str) -> None:
    with pytest.raises(InvalidCommandId) as refused:
        CommandId.parse(text)
    assert refused.value.code == "version"


def test_an_id_that_is_no_text_is_malformed() -> None:
    for value in (5, None, b"v1.1.2", uuid.uuid4()):
        with pytest.raises(InvalidCommandId, match="a command id is text, not"):
            CommandId.parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window_ms", "now_ms", "code"),
    [
        (86_400_000, 1_700_000_000_000, None),
        (86_400_000, 1_800_000_000_000, None),
        (86_400_000, 1_699_999_999_999, "future"),
        (86_399_999, 1_700_000_000_000, "window"),
        (86_400_001, 1_699_999_999_999, "window"),
    ],
)
def test_an_id_is_admitted_from_its_issue_on_and_in_its_window(window_ms: int, now_ms: int, code: str | None) -> None:
    if code is None:
        check_admissible(CommandId.parse(ID), window_ms, now_ms)
        return
    with pytest.raises(InvalidCommandId) as refused:
        check_admissible(CommandId.parse(ID), window_ms, now_ms)
    assert refused.value.code == code


# -- ids of callers


def test_own_ids_are_stored_under_their_scope() -> None:
    assert own_id("shop", "order-1") == "u:shop:order-1"
    assert own_id("", "order-1") == "u::order-1"
    assert own_id("a:b%c~d", "x:y%z~") == "u:a%3Ab%25c%7Ed:x:y%z~"


def test_own_ids_of_different_scopes_and_texts_are_different() -> None:
    scopes = ["", "a", "a:", ":a", "a:b", "a%3Ab", "a%", "%", "~", "~a", "%7E", "é", "x" * 200, "x" * 201, "x" * 202, ":" * 300, ":" * 301]
    ids = ["a", ":a", "a:b", "b", "u:a:b", "%3A", ID, "é"]
    assert len({own_id(scope, id) for scope in scopes for id in ids}) == len(scopes) * len(ids)


def test_an_own_id_never_equals_a_minted_one() -> None:
    assert own_id("", ID) != ID
    with pytest.raises(InvalidCommandId):
        CommandId.parse(own_id("", ID))


def test_a_long_scope_is_kept_short() -> None:
    assert own_id("s" * 4000, "x") == "u:~ed68752cd2b054132a677f4823bb92f2:x"
    assert own_id("ä" * 1000, "x") == "u:~e33bb22e7eb7d5dd4e9dd8a61d3a0d69:x"


@pytest.mark.parametrize("id", ["", "x" * 256, "a\0", "\ud800", 5, None, b"x", uuid.UUID(int=1)], ids=repr)
def test_an_own_id_that_cannot_be_stored_is_malformed(id: object) -> None:
    with pytest.raises(InvalidCommandId) as refused:
        own_id("", id)
    assert refused.value.code == "malformed"


@pytest.mark.parametrize("scope", ["a\0", "\ud800", 5], ids=repr)
def test_a_scope_that_cannot_be_stored_is_malformed(scope: str) -> None:
    with pytest.raises(InvalidCommandId, match="a command id's scope must"):
        own_id(scope, "x")


@pytest.mark.parametrize("id", ["x" * 255, "🚀" * 255, " ", "\n", "'; DROP TABLE"], ids=range(5))
def test_any_other_text_is_an_id_of_ones_own(id: str) -> None:
    assert own_id("", id) == f"u::{id}"


# -- callers


def test_caller_keys_are_what_receipts_were_bound_to() -> None:
    where = Address(1, 2, "acme", "Order", "o-1")
    assert User("ada").key == '["User","ada"]'
    assert User('a"b').key == '["User","a\\"b"]'
    assert Anonymous().key == '["Anonymous"]'
    assert System().key == '["System","process",null,null]'
    assert System("actor", where).key == '["System","actor",["acme","Order","o-1"],null]'
    assert System("job", where, User("ada")).key == '["System","job",["acme","Order","o-1"],["User","ada"]]'
    assert System("timer", None, Anonymous()).key == '["System","timer",null,["Anonymous"]]'


@pytest.mark.parametrize("subject", ["", "a\0", "\ud800", "x" * 513, 5], ids=range(5))
def test_a_subject_that_cannot_be_stored_is_refused(subject: str) -> None:
    with pytest.raises(PayloadInvalid, match="a caller's subject"):
        User(subject)


def asks(caller: User | Anonymous | System) -> Access:
    return Access(caller, "default", "Order", "o-1", "place", "command")


def test_without_a_policy_only_the_deployments_own_code_may() -> None:
    assert allowed(asks(System()))
    assert allowed(asks(System()), None, None)
    assert not allowed(asks(User("ada")))
    assert not allowed(asks(Anonymous()), None)


def test_every_policy_must_allow() -> None:
    yes, no = (lambda access: True), (lambda access: False)
    assert allowed(asks(User("ada")), yes)
    assert allowed(asks(User("ada")), None, yes, yes)
    assert not allowed(asks(User("ada")), yes, no)
    assert not allowed(asks(System()), no), "a policy holds for the deployment's own code too"


@pytest.mark.parametrize("answer", [None, 1, "yes", object()], ids=["None", "1", "text", "object"])
def test_only_true_allows(answer: object) -> None:
    assert not allowed(asks(User("ada")), lambda access: answer)  # type: ignore[arg-type, return-value]
