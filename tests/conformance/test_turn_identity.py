"""Who an actor is, when it begins to exist, and where it is kept."""

from __future__ import annotations

import uuid

import pytest

from akter import Actor, NotCreated, Rejection, User, command, query
from akter.identity import address
from akter.testing import crash_next, inspect, receipts


class Account(Actor):
    """Exists from `open` on."""

    owner: str = ""
    balance: int = 0

    @command(creates=True)
    def open(self, owner: str) -> str:
        if owner == "nobody":
            raise NoOwner(name=owner)
        if owner == "broken":
            raise RuntimeError("broken")
        self.owner = owner
        return owner

    @command
    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @query
    def look(self) -> tuple[str, int]:
        return self.owner, self.balance


class NoOwner(Rejection):
    """An account needs an owner."""

    name: str


class Board(Actor, singleton=True):
    """There is one."""

    posts: int = 0

    @command
    def post(self) -> int:
        self.posts += 1
        return self.posts


class Echo(Actor, access=lambda access: isinstance(access.caller, User)):
    """Keeps nothing."""

    @command
    def say(self, word: str) -> str:
        return word


class Twin(Actor, access=lambda access: True):
    """For anybody."""

    said: str = ""

    @command(creates=True)
    def say(self, word: str) -> str:
        self.said = word
        return word


@pytest.mark.conformance("TURN-01")
def test_acquiring_handles_of_every_identity_mode_writes_nothing(akter_app, beside) -> None:
    app = akter_app(Account, Board, Echo)
    app.verify()
    assert app.actor(Account, "a-1").id == "a-1"
    assert app.actor(Board).id == "singleton"
    assert uuid.UUID(app.new(Account).id).version == 7
    assert repr(app.actor(Account, "a-1")) == "<Account/a-1>"
    assert [beside.count(table) for table in ("actor_generations", "actor_state", "actor_receipts")] == [0, 0, 0]


@pytest.mark.conformance("TURN-01")
def test_new_ids_are_distinct_and_sort_by_time(akter_app) -> None:
    app = akter_app(Account)
    ids = [app.new(Account).id for _ in range(200)]
    assert len(set(ids)) == 200
    stamps = [id[:13] for id in ids]
    assert stamps == sorted(stamps)


@pytest.mark.conformance("TURN-01")
def test_an_id_too_many_or_missing_is_refused_before_anything_is_written(akter_app, beside) -> None:
    app = akter_app(Account, Board)
    app.verify()
    with pytest.raises(TypeError, match="singleton"):
        app.actor(Board, "b-1")
    with pytest.raises(TypeError, match="needs an id"):
        app.actor(Account)
    assert beside.count("actor_generations") == 0


@pytest.mark.conformance("TURN-01")
def test_a_stateless_actor_leaves_receipts_and_no_state(akter_app, beside) -> None:
    app = akter_app(Echo)
    with app.acting_as(User("ada")):
        echo = app.actor(Echo, "e-1")
        with app.command_id("greeting"):
            assert echo.say("hello") == "hello"
        with app.command_id("greeting"):
            assert echo.say("hello") == "hello"
    (receipt,) = receipts(app, echo)
    assert (receipt.command, receipt.outcome) == ("say", {"ok": "hello"})
    assert beside.count("actor_state") == 0


@pytest.mark.conformance("TURN-01", "TURN-08")
def test_an_actors_rows_are_keyed_by_its_bucket_and_routing_key(akter_app, beside) -> None:
    app = akter_app(Account)
    app.actor(Account, "a-1").open("ada")
    expected = tuple(address("actor", "default", "Account", "a-1"))
    for table in ("actor_generations", "actor_state", "actor_receipts"):
        assert beside(f"SELECT bucket, routing_key, tenant_id, actor_type, actor_id FROM {{akter}}.{table}") == [expected]


@pytest.mark.conformance("TURN-01")
def test_routing_keys_never_change_between_versions() -> None:
    assert address("actor", "default", "Account", "a-1") == (-11, -761618754878638147, "default", "Account", "a-1")
    assert [address("tenant", "acme", kind, "x").routing_key for kind in ("Account", "Board")] == [
        -1027050726445383115,
        -1027050726445383115,
    ]


@pytest.mark.conformance("TURN-02")
def test_before_its_creation_an_actor_refuses_commands_and_leaves_no_trace(akter_app, beside) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a-1")
    with app.command_id("early"), pytest.raises(NotCreated, match="open"):
        account.deposit(5)
    assert [beside.count(table) for table in ("actor_generations", "actor_state", "actor_receipts")] == [0, 0, 0]
    account.open("ada")
    with app.command_id("early"):
        assert account.deposit(5) == 5


@pytest.mark.conformance("TURN-02")
def test_a_rejected_creation_is_kept_and_replayed_and_creates_nothing(akter_app) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a-1")
    for _ in range(2):
        with app.command_id("c-1"), pytest.raises(NoOwner) as caught:
            account.open("nobody")
        assert caught.value == NoOwner(name="nobody")
    found = inspect(app, account)
    assert (found.created, found.state, len(found.receipts)) == (False, None, 1)
    with pytest.raises(NotCreated):
        account.deposit(1)
    account.open("ada")
    assert inspect(app, account).created
    assert account.deposit(1) == 1


