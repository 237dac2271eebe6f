"""Minted children: ids that come from the command, one creation each, and nobody else who can bring them about."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from post import Node

from akter import (
    Actor,
    Akter,
    Anonymous,
    Defect,
    Event,
    InsideTurn,
    NotCreated,
    Rejection,
    System,
    Unauthorized,
    User,
    command,
    query,
)
from akter.caller import Minted
from akter.errors import TurnEnded
from akter.identity import address
from akter.testing import advance, clear_faults, crash_next, inspect, outbox, pause_next, receipts, settle

Make = Callable[..., Node]
held: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _forget() -> None:
    held.clear()


class Sold(Rejection):
    """There is nothing left."""


class Parcel(Actor):
    """A child: it exists from `pack` on."""

    packed: int = 0
    by: str = ""

    @command(creates=True)
    def pack(self, by: str) -> int:
        held.get("on_pack", lambda: None)()
        self.packed += 1
        self.by = by
        return self.packed

    @command
    def weigh(self) -> int:
        return self.packed

    @query
    def seen(self) -> tuple[int, str]:
        return self.packed, self.by


class Letter(Actor):
    """Another kind of child."""

    written: int = 0

    @command(creates=True)
    def write(self) -> None:
        self.written += 1


class Plain(Actor):
    """Nobody has to create it."""

    touched: int = 0

    @command
    def touch(self) -> int:
        self.touched += 1
        return self.touched


class Front(Actor, singleton=True):
    """A parent without an id."""

    @command
    def order(self) -> str:
        child = self.mint(Parcel)
        self.send(child.pack, by="front")
        return child.id


class Shop(Actor):
    """A parent."""

    orders: int = 0

    @command
    def order(self, parcels: int = 1, letters: int = 0, then: str = "") -> list[str]:
        self.orders += 1
        children: list[str] = []
        for _ in range(parcels):
            parcel = self.mint(Parcel)
            self.send(parcel.pack, by=self.id)
            children.append(parcel.id)
        for _ in range(letters):
            letter = self.mint(Letter)
            self.send(letter.write)
            children.append(letter.id)
        if then == "refuse":
            raise Sold
        if then == "fail":
            raise RuntimeError("torn")
        return children

    @command
    def do(self, name: str) -> list[str]:
        return list(held[name](self))

    @query
    def look(self, name: str) -> list[str]:
        return list(held[name](self))


def child_of(kind: str, parent: str, command_id: str, ordinal: int, child: str = "Parcel", tenant: str = "default") -> str:
    """What the contract says a child's id is, worked out apart from akter."""

    def digest(*fields: str) -> bytes:
        return hashlib.sha256(b"".join(len(text.encode()).to_bytes(4, "big") + text.encode() for text in fields)).digest()

    raw = bytearray(digest("akter.mint.1", tenant, kind, parent, command_id, str(ordinal), child)[:12])
    raw[6], raw[8] = raw[6] & 0x0F | 0x80, raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw) + digest("akter.mint.1.check", raw.hex(), child)[:4]))


@pytest.fixture
def one(node: Make) -> Node:
    return node(Shop, Front, Parcel, Letter, Plain)


@pytest.fixture
def app(one: Node) -> Akter:
    return one.app


def ordered(app: Akter, id: str, shop: str = "s-1", **options: Any) -> list[str]:
    with app.command_id(id, scope="test"):
        return app.actor(Shop, shop).order(**options)


@pytest.mark.conformance("MINT-01")
def test_a_child_has_an_id_from_its_command_and_ordinal_and_is_created_once(one: Node, app: Akter) -> None:
    first, second = ordered(app, "o-1", parcels=2)
    assert [first, second] == [child_of("Shop", "s-1", "u:test:o-1", ordinal) for ordinal in (0, 1)]
    assert uuid.UUID(first).version == 8
    assert uuid.UUID(first).variant == uuid.RFC_4122
    assert app.actor(Parcel, first).seen() == (0, "")
    settle(app, one.runner)
    assert ordered(app, "o-1", parcels=2) == [first, second]
    settle(app, one.runner)
    for id in (first, second):
        child = app.actor(Parcel, id)
        assert (child.seen(), inspect(app, child).created, len(receipts(app, child))) == ((1, "s-1"), True, 1)
        assert child.weigh() == 1


