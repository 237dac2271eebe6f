"""State: its limit, its versions, and who may change it when."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text

from akter import Actor, Akter, Defect, Rejection, command, query
from akter.errors import InsideTurn, TurnEnded
from akter.testing import inspect, pause_next, receipts

ran: list[str] = []
held: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()
    held.clear()


class Note(Actor, max_state_bytes=32):
    """Text up to a limit: `{"text":""}` is 11 bytes."""

    text: str = ""

    @command
    def write(self, text: str) -> None:
        ran.append("write")
        self.text = text


class Counter(Actor):
    """Counts."""

    count: int = 0
    log: list[str] = []  # noqa: RUF012 - every actor gets its own copy

    @command
    def increment(self, by: int = 1) -> int:
        self.count += by
        self.log.append(f"+{by}")
        return self.count

    @command
    def keep_self(self) -> None:
        held["self"] = self
        self.count += 1

    @command
    def touch_other(self, swallow: bool) -> None:
        self.count += 100
        try:
            held["self"].count = 99
        except TurnEnded:
            if not swallow:
                raise

    @command
    def call_another(self, swallow: bool) -> None:
        self.count += 100
        try:
            held["handle"].increment()
        except InsideTurn:
            if not swallow:
                raise

    @command
    def from_a_thread(self) -> None:
        def change() -> None:
            try:
                self.count = 99
            except TurnEnded:
                ran.append("refused")

        self.count += 1
        thread = threading.Thread(target=change)
        thread.start()
        thread.join(20)

    @command
    def mutate_and_reject(self) -> None:
        self.count += 100
        self.log.append("dirty")
        raise Refused

    @query
    def value(self) -> int:
        return self.count


class Refused(Rejection):
    """No."""


@pytest.mark.conformance("TURN-06")
def test_the_state_limit_counts_utf8_bytes_of_the_whole_state(akter_app) -> None:
    app = akter_app(Note)
    note = app.actor(Note, "n-1")
    note.write("é" * 10 + "a")
    assert inspect(app, note).state == {"text": "éééééééééé" + "a"}
    with pytest.raises(Defect, match="33 bytes .*the limit is 32"):
        note.write("é" * 11)
    found = inspect(app, note)
    assert (found.state, found.version, len(found.receipts)) == ({"text": "éééééééééé" + "a"}, 1, 1)


@pytest.mark.conformance("TURN-06")
def test_state_over_its_limit_is_a_defect_that_runs_the_handler_once_and_leaves_no_receipt(akter_app) -> None:
    app = akter_app(Note)
    note = app.actor(Note, "n-1")
    for _ in range(2):
        ran.clear()
        with app.command_id("w-1"), pytest.raises(Defect) as caught:
            note.write("a" * 22)
        assert ran == ["write"]
        assert "max_state_bytes" in str(caught.value)
    assert inspect(app, note).generation is None
    assert receipts(app, note) == ()


@pytest.mark.conformance("TURN-08")
def test_large_state_is_stored_compressed(akter_app, beside) -> None:
    class Album(Actor):
        """Holds much of the same."""

        pages: list[str] = []  # noqa: RUF012

        @command
        def fill(self) -> None:
            self.pages = ["the same page again"] * 2000

    app = akter_app(Album)
    app.actor(Album, "a-1").fill()
    ((stored, whole),) = beside("SELECT pg_column_size(value), octet_length(value::text) FROM {akter}.actor_state")
    assert whole == len('{"pages":[]}') + 2000 * len('"the same page again"') + 1999
    assert stored < whole / 4


@pytest.mark.conformance("TURN-11")
def test_old_state_is_brought_up_to_date_in_a_turn_and_stored_in_the_current_shape(akter_app, beside) -> None:
    class First(Actor, name="Person"):
        """As it was."""

        name: str = ""

        @command
        def call(self, name: str) -> None:
            self.name = name

    class Third(Actor, name="Person", migrations=[lambda old: {"names": old["name"].split()}, lambda old: {"family": old["names"][-1]}]):
        """As it is, two steps later."""

        family: str = ""

        @command
        def touch(self) -> str:
            return self.family

        @command
        def refuse(self) -> None:
            raise Refused

        @query
        def look(self) -> str:
            return self.family

    akter_app(First).actor(First, "p-1").call("Ada King Lovelace")
    app = akter_app(Third)
    person = app.actor(Third, "p-1")
    assert person.look() == "Lovelace"
    with pytest.raises(Refused):
        person.refuse()
    stored = "SELECT value::text, payload_version, version FROM {akter}.actor_state"
    assert beside(stored) == [('{"name":"Ada King Lovelace"}', 0, 1)]
    assert person.touch() == "Lovelace"
    assert beside(stored) == [('{"family":"Lovelace"}', 2, 2)]
    assert person.touch() == "Lovelace"
    assert beside(stored) == [('{"family":"Lovelace"}', 2, 2)]


def _broken(_: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("secret")


@pytest.mark.conformance("TURN-12")
@pytest.mark.parametrize("chain", [[_broken], [lambda old: {"count": "many"}], [lambda old: None]], ids=["raises", "misfits", "no mapping"])
def test_a_failing_upcast_is_a_defect_that_leaves_the_rows_unchanged(akter_app, beside, chain) -> None:
    class Moved(Actor, name="Counter", migrations=chain):
        """The counter, moved wrongly."""

        count: int = 0

        @command
        def increment(self) -> int:
            ran.append("increment")
            self.count += 1
            return self.count

        @query
        def value(self) -> int:
            return self.count

    akter_app(Counter).actor(Counter, "c-1").increment()
    before = beside("SELECT value::text, version, payload_version FROM {akter}.actor_state")
    app = akter_app(Moved)
    counter = app.actor(Moved, "c-1")
    with pytest.raises(Defect):
        counter.increment()
    with pytest.raises(Defect):
        counter.value()
    assert ran == []
    assert beside("SELECT value::text, version, payload_version FROM {akter}.actor_state") == before
    assert len(receipts(app, counter)) == 1


@pytest.mark.conformance("TURN-12")
def test_state_stored_by_newer_code_is_a_defect_that_leaves_the_rows_unchanged(akter_app, beside) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    counter.increment()
    beside("UPDATE {akter}.actor_state SET payload_version = 3")
    with pytest.raises(Defect, match="newer code"):
        counter.increment()
    assert beside("SELECT value::text, version, payload_version FROM {akter}.actor_state") == [('{"count":1,"log":["+1"]}', 1, 3)]
    assert len(receipts(app, counter)) == 1


@pytest.mark.conformance("TURN-32")
def test_a_rejection_takes_back_changes_inside_mutable_fields_too(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    counter.increment()
    with pytest.raises(Refused):
        counter.mutate_and_reject()
    assert inspect(app, counter).state == {"count": 1, "log": ["+1"]}
    assert counter.increment() == 2
    assert inspect(app, counter).state == {"count": 2, "log": ["+1", "+1"]}


@pytest.mark.conformance("TURN-37")
def test_state_that_is_not_committed_is_invisible_to_a_second_connection(akter_app, beside, start) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    counter.increment()
    tables = "SELECT (SELECT value::text FROM {akter}.actor_state), (SELECT count(*) FROM {akter}.actor_receipts)"
    with pause_next(app, "before_commit") as pause:
        turn = start(counter.increment, by=5)
        pause.wait()
        assert beside(tables) == [('{"count":1,"log":["+1"]}', 1)]
        pause.release()
        assert turn.result(20) == 6
    assert beside(tables) == [('{"count":6,"log":["+1","+5"]}', 2)]


@pytest.mark.conformance("TURN-38")
def test_queries_never_see_a_running_turns_state(akter_app, other_engine, start) -> None:
    app, second = akter_app(Counter), akter_app(Counter, engine=other_engine)
    counter = app.actor(Counter, "c-1")
    counter.increment()
    for point in ("before_handler", "before_commit"):
        before = counter.value()
        with pause_next(app, point) as pause:
            turn = start(counter.increment)
            pause.wait()
            assert second.actor(Counter, "c-1").value() == before
            assert counter.value() == before
            pause.release()
            assert turn.result(20) == before + 1
        assert second.actor(Counter, "c-1").value() == before + 1


@pytest.mark.conformance("TURN-39")
@pytest.mark.parametrize("swallow", [False, True])
def test_setting_the_state_of_another_active_turn_spoils_both(akter_app, start, swallow) -> None:
    app = akter_app(Counter)
    one, other = app.actor(Counter, "c-1"), app.actor(Counter, "c-2")
    one.increment()
    reached, go_on = threading.Event(), threading.Event()

    class Gate(Counter, name="Counter"):
        """A counter that holds its turn open."""

        @command
        def hold(self) -> int:
            held["self"] = self
            self.count += 1
            reached.set()
            assert go_on.wait(20)
            return self.count

    gated = akter_app(Gate, engine=app.engine)
    turn = start(gated.actor(Gate, "c-1").hold)
    assert reached.wait(20)
    with pytest.raises(Defect, match="outside its turn"):
        other.touch_other(swallow)
    go_on.set()
    with pytest.raises(Defect, match="outside its turn"):
        turn.result(20)
    assert inspect(app, one).state == {"count": 1, "log": ["+1"]}
    assert inspect(app, other).generation is None
    assert len(receipts(app, one)) == 1


@pytest.mark.conformance("TURN-27")
@pytest.mark.parametrize("swallow", [False, True])
def test_an_actor_kept_from_an_earlier_turn_cannot_be_set(akter_app, swallow) -> None:
    app = akter_app(Counter)
    one, other = app.actor(Counter, "c-1"), app.actor(Counter, "c-2")
    one.keep_self()
    with pytest.raises(TurnEnded):
        held["self"].count = 99
    with pytest.raises(Defect):
        other.touch_other(swallow)
    assert (inspect(app, one).state, inspect(app, other).generation) == ({"count": 1, "log": []}, None)


@pytest.mark.conformance("TURN-27")
@pytest.mark.parametrize("swallow", [False, True])
def test_calling_a_handle_inside_a_turn_is_a_defect_even_if_it_is_swallowed(akter_app, swallow) -> None:
    app = akter_app(Counter)
    one, other = app.actor(Counter, "c-1"), app.actor(Counter, "c-2")
    held["handle"] = other
    with pytest.raises(Defect, match=r"self\.send"):
        one.call_another(swallow)
    assert (inspect(app, one).generation, inspect(app, other).generation) == (None, None)


@pytest.mark.conformance("TURN-27")
def test_a_thread_started_by_a_handler_cannot_set_state_and_spoils_the_turn(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    with pytest.raises(Defect, match="another thread"):
        counter.from_a_thread()
    assert ran == ["refused"]
    assert inspect(app, counter).generation is None


@pytest.mark.conformance("TURN-42")
def test_an_engine_that_migrated_can_migrate_again_and_run_turns_whatever_codecs_it_has(akter_database, akter_schema) -> None:
    def refuse(_: Any) -> Any:
        raise AssertionError("the application's JSON codec is no business of akter's")

    engine = sqlalchemy.create_engine(akter_database, json_serializer=refuse, json_deserializer=refuse)
    with engine.begin() as connection:
        connection.execute(text(f'DROP SCHEMA "{akter_schema}" CASCADE'))
    for _ in range(2):
        app = Akter(engine, actors=[Counter], schema=akter_schema)
        app.migrate()
        app.actor(Counter, "c-1").increment()
    again = Akter(akter_database, actors=[Counter], schema=akter_schema)
    again.migrate()
    assert again.actor(Counter, "c-1").increment() == 3
    assert again.actor(Counter, "c-1").value() == 3
    again.close()
    engine.dispose()