@pytest.mark.conformance("TURN-02")
def test_a_creation_that_fails_with_a_defect_leaves_nothing(akter_app, beside) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a-1")
    with pytest.raises(Exception, match="broken"):
        account.open("broken")
    assert [beside.count(table) for table in ("actor_generations", "actor_state", "actor_receipts")] == [0, 0, 0]
    with pytest.raises(NotCreated):
        account.deposit(1)


@pytest.mark.conformance("TURN-03")
def test_creation_mark_and_receipt_are_both_missing_after_a_crash_before_the_commit(akter_app, journal) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a-1")
    seen = journal(app, account)
    crash_next(app, "before_commit")
    account.open("ada")
    after_the_crash = [found for point, found in seen if point == "before_delivery"][1]
    assert (after_the_crash.created, after_the_crash.receipts, after_the_crash.state) == (False, (), None)
    found = inspect(app, account)
    assert (found.created, len(found.receipts), found.version) == (True, 1, 1)


@pytest.mark.conformance("TURN-04")
def test_creation_mark_and_receipt_are_both_there_after_a_crash_after_the_commit(akter_app, journal) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a-1")
    seen = journal(app, account)
    crash_next(app, "after_commit")
    assert account.open("ada") == "ada"
    after_the_crash = [found for point, found in seen if point == "before_delivery"][1]
    assert (after_the_crash.created, len(after_the_crash.receipts), after_the_crash.version) == (True, 1, 1)
    assert [point for point, _ in seen].count("before_handler") == 1
    found = inspect(app, account)
    assert (found.created, len(found.receipts), found.version) == (True, 1, 1)


@pytest.mark.conformance("TURN-05")
def test_creation_and_singleton_receipts_survive_a_restart(akter_app, other_engine) -> None:
    app = akter_app(Account, Board)
    with app.command_id("c-1"):
        app.actor(Account, "a-1").open("ada")
    with app.command_id("p-1"):
        assert app.actor(Board).post() == 1
    app.engine.dispose()
    again = akter_app(Account, Board, engine=other_engine)
    with again.command_id("c-1"):
        assert again.actor(Account, "a-1").open("ada") == "ada"
    with again.command_id("p-1"):
        assert again.actor(Board).post() == 1
    assert again.actor(Board).post() == 2
    assert again.actor(Account, "a-1").deposit(3) == 3
    assert inspect(again, again.actor(Account, "a-1")).version == 2


@pytest.mark.conformance("TURN-18", "TURN-26")
def test_commits_and_replays_keep_the_generation(akter_app, beside) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a-1")
    account.open("ada")
    for _ in range(3):
        with app.command_id("d-1"):
            assert account.deposit(5) == 5
    assert account.deposit(5) == 10
    assert inspect(app, account).generation == 0
    assert beside("SELECT generation, version FROM {akter}.actor_generations JOIN {akter}.actor_state USING (routing_key)") == [(0, 3)]


@pytest.mark.conformance("TURN-08")
def test_state_that_did_not_change_is_not_written(akter_app, beside) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a-1")
    account.open("ada")
    before = beside("SELECT xmin::text, ctid::text, version FROM {akter}.actor_state")
    assert account.deposit(0) == 0
    assert beside("SELECT xmin::text, ctid::text, version FROM {akter}.actor_state") == before
    assert len(receipts(app, account)) == 2


@pytest.mark.conformance("TURN-36")
def test_databases_and_tenants_never_see_each_others_state(akter_app, akter_clone, akter_schema) -> None:
    import sqlalchemy

    app = akter_app(Account)
    elsewhere = sqlalchemy.create_engine(akter_clone())
    other = akter_app(Account, engine=elsewhere)
    app.actor(Account, "a-1").open("ada")
    with app.tenant("acme"):
        app.actor(Account, "a-1").open("acme")
        theirs = app.actor(Account, "a-1")
    with pytest.raises(NotCreated):
        other.actor(Account, "a-1").deposit(1)
    other.actor(Account, "a-1").open("bob")
    assert [app.actor(Account, "a-1").look(), theirs.look(), other.actor(Account, "a-1").look()] == [("ada", 0), ("acme", 0), ("bob", 0)]
    elsewhere.dispose()


@pytest.mark.conformance("MINT-10")
def test_actors_with_new_ids_are_created_by_any_caller_the_policy_allows(akter_app) -> None:
    app = akter_app(Twin)
    with app.acting_as(User("ada")):
        twin = app.new(Twin)
        assert twin.say("hello") == "hello"
    assert inspect(app, twin).created


@pytest.mark.conformance("MINT-13")
def test_a_named_actor_whose_key_looks_like_a_minted_id_needs_no_proof(akter_app) -> None:
    app = akter_app(Twin)
    with app.acting_as(User("ada")):
        twin = app.actor(Twin, "320c3d4d-cc00-875b-8ec9-32d5f69181c0")
        assert twin.say("hello") == "hello"
    assert inspect(app, twin).created