@pytest.mark.conformance("MINT-02")
def test_children_differ_by_parent_command_ordinal_and_type(one: Node, app: Akter) -> None:
    here = ordered(app, "o-1", parcels=2, letters=1)
    there = ordered(app, "o-1", shop="s-2", parcels=2, letters=1)
    later = ordered(app, "o-2", parcels=2, letters=1)
    with app.tenant("acme"):
        abroad = ordered(app, "o-1", parcels=2, letters=1)
    assert len({*here, *there, *later, *abroad}) == 12
    # The ordinal counts across types, and the type is part of the id as well.
    assert here[2] == child_of("Shop", "s-1", "u:test:o-1", 2, "Letter")
    assert here[2] != child_of("Shop", "s-1", "u:test:o-1", 2, "Parcel")
    assert abroad[0] == child_of("Shop", "s-1", "u:test:o-1", 0, tenant="acme")
    settle(app, one.runner)
    assert app.actor(Letter, here[2]).id == here[2]
    assert inspect(app, app.actor(Letter, here[2])).created


@pytest.mark.conformance("MINT-03")
def test_a_crash_before_the_commit_mints_the_same_children_again(one: Node, app: Akter) -> None:
    crash_next(app, "before_commit")
    (child,) = ordered(app, "o-1")
    clear_faults(app)
    settle(app, one.runner)
    assert child == child_of("Shop", "s-1", "u:test:o-1", 0)
    assert app.actor(Parcel, child).seen() == (1, "s-1")


@pytest.mark.conformance("MINT-04")
def test_after_a_crash_behind_the_commit_the_receipt_names_the_same_children(one: Node, app: Akter, beside: Any) -> None:
    crash_next(app, "after_commit")
    (child,) = ordered(app, "o-1")
    clear_faults(app)
    assert child == child_of("Shop", "s-1", "u:test:o-1", 0)
    assert beside.count("actor_outbox") == 1
    settle(app, one.runner)
    assert app.actor(Parcel, child).seen() == (1, "s-1")


@pytest.mark.conformance("MINT-05")
def test_commands_that_wait_for_each_other_mint_children_of_their_own(one: Node, app: Akter, start: Callable[..., Future[Any]]) -> None:
    running = {f"o-{number}": start(ordered, app, f"o-{number}", parcels=2) for number in range(6)}
    found = {id: each.result(30) for id, each in running.items()}
    assert found == {id: [child_of("Shop", "s-1", f"u:test:{id}", ordinal) for ordinal in (0, 1)] for id in running}
    settle(app, one.runner)
    assert [app.actor(Parcel, child).seen() for children in found.values() for child in children] == [(1, "s-1")] * 12


@pytest.mark.conformance("MINT-06")
@pytest.mark.parametrize(("then", "ends"), [("refuse", Sold), ("fail", Defect)])
def test_a_refused_or_broken_turn_makes_no_child(one: Node, app: Akter, beside: Any, then: str, ends: Any) -> None:
    with pytest.raises(ends):
        ordered(app, "o-1", then=then)
    settle(app, one.runner)
    assert beside("SELECT count(*) FROM {akter}.actor_generations WHERE actor_type = 'Parcel'") == [(0,)]
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("MINT-06")
@pytest.mark.parametrize("instead", ["nothing", "another child", "another command"])
def test_a_child_that_gets_no_creating_message_is_a_defect_and_nothing_is_saved(app: Akter, beside: Any, instead: str) -> None:
    def forgetful(shop: Shop) -> list[str]:
        child = shop.mint(Parcel)
        if instead == "another child":
            shop.send(shop.mint(Parcel).pack, by="x")
        elif instead == "another command":
            shop.send(child.weigh)
        return [child.id]

    held["forgetful"] = forgetful
    with pytest.raises(Defect, match="no message that creates it"):
        app.actor(Shop, "s-1").do("forgetful")
    assert [beside.count(table) for table in ("actor_receipts", "actor_outbox")] == [0, 0]


