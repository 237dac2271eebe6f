"""Receipts: the same command id is answered the same, and never runs twice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy

from akter import (
    Actor,
    Akter,
    Anonymous,
    CommandConflict,
    CommandExpired,
    InvalidCommandId,
    Payload,
    Rejection,
    Unauthorized,
    User,
    command,
)
from akter.call import Call
from akter.identity import CommandId
from akter.testing import advance, crash_next, inspect, pause_next, receipts

MINUTE, HOUR = 60_000, 3_600_000
ran: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


class Line(Payload):
    sku: str
    quantity: int = 1


class Short(Rejection):
    """There is too little."""

    missing: int
    wanted: list[int]


class Stock(Actor, access=lambda access: True):
    """Counts pieces."""

    pieces: int = 0

    @command
    def add(self, pieces: int, note: str = "") -> int:
        ran.append("add")
        self.pieces += pieces
        return self.pieces

    @command
    def add_lines(self, lines: list[Line], tags: dict[str, int]) -> int:
        ran.append("add_lines")
        self.pieces += sum(line.quantity for line in lines)
        return self.pieces

    @command
    def take(self, pieces: int) -> int:
        ran.append("take")
        if pieces > self.pieces:
            raise Short(missing=pieces - self.pieces, wanted=[pieces])
        self.pieces -= pieces
        return self.pieces


def given(app: Akter, id: str | CommandId, call: Callable[..., Any], *args: Any, scope: str | None = None, **kwargs: Any) -> Any:
    """Call under a command id."""
    with app.command_id(id, scope=scope):
        return call(*args, **kwargs)


@pytest.mark.conformance("TURN-18", "TURN-20")
def test_a_repeated_command_is_answered_from_its_receipt_and_writes_nothing(akter_app, beside) -> None:
    app = akter_app(Stock)
    stock = app.actor(Stock, "s-1")
    assert given(app, "a", stock.add, 5) == 5
    rows = "SELECT xmin::text FROM {akter}.actor_state UNION ALL SELECT xmin::text FROM {akter}.actor_receipts"
    before = beside(rows)
    for _ in range(3):
        assert given(app, "a", stock.add, 5) == 5
    assert ran == ["add"]
    assert beside(rows) == before
    assert len(receipts(app, stock)) == 1


@pytest.mark.conformance("TURN-19")
def test_a_rejection_rolls_back_and_is_replayed_with_class_and_fields_even_when_it_would_not_be_rejected_now(akter_app) -> None:
    app = akter_app(Stock)
    stock = app.actor(Stock, "s-1")
    with pytest.raises(Short):
        given(app, "t", stock.take, 3)
    assert inspect(app, stock).state is None
    stock.add(10)
    with pytest.raises(Short) as caught:
        given(app, "t", stock.take, 3)
    assert type(caught.value) is Short
    assert (caught.value.missing, caught.value.wanted) == (3, [3])
    assert ran == ["take", "add"]
    assert given(app, "t2", stock.take, 3) == 7


@pytest.mark.conformance("TURN-20", "ADM-02")
def test_another_process_replays_by_the_canonical_arguments_and_conflicts_on_any_change(akter_app, other_engine) -> None:
    app, second = akter_app(Stock), akter_app(Stock, engine=other_engine)
    stock, theirs = app.actor(Stock, "s-1"), second.actor(Stock, "s-1")
    assert given(app, "a", stock.add, 5) == 5
    assert given(second, "a", theirs.add, pieces=5) == 5
    assert given(second, "a", theirs.add, note="", pieces=5) == 5
    with pytest.raises(CommandConflict, match="other arguments"):
        given(second, "a", theirs.add, 6)
    with pytest.raises(CommandConflict, match="other arguments"):
        given(second, "a", theirs.add, 5, note="x")
    with pytest.raises(CommandConflict, match="take"):
        given(second, "a", theirs.take, 5)
    assert ran == ["add"]
    assert inspect(app, stock).state == {"pieces": 5}


@pytest.mark.conformance("TURN-31")
def test_the_payload_hash_ignores_the_order_of_keys_and_keeps_that_of_lists(akter_app) -> None:
    app = akter_app(Stock)
    stock = app.actor(Stock, "s-1")
    one, two = Line(sku="a", quantity=2), Line(sku="b")
    assert given(app, "l", stock.add_lines, [one, two], {"x": 1, "y": 2}) == 3
    assert given(app, "l", stock.add_lines, tags={"y": 2, "x": 1}, lines=[Line(quantity=2, sku="a"), Line(sku="b", quantity=1)]) == 3
    with pytest.raises(CommandConflict):
        given(app, "l", stock.add_lines, [two, one], {"x": 1, "y": 2})
    with pytest.raises(CommandConflict):
        given(app, "l", stock.add_lines, [one, two], {"x": 2, "y": 1})
    assert ran == ["add_lines"]


@pytest.mark.conformance("TURN-31")
def test_a_new_argument_with_a_default_does_not_change_the_hash(akter_app) -> None:
    class Old(Actor, name="Stock"):
        """As it was."""

        pieces: int = 0

        @command
        def add(self, pieces: int) -> int:
            self.pieces += pieces
            return self.pieces

    before, app = akter_app(Old), akter_app(Stock)
    assert given(before, "a", before.actor(Old, "s-1").add, 5) == 5
    assert given(app, "a", app.actor(Stock, "s-1").add, 5) == 5
    assert ran == []


@pytest.mark.conformance("TURN-21")
def test_another_caller_with_the_same_id_neither_sees_the_outcome_nor_runs_again(akter_app) -> None:
    app = akter_app(Stock)
    with app.acting_as(User("ada")):
        mine = app.actor(Stock, "s-1")
    with app.acting_as(User("eve")):
        theirs = app.actor(Stock, "s-1")
    with app.acting_as(Anonymous()):
        nobodys = app.actor(Stock, "s-1")
    minted = app.mint_command_id()
    assert given(app, minted, mine.add, 5) == 5
    assert given(app, "own", mine.add, 5, scope="shared") == 10
    for handle in (theirs, nobodys, app.actor(Stock, "s-1")):
        for id, scope in ((minted, None), ("own", "shared")):
            with pytest.raises(Unauthorized) as caught:
                given(app, id, handle.add, 5, scope=scope)
            assert caught.value.code == "receipt_access_denied"
    assert ran == ["add", "add"]
    assert given(app, minted, mine.add, 5) == 5


@pytest.mark.conformance("TURN-21")
def test_the_same_subject_keeps_access_in_another_session(akter_app, other_engine) -> None:
    app, second = akter_app(Stock), akter_app(Stock, engine=other_engine)
    with app.acting_as(User("ada")):
        assert given(app, "a", app.actor(Stock, "s-1").add, 5) == 5
    with second.acting_as(User("ada")):
        assert given(second, "a", second.actor(Stock, "s-1").add, 5) == 5
    assert ran == ["add"]


@pytest.mark.conformance("TURN-21")
def test_own_ids_of_two_callers_are_two_commands(akter_app) -> None:
    app = akter_app(Stock)
    for subject, expected in (("ada", 5), ("eve", 10)):
        with app.acting_as(User(subject)):
            assert given(app, "a", app.actor(Stock, "s-1").add, 5) == expected
    assert [receipt.command_id for receipt in receipts(app, app.actor(Stock, "s-1"))] == [
        'u:["User","ada"]:a',
        'u:["User","eve"]:a',
    ]


@pytest.mark.conformance("TURN-28")
def test_a_process_with_another_retry_window_refuses_to_start(akter_app, other_engine) -> None:
    from akter.errors import DeploymentMismatch

    akter_app(Stock, retry_window=timedelta(hours=1)).verify()
    with pytest.raises(DeploymentMismatch, match="3600000 ms .*7200000 ms"):
        akter_app(Stock, engine=other_engine, retry_window=timedelta(hours=2)).verify()


@pytest.mark.conformance("TURN-28", "TURN-30")
def test_an_id_made_for_another_retry_window_is_refused_before_anything_is_written(akter_app) -> None:
    app = akter_app(Stock, retry_window=timedelta(hours=1))
    stock = app.actor(Stock, "s-1")
    id = app.mint_command_id()
    for wrong in (HOUR - 1, HOUR + 1):
        with pytest.raises(InvalidCommandId) as caught:
            given(app, CommandId(id.issued_at_ms, id.issued_at_ms + wrong, id.unique), stock.add, 5)
        assert caught.value.code == "window"
    assert ran == []
    assert inspect(app, stock).generation is None


@pytest.mark.conformance("TURN-30")
def test_the_boundaries_of_an_ids_life_are_exact(akter_app) -> None:
    app = akter_app(Stock)
    stock: Any = app.actor(Stock, "s-1")
    id = CommandId(1_000, 2_000, uuid.uuid4())
    call = Call(
        definition=stock._definition, command=stock.add.command, address=stock._address, id=str(id), minted=id,
        arguments=None, payload_hash="", caller=User("ada"),
    )  # fmt: skip
    call.check_expiry(1_000)
    call.check_expiry(1_999)
    with pytest.raises(CommandExpired):
        call.check_expiry(2_000)
    with pytest.raises(InvalidCommandId) as caught:
        call.check_expiry(999)
    assert caught.value.code == "future"


@pytest.mark.conformance("TURN-30")
def test_ids_of_the_future_and_of_the_past_are_refused_by_the_databases_clock(akter_app) -> None:
    app = akter_app(Stock, retry_window=timedelta(hours=1))
    stock = app.actor(Stock, "s-1")
    now = app.mint_command_id().issued_at_ms
    with pytest.raises(InvalidCommandId) as caught:
        given(app, CommandId.mint(now + 10 * MINUTE, HOUR), stock.add, 5)
    assert caught.value.code == "future"
    with pytest.raises(CommandExpired):
        given(app, CommandId.mint(now - HOUR - 1, HOUR), stock.add, 5)
    assert ran == []
    assert inspect(app, stock).generation is None
    assert given(app, CommandId.mint(now - HOUR + MINUTE, HOUR), stock.add, 5) == 5
    late = CommandId.mint(now + 10 * MINUTE, HOUR)
    advance(app, timedelta(minutes=11))
    assert given(app, late, stock.add, 5) == 10


@pytest.mark.conformance("TURN-30", "ADM-05")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "malformed"),
        ("v1", "malformed"),
        ("v1.1.2.not-a-uuid", "malformed"),
        ("v1.01.2.6f9619ff-8b86-4d11-b42d-00c04fc964ff", "malformed"),
        ("v1.1.2.6F9619FF-8B86-4D11-B42D-00C04FC964FF", "malformed"),
        ("v1.1.2.6f9619ff-8b86-4d11-b42d-00c04fc964ff ", "malformed"),
        ("v1.1.1234567890123456.6f9619ff-8b86-4d11-b42d-00c04fc964ff", "malformed"),
        ("v1.1.2.320c3d4d-cc00-875b-8ec9-32d5f69181c0", "malformed"),
        ("v1.1.2.6f9619ff-8b86-1d11-b42d-00c04fc964ff", "malformed"),
        ("v1.1.2.\0", "malformed"),
        ("v1.1.2.\ud800", "malformed"),
        ("v2.1.2.6f9619ff-8b86-4d11-b42d-00c04fc964ff", "version"),
    ],
)
def test_a_text_that_is_no_minted_id_is_refused_for_good(text, code) -> None:
    with pytest.raises(InvalidCommandId) as caught:
        CommandId.parse(text)
    assert caught.value.code == code
    assert not caught.value.retryable


def test_a_minted_id_is_read_back_from_its_text(akter_app) -> None:
    app = akter_app(Stock)
    id = app.mint_command_id()
    assert CommandId.parse(str(id)) == id
    assert id.expires_at_ms - id.issued_at_ms == 86_400_000
    assert given(app, id, app.actor(Stock, "s-1").add, 5) == 5
    assert given(app, CommandId.parse(str(id)), app.actor(Stock, "s-1").add, 5) == 5
    assert ran == ["add"]


@pytest.mark.conformance("ADM-01")
@pytest.mark.parametrize(
    "forged",
    [
        CommandId(-1, 86_399_999, uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")),
        CommandId(1, 86_400_001, uuid.UUID("320c3d4d-cc00-875b-8ec9-32d5f69181c0")),
        CommandId(10**15, 10**15 + 86_400_000, uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")),
    ],
    ids=["before time", "derived", "after time"],
)
def test_an_id_that_no_clock_of_ours_gave_out_is_refused(akter_app, forged) -> None:
    app = akter_app(Stock)
    stock = app.actor(Stock, "s-1")
    with pytest.raises(InvalidCommandId):
        given(app, forged, stock.add, 5)
    assert ran == []
    assert inspect(app, stock).generation is None


@pytest.mark.conformance("ADM-01")
@pytest.mark.parametrize("extra", ["attempt", "now_ms", "caller", "command_id", "_turn"])
def test_a_call_takes_no_metadata_beside_its_declared_arguments(akter_app, extra) -> None:
    app = akter_app(Stock)
    stock = app.actor(Stock, "s-1")
    with pytest.raises(TypeError, match=extra):
        stock.add(5, **{extra: 1})
    assert inspect(app, stock).generation is None


@pytest.mark.conformance("ADM-03")
def test_a_receipt_stored_between_delivery_and_turn_is_found_under_the_lock(akter_app, other_engine, start) -> None:
    app, second = akter_app(Stock), akter_app(Stock, engine=other_engine)
    with pause_next(app, "queued") as pause:
        first = start(given, app, "a", app.actor(Stock, "s-1").add, 5)
        pause.wait()
        assert given(second, "a", second.actor(Stock, "s-1").add, 5) == 5
        second.actor(Stock, "s-1").add(1)
        pause.release()
        assert first.result(20) == 5
    assert ran == ["add", "add"]


@pytest.mark.conformance("ADM-03")
def test_a_conflicting_receipt_stored_between_delivery_and_turn_is_found_under_the_lock(akter_app, other_engine, start) -> None:
    app, second = akter_app(Stock), akter_app(Stock, engine=other_engine)
    with pause_next(app, "queued") as pause:
        first = start(given, app, "a", app.actor(Stock, "s-1").add, 6)
        pause.wait()
        assert given(second, "a", second.actor(Stock, "s-1").add, 5) == 5
        pause.release()
        with pytest.raises(CommandConflict):
            first.result(20)
    assert ran == ["add"]


@pytest.mark.conformance("TURN-34")
def test_a_command_in_flight_past_its_ids_expiry_completes_and_its_outcome_is_refused(akter_app, start) -> None:
    app = akter_app(Stock, retry_window=timedelta(minutes=1))
    stock = app.actor(Stock, "s-1")
    id = app.mint_command_id()
    with pause_next(app, "before_handler") as pause:
        turn = start(given, app, id, stock.add, 5)
        pause.wait()
        advance(app, timedelta(minutes=1))
        pause.release()
        with pytest.raises(CommandExpired):
            turn.result(20)
    found = inspect(app, stock)
    assert (found.state, len(found.receipts)) == ({"pieces": 5}, 1)
    with pytest.raises(CommandExpired):
        given(app, id, stock.add, 5)
    assert ran == ["add"]


@pytest.mark.conformance("TURN-34")
def test_a_command_admitted_before_its_ids_expiry_is_retried_past_it(akter_app) -> None:
    app = akter_app(Stock, retry_window=timedelta(minutes=1))
    stock = app.actor(Stock, "s-1")
    tries: list[Any] = []

    def watch(point: Any, _: Any) -> None:
        if point == "before_delivery":
            tries.append(point)
            if len(tries) == 2:
                advance(app, timedelta(minutes=1))

    app.faults.watch(watch)
    crash_next(app, "before_commit")
    with pytest.raises(CommandExpired):
        given(app, app.mint_command_id(), stock.add, 5)
    assert len(tries) == 2
    found = inspect(app, stock)
    assert (found.state, len(found.receipts)) == ({"pieces": 5}, 1)
    assert ran == ["add", "add"]


@pytest.mark.conformance("ADM-04")
@pytest.mark.parametrize("rejects", [False, True])
def test_expiry_is_checked_again_with_a_clock_read_after_the_commit(akter_app, start, rejects) -> None:
    app = akter_app(Stock, retry_window=timedelta(minutes=1))
    stock = app.actor(Stock, "s-1")
    with pause_next(app, "before_commit") as pause:
        turn = start(given, app, app.mint_command_id(), stock.take if rejects else stock.add, 5)
        pause.wait()
        advance(app, timedelta(minutes=1))
        pause.release()
        with pytest.raises(CommandExpired):
            turn.result(20)
    assert len(receipts(app, stock)) == 1


@pytest.mark.conformance("TURN-35")
def test_an_expired_id_stays_refused_after_its_receipt_was_pruned_and_the_process_restarted(akter_app, beside, other_engine) -> None:
    app = akter_app(Stock, retry_window=timedelta(hours=1))
    id = app.mint_command_id()
    assert given(app, id, app.actor(Stock, "s-1").add, 5) == 5
    advance(app, timedelta(hours=1))
    beside("DELETE FROM {akter}.actor_receipts")
    app.engine.dispose()
    again = akter_app(Stock, engine=other_engine, retry_window=timedelta(hours=1))
    stock = again.actor(Stock, "s-1")
    with pytest.raises(CommandExpired):
        given(again, id, stock.add, 5)
    assert ran == ["add"]
    assert inspect(again, stock).state == {"pieces": 5}


@pytest.mark.conformance("ADM-05", "PROP-02")
@pytest.mark.parametrize("id", ["", "x" * 256, "a\0b", "\ud800", "\udfff tail"])
def test_an_own_id_the_database_could_not_hold_is_refused_without_asking_it(id, akter_schema) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    app = Akter(engine, actors=[Stock], schema=akter_schema)
    stock = app.actor(Stock, "s-1")
    with pytest.raises(InvalidCommandId) as caught:
        given(app, id, stock.add, 5)
    assert (caught.value.code, caught.value.retryable) == ("malformed", False)


@pytest.mark.conformance("ADM-05")
@pytest.mark.parametrize("id", ["x", "x" * 255, "ключ ✓ 'quoted' \\ {braces}", "v1.1.2.zzz", "$outside", "u:a:b", "a:b~c%25"])
def test_any_other_text_is_an_own_id(akter_app, id) -> None:
    app = akter_app(Stock)
    stock = app.actor(Stock, "s-1")
    for _ in range(2):
        assert given(app, id, stock.add, 5) == 5
    assert ran == ["add"]
    assert app.outcome(stock, id) == 5


def test_the_outcome_of_a_command_can_be_read_by_its_caller_and_by_nobody_else(akter_app) -> None:
    app = akter_app(Stock)
    minted = app.mint_command_id()
    with app.acting_as(User("ada")):
        mine = app.actor(Stock, "s-1")
        given(app, minted, mine.add, 5)
        with pytest.raises(Short):
            given(app, "t", mine.take, 50)
        assert app.outcome(mine, minted) == 5
        assert app.outcome(mine, str(minted)) == 5
        with pytest.raises(Short):
            app.outcome(mine, "t")
        with pytest.raises(LookupError):
            app.outcome(mine, "never")
    with app.acting_as(User("eve")), pytest.raises(Unauthorized):
        app.outcome(app.actor(Stock, "s-1"), minted)
    with app.acting_as(Anonymous()):
        given(app, "n", app.actor(Stock, "s-1").add, 1, scope="shared")
    with app.acting_as(User("eve")), pytest.raises(Unauthorized):
        app.outcome(app.actor(Stock, "s-1"), "n", scope="shared")
    assert app.outcome(app.actor(Stock, "s-1"), minted) == 5