@pytest.mark.conformance("MINT-07")
def test_nobody_creates_a_child_before_its_parent_commits(one: Node, app: Akter, start: Callable[..., Future[Any]]) -> None:
    child = child_of("Shop", "s-1", "u:test:o-1", 0)
    with pause_next(app, "before_commit") as pause:
        turn = start(ordered, app, "o-1")
        pause.wait()
        with pytest.raises(Unauthorized) as caught:
            app.actor(Parcel, child).pack(by="thief")
        assert caught.value.code == "access_denied"
        assert inspect(app, app.actor(Parcel, child)).generation is None
        pause.release()
        assert turn.result(20) == [child]
    settle(app, one.runner)
    assert app.actor(Parcel, child).seen() == (1, "s-1")


@pytest.mark.conformance("MINT-08")
def test_a_child_stays_uncreated_while_its_creating_turn_fails(one: Node, app: Akter) -> None:
    def torn() -> None:
        raise RuntimeError("torn")

    held["on_pack"] = torn
    (id,) = ordered(app, "o-1")
    settle(app, one.runner)
    child = app.actor(Parcel, id)
    assert not inspect(app, child).created
    with pytest.raises(NotCreated):
        child.weigh()
    with pytest.raises(Unauthorized):
        child.pack(by="thief")
    held.clear()
    advance(app, timedelta(minutes=5), one.runner)
    assert (child.seen(), child.weigh()) == ((1, "s-1"), 1)


CALLERS = [
    System(),
    User("eve"),
    Anonymous(),
    System("actor", address("actor", "default", "Shop", "s-1")),
    System("actor", address("actor", "default", "Shop", "s-1"), None, Minted("u:test:o-1", 0)),
]


@pytest.mark.conformance("MINT-09")
@pytest.mark.parametrize("created", [False, True])
@pytest.mark.parametrize("caller", CALLERS, ids=["process", "user", "anonymous", "parent", "parent with a copied proof"])
def test_without_the_proof_nobody_creates_a_child(one: Node, app: Akter, beside: Any, caller: Any, created: bool) -> None:
    app.authorize = lambda access: True
    (id,) = ordered(app, "o-1")
    if created:
        settle(app, one.runner)
    before = beside.count("actor_receipts"), beside.count("actor_outbox")
    with app.acting_as(caller):
        child = app.actor(Parcel, id)
        with pytest.raises(Unauthorized, match="minted child") as caught:
            child.pack(by="thief")
        assert caught.value.code == "access_denied"
        with pytest.raises(Unauthorized, match="minted child"):
            app.send(child.pack, by="thief")
        with app.engine.begin() as connection, pytest.raises(Unauthorized, match="minted child"):
            app.within(connection).send(child.pack, by="thief")
    assert (beside.count("actor_receipts"), beside.count("actor_outbox")) == before
    settle(app, one.runner)
    assert app.actor(Parcel, id).seen() == (1, "s-1")


@pytest.mark.conformance("MINT-09")
@pytest.mark.parametrize("who", ["another actor", "the parent, later"])
def test_a_turn_that_did_not_mint_a_child_cannot_send_it_its_creation(one: Node, app: Akter, beside: Any, who: str) -> None:
    (id,) = ordered(app, "o-1")
    held["steal"] = lambda shop: [shop.send(shop.actor(Parcel, id).pack, by="thief")]
    with pytest.raises(Defect, match=r"only the turn that mints it"):
        app.actor(Shop, "s-1" if who == "the parent, later" else "s-2").do("steal")
    assert beside.count("actor_outbox") == 1


@pytest.mark.conformance("MINT-09")
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param("UPDATE {akter}.actor_outbox SET actor_id = 's-2'", id="another sender"),
        pytest.param("UPDATE {akter}.actor_outbox SET actor_type = '$outside', actor_id = '$outside'", id="from outside"),
        pytest.param("UPDATE {akter}.actor_outbox SET caller = replace(caller, ',0]', ',1]')", id="another ordinal"),
        pytest.param("UPDATE {akter}.actor_outbox SET caller = replace(caller, 'o-1', 'o-2')", id="another command"),
        pytest.param("""UPDATE {akter}.actor_outbox SET caller = '{"source":"actor"}'""", id="no proof"),
        pytest.param("UPDATE {akter}.actor_outbox SET target_id = :sibling", id="another child"),
    ],
)
def test_a_message_whose_proof_does_not_fit_is_parked_and_says_why(one: Node, app: Akter, beside: Any, forged: str) -> None:
    ordered(app, "o-1")
    beside(forged, **({"sibling": child_of("Shop", "s-1", "u:test:o-1", 1)} if ":sibling" in forged else {}))
    settle(app, one.runner)
    ((error, due),) = beside("SELECT last_error, due_at_ms FROM {akter}.actor_outbox")
    assert error.startswith("parked: Unauthorized: Parcel.pack")
    assert due == 2**53 - 1
    assert beside("SELECT count(*) FROM {akter}.actor_receipts WHERE actor_type = 'Parcel'") == [(0,)]


@pytest.mark.conformance("MINT-10")
def test_an_actor_with_a_new_random_id_is_created_by_whoever_may(app: Akter) -> None:
    app.authorize = lambda access: access.caller == User("ada")
    with app.acting_as(User("ada")):
        child = app.new(Parcel)
        assert child.pack(by="ada") == 1
    assert uuid.UUID(child.id).version == 7
    with app.acting_as(User("eve")), pytest.raises(Unauthorized, match="may not call"):
        app.new(Parcel).pack(by="eve")
    with app.acting_as(User("ada")):
        assert app.actor(Parcel, "a name").pack(by="ada") == 1


@pytest.mark.conformance("MINT-11")
def test_a_message_that_was_asked_for_before_the_mint_creates_the_child_too(one: Node, app: Akter) -> None:
    id = child_of("Shop", "s-1", "u:test:o-1", 0)

    def early(shop: Shop) -> list[str]:
        shop.send(shop.actor(Parcel, id).pack, by="early")
        return [shop.mint(Parcel).id]

    held["early"] = early
    with app.command_id("o-1", scope="test"):
        assert app.actor(Shop, "s-1").do("early") == [id]
    settle(app, one.runner)
    assert app.actor(Parcel, id).seen() == (1, "early")


@pytest.mark.conformance("MINT-11")
def test_a_child_may_be_created_later_by_a_timer_without_a_key(one: Node, app: Akter) -> None:
    def later(shop: Shop) -> list[str]:
        child = shop.mint(Parcel)
        shop.after(timedelta(hours=1)).send(child.pack, by="timer")
        shop.send(child.weigh)
        return [child.id]

    held["later"] = later
    (id,) = app.actor(Shop, "s-1").do("later")
    settle(app, one.runner)
    assert app.actor(Parcel, id).seen() == (0, "")
    advance(app, timedelta(hours=1), one.runner)
    assert app.actor(Parcel, id).seen() == (1, "timer")


@pytest.mark.conformance("MINT-12")
def test_a_singleton_mints_children_under_an_empty_id(one: Node, app: Akter) -> None:
    with app.command_id("o-1", scope="test"):
        id = app.actor(Front).order()
    assert id == child_of("Front", "", "u:test:o-1", 0)
    settle(app, one.runner)
    assert app.actor(Parcel, id).seen() == (1, "front")


@pytest.mark.conformance("MINT-13")
def test_a_name_that_looks_like_a_minted_id_or_is_one_of_another_type_needs_no_proof(one: Node, app: Akter) -> None:
    (minted,) = ordered(app, "o-1")
    assert app.actor(Plain, minted).touch() == 1
    # An actor of another type may be named after a minted one, and version 8 UUIDs of the application's are names.
    held["follow"] = lambda shop: [shop.send(shop.actor(Letter, minted).write)]
    app.actor(Shop, "s-1").do("follow")
    app.actor(Letter, minted).write()
    settle(app, one.runner)
    assert inspect(app, app.actor(Letter, minted)).state == {"written": 2}
    for named in ("320c3d4d-cc00-875b-8ec9-32d5f69181c0", minted.upper(), str(uuid.uuid4())):
        assert app.actor(Parcel, named).pack(by="ada") == 1


@pytest.mark.conformance("MINT-14")
def test_a_minted_child_is_reached_after_its_class_needs_no_creation_any_more(one: Node, app: Akter, akter_app: Any) -> None:
    created, waiting = ordered(app, "o-1")[0], ""
    settle(app, one.runner)
    waiting = ordered(app, "o-2")[0]

    class Newer(Actor, name="Parcel"):
        packed: int = 0
        by: str = ""

        @command
        def pack(self, by: str) -> int:
            self.packed += 1
            return self.packed

        @command
        def weigh(self) -> int:
            return self.packed

    newer = akter_app(Newer)
    assert newer.actor(Newer, created).weigh() == 1
    assert newer.actor(Newer, created).pack(by="anybody") == 2
    assert newer.actor(Newer, waiting).weigh() == 0


@pytest.mark.conformance("MINT-15")
def test_an_actor_that_escaped_its_turn_mints_nothing(app: Akter) -> None:
    def escape(shop: Shop) -> list[str]:
        held["escaped"] = shop
        return []

    held["escape"] = escape
    app.actor(Shop, "s-1").do("escape")
    with pytest.raises(TurnEnded):
        held["escaped"].mint(Parcel)
    held["mint"] = lambda shop: [shop.mint(Parcel).id]
    with pytest.raises(InsideTurn, match="query"):
        app.actor(Shop, "s-1").look("mint")


@pytest.mark.conformance("MINT-15")
@pytest.mark.parametrize("second", [False, True])
def test_the_creating_message_may_not_carry_a_key(app: Akter, beside: Any, second: bool) -> None:
    def keyed(shop: Shop) -> list[str]:
        child = shop.mint(Parcel)
        if second:
            shop.send(child.pack, by="first")
        shop.after(timedelta(0), key="later").send(child.pack, by="keyed")
        return [child.id]

    held["keyed"] = keyed
    with pytest.raises(Defect, match="cannot carry a key"):
        app.actor(Shop, "s-1").do("keyed")
    assert beside.count("actor_outbox") == 0


@pytest.mark.conformance("MINT-15")
@pytest.mark.parametrize("kind", [Plain, Front, Event, "Parcel", None], ids=["nobody creates it", "singleton", "event", "text", "none"])
def test_what_cannot_be_minted_is_refused_with_the_remedy(app: Akter, kind: Any) -> None:
    held["mint"] = lambda shop: [shop.mint(kind).id]
    with pytest.raises(Defect, match="creates=True"):
        app.actor(Shop, "s-1").do("mint")
    with pytest.raises(TypeError, match="creates=True"):
        Shop().mint(kind)


def test_a_constructed_actor_mints_the_same_children_each_time() -> None:
    shop, again = Shop(), Shop()
    children = shop.order(parcels=2)
    assert len(set(children)) == 2
    assert again.order(parcels=2) == children
    assert [request.target.actor_id for request in outbox(shop)] == children  # type: ignore[union-attr]


def test_children_are_created_by_messages_that_share_a_transaction(one: Node, app: Akter) -> None:
    for number in range(3):
        children = ordered(app, f"o-{number}", parcels=10)
        settle(app, one.runner)
        assert [app.actor(Parcel, child).seen() for child in children] == [(1, "s-1")] * 10


def test_a_relay_that_dies_after_the_creation_creates_nothing_twice(one: Node, app: Akter) -> None:
    (id,) = ordered(app, "o-1")
    crash_next(app, "before_outbox_delete")
    settle(app, one.runner)
    advance(app, timedelta(minutes=5), one.runner)
    child = app.actor(Parcel, id)
    assert (child.seen(), len(receipts(app, child))) == ((1, "s-1"), 1)
