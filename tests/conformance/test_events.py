"""An actor's events: appended with the commit, numbered without gaps, read in order, and never silently incomplete."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from akter import (
    Access,
    Actor,
    Akter,
    Defect,
    Entry,
    Event,
    InsideTurn,
    PayloadInvalid,
    Rejection,
    RetentionGap,
    Unauthorized,
    UnknownCursor,
    User,
    command,
    query,
)
from akter.capability import MAX_EVENT_BYTES
from akter.errors import TurnEnded
from akter.testing import clear_faults, crash_next, inspect, pause_next

held: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _forget() -> None:
    held.clear()


class Put(Event):
    """Something was put into the box."""

    thing: str


class Counted(Event, name="box.counted", aliases=["Counted"]):
    """The box was counted."""

    things: int


class Full(Rejection):
    """The box is full."""


class Box(Actor):
    """Holds things and tells about them."""

    things: int = 0

    @command
    def put(self, *, thing: str, then: str = "") -> int:
        self.things += 1
        self.emit(Put(thing=thing))
        self.emit(Counted(things=self.things))
        if then == "refuse":
            raise Full
        if then == "fail":
            raise RuntimeError("torn")
        if then == "recover":
            try:
                self.emit(Put(thing="\0"))
            except PayloadInvalid:
                pass
        return self.things

    @command
    def only_tell(self, thing: str) -> None:
        self.emit(Put(thing=thing))

    @command
    def do(self, name: str) -> list[str]:
        return list(held[name](self))

    @query
    def see(self, name: str) -> list[str]:
        return list(held[name](self))


def told(entries: list[Entry[Put]]) -> list[str]:
    return [entry.event.thing for entry in entries]


def cursors(entries: list[Entry[Any]]) -> list[str]:
    return [entry.cursor for entry in entries]


@pytest.fixture
def app(akter_app: Any) -> Akter:
    made: Akter = akter_app(Box)
    held["app"] = made
    return made


@pytest.fixture
def box(app: Akter) -> Box:
    return app.actor(Box, "b-1")


def prune(beside: Any, through: int) -> None:
    """What retention does: the oldest events go, and nothing else."""
    beside("DELETE FROM {akter}.actor_events WHERE sequence <= :through", through=through)


@pytest.mark.conformance("EVT-01")
def test_events_are_appended_with_the_commit_and_read_class_by_class_after_a_cursor(app: Akter, box: Box) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    for thing in "abc":
        with app.command_id(f"put-{thing}", scope="test"):
            box.put(thing=thing)
    puts = app.events(box, Put)
    assert (told(puts), cursors(puts)) == (["a", "b", "c"], ["1", "3", "5"])
    assert [entry.command_id for entry in puts] == ["u:test:put-a", "u:test:put-b", "u:test:put-c"]
    assert before < puts[0].timestamp <= puts[1].timestamp <= puts[2].timestamp < before + timedelta(minutes=10)
    assert [(entry.cursor, entry.event) for entry in app.events(box, Counted, after=puts[0].cursor)] == [
        ("2", Counted(things=1)),
        ("4", Counted(things=2)),
        ("6", Counted(things=3)),
    ]
    assert told(app.events(box, Put, after="3")) == ["c"]
    assert app.events(box, Put, after="6") == []
    assert app.events(app.actor(Box, "b-2"), Put) == []


@pytest.mark.conformance("EVT-01")
def test_an_event_is_read_by_its_earlier_names_too(app: Akter, box: Box, beside: Any) -> None:
    box.put(thing="a")
    box.put(thing="b")
    beside("UPDATE {akter}.actor_events SET event = 'Counted' WHERE sequence = 2")
    assert cursors(app.events(box, Counted)) == ["2", "4"]


@pytest.mark.conformance("EVT-01", "RET-08")
def test_pages_follow_each_other_without_a_hole_until_one_is_not_full(app: Akter, box: Box) -> None:
    for number in range(25):
        box.put(thing=str(number))
    seen: list[str] = []
    sizes: list[int] = []
    cursor: str | None = None
    while not sizes or sizes[-1] == 10:
        page = app.events(box, Put, after=cursor, limit=10)
        sizes.append(len(page))
        seen += told(page)
        cursor = page[-1].cursor
    assert (sizes, seen) == ([10, 10, 5], [str(number) for number in range(25)])


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, "5", None])
def test_a_page_of_another_size_is_refused(app: Akter, box: Box, limit: Any) -> None:
    with pytest.raises(PayloadInvalid, match="from 1 to 10000"):
        app.events(box, Put, limit=limit)
    held["read"] = lambda actor: told(actor.events(Put, limit=limit))
    with pytest.raises(Defect, match="from 1 to 10000"):
        box.see("read")


@pytest.mark.conformance("EVT-02")
@pytest.mark.parametrize(("then", "ends"), [("refuse", Full), ("fail", Defect)])
def test_a_turn_that_is_refused_or_fails_appends_nothing_and_uses_no_number(app: Akter, box: Box, then: str, ends: Any) -> None:
    box.put(thing="a")
    with pytest.raises(ends):
        box.put(thing="b", then=then)
    assert inspect(app, box).event_sequence == 2
    box.put(thing="c")
    assert (told(app.events(box, Put)), cursors(app.events(box, Put))) == (["a", "c"], ["1", "3"])


@pytest.mark.conformance("EVT-02")
def test_events_are_kept_when_the_handler_catches_an_error_and_returns(app: Akter, box: Box) -> None:
    assert box.put(thing="a", then="recover") == 1
    assert (told(app.events(box, Put)), cursors(app.events(box, Counted))) == (["a"], ["2"])


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before_handler", marks=pytest.mark.conformance("EVT-03")),
        pytest.param("before_commit", marks=pytest.mark.conformance("EVT-04")),
        pytest.param("after_commit", marks=pytest.mark.conformance("EVT-05")),
    ],
)
def test_a_crash_leaves_one_event_for_each_command_and_none_for_a_refused_one(app: Akter, box: Box, point: Any) -> None:
    crash_next(app, point)
    box.only_tell("a")
    crash_next(app, point)
    with pytest.raises(Full):
        box.put(thing="b", then="refuse")
    box.only_tell("c")
    clear_faults(app)
    assert (told(app.events(box, Put)), cursors(app.events(box, Put))) == (["a", "c"], ["1", "2"])
    assert inspect(app, box).event_sequence == 2


@pytest.mark.conformance("EVT-06")
def test_an_actor_that_escaped_its_turn_emits_nothing(app: Akter, box: Box) -> None:
    def escape(actor: Box) -> list[str]:
        held["escaped"] = actor
        return []

    held["escape"] = escape
    box.do("escape")
    with pytest.raises(TurnEnded):
        held["escaped"].emit(Put(thing="late"))
    with pytest.raises(TurnEnded):
        held["escaped"].events(Put)
    box.see("escape")
    with pytest.raises(TurnEnded):
        held["escaped"].events(Put)
    assert app.events(box, Put) == []


@pytest.mark.conformance("EVT-06")
def test_an_emit_from_another_thread_spoils_the_turn(app: Akter, box: Box) -> None:
    def elsewhere(actor: Box) -> list[str]:
        def emit() -> None:
            with pytest.raises(TurnEnded):
                actor.emit(Put(thing="x"))

        in_a_thread(emit)
        return []

    held["elsewhere"] = elsewhere
    with pytest.raises(Defect):
        box.do("elsewhere")
    assert app.events(box, Put) == []


@pytest.mark.conformance("EVT-06")
@pytest.mark.parametrize("value", [{"thing": "a"}, "Put", Put, Event(), None], ids=["dict", "text", "class", "bare", "none"])
def test_what_is_no_event_of_a_class_is_refused(app: Akter, box: Box, value: Any) -> None:
    held["emit"] = lambda actor: actor.emit(value) or []
    with pytest.raises(Defect, match="takes an Event"):
        box.do("emit")
    with pytest.raises(PayloadInvalid, match="takes an Event"):
        Box().emit(value)
    assert inspect(app, box).event_sequence == 0


@pytest.mark.conformance("EVT-06")
def test_two_classes_of_one_stored_name_cannot_be_told_apart_so_the_second_is_refused(app: Akter, box: Box) -> None:
    class Other(Event, name="Put"):
        weight: int

    held["both"] = lambda actor: [actor.emit(Put(thing="a")), actor.emit(Other(weight=5))]
    with pytest.raises(Defect, match="both stored as 'Put'"):
        box.do("both")
    assert inspect(app, box).event_sequence == 0


@pytest.mark.parametrize("kind", [Box, "Put", Event, None, Put(thing="a")], ids=["actor", "text", "all", "none", "value"])
def test_events_are_read_by_their_class(app: Akter, box: Box, kind: Any) -> None:
    with pytest.raises(TypeError, match="takes the event class"):
        app.events(box, kind)


def in_a_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.conformance("EVT-07")
@pytest.mark.parametrize("own_sql", [False, True])
def test_all_reads_of_a_query_end_at_the_event_that_was_the_newest_when_it_began(app: Akter, box: Box, own_sql: bool) -> None:
    box.put(thing="a")

    def read(actor: Box) -> list[str]:
        if own_sql:
            actor.connection.execute(text("SELECT 1"))
        first = told(actor.events(Put))
        in_a_thread(lambda: box.put(thing="b"))
        second = told(actor.events(Put)), [entry.event.things for entry in actor.events(Counted)]
        return [str(first), str(second), actor.event_cursor, str(actor.things)]

    held["read"] = read
    assert box.see("read") == ["['a']", "(['a'], [1])", "2", "1"]
    assert cursors(app.events(box, Put)) == ["1", "3"]


@pytest.mark.conformance("EVT-07")
def test_a_query_whose_events_moved_before_its_own_sql_starts_again(app: Akter, box: Box) -> None:
    runs: list[list[str]] = []

    def read(actor: Box) -> list[str]:
        runs.append(told(actor.events(Put)))
        if len(runs) == 1:
            in_a_thread(lambda: box.only_tell("a"))
        actor.connection.execute(text("SELECT 1"))
        return [*told(actor.events(Put)), actor.event_cursor]

    held["read"] = read
    assert box.see("read") == ["a", "1"]
    assert runs == [[], ["a"]]


@pytest.mark.conformance("EVT-07")
def test_a_turn_reads_what_was_committed_before_it_and_not_what_it_emits(app: Akter, box: Box) -> None:
    box.put(thing="a")

    def read(actor: Box) -> list[str]:
        actor.emit(Put(thing="mine"))
        actor.connection.execute(text("SELECT 1"))
        return [*told(actor.events(Put)), actor.event_cursor]

    held["read"], held["look"] = read, lambda actor: [*told(actor.events(Put)), actor.event_cursor]
    assert box.do("read") == ["a", "2"]
    assert box.do("look") == ["a", "mine", "3"]


@pytest.mark.conformance("EVT-08")
@pytest.mark.parametrize("cursor", ["", "x", "-1", "01", "1.0", " 1", "3", "999999999999999999", "1" * 40, 1, b"1"], ids=repr)
def test_a_cursor_that_is_none_of_this_actor_is_refused(app: Akter, box: Box, cursor: Any) -> None:
    box.put(thing="a")
    with pytest.raises(UnknownCursor, match="cursor"):
        app.events(box, Put, after=cursor)
    held["read"] = lambda actor: told(actor.events(Put, after=cursor))
    with pytest.raises(UnknownCursor):
        box.see("read")
    with pytest.raises(Defect) as caught:
        box.do("read")
    assert isinstance(caught.value.__cause__, UnknownCursor)


@pytest.mark.conformance("EVT-08")
def test_pruned_history_is_a_gap_that_says_where_to_go_on(app: Akter, box: Box, beside: Any) -> None:
    for thing in "abc":
        box.put(thing=thing)
    prune(beside, through=3)
    for after in (None, "0", "1", "2"):
        with pytest.raises(RetentionGap, match="pruned") as caught:
            app.events(box, Put, after=after)
        assert (caught.value.after, caught.value.resume_after) == (after or "0", "3")
    assert told(app.events(box, Put, after=caught.value.resume_after)) == ["c"]
    # A gap of any class is one: what was pruned may have been of this one.
    prune(beside, through=4)
    with pytest.raises(RetentionGap):
        app.events(box, Put, after="3")
    assert told(app.events(box, Put, after="4")) == ["c"]


@pytest.mark.conformance("EVT-08")
def test_a_handler_and_a_query_may_go_on_after_a_gap(app: Akter, box: Box, beside: Any) -> None:
    for thing in "abc":
        box.put(thing=thing)
    prune(beside, through=2)

    def read(actor: Box) -> list[str]:
        try:
            return told(actor.events(Put))
        except RetentionGap as gap:
            return told(actor.events(Put, after=gap.resume_after))

    held["read"], held["careless"] = read, lambda actor: told(actor.events(Put))
    assert box.see("read") == ["b", "c"]
    assert box.do("read") == ["b", "c"]
    with pytest.raises(RetentionGap):
        box.see("careless")


@pytest.mark.conformance("EVT-08")
def test_no_number_is_given_out_again_after_everything_was_pruned(app: Akter, box: Box, beside: Any) -> None:
    box.put(thing="a")
    prune(beside, through=2)
    with pytest.raises(RetentionGap) as caught:
        app.events(box, Put)
    assert caught.value.resume_after == "2"
    assert app.events(box, Put, after="2") == []
    box.put(thing="b")
    assert cursors(app.events(box, Put, after="2")) == ["3"]
    with pytest.raises(RetentionGap):
        app.events(box, Put, after="1")


@pytest.mark.conformance("EVT-09")
def test_events_of_a_running_turn_are_seen_by_nobody(app: Akter, box: Box, start: Callable[..., Future[Any]]) -> None:
    box.put(thing="a")
    held["read"] = lambda actor: [*told(actor.events(Put)), actor.event_cursor]
    with pause_next(app, "before_commit") as pause:
        turn = start(lambda: box.put(thing="b"))
        pause.wait()
        assert told(app.events(box, Put)) == ["a"]
        assert box.see("read") == ["a", "2"]
        with pytest.raises(UnknownCursor):
            app.events(box, Put, after="3")
        pause.release()
        assert turn.result(20) == 2
    assert told(app.events(box, Put)) == ["a", "b"]


@pytest.mark.conformance("EVT-10")
def test_events_have_no_gap_and_no_double_when_processes_race(
    app: Akter, box: Box, akter_app: Any, other_engine: Any, start: Callable[..., Future[Any]]
) -> None:
    other = akter_app(Box, engine=other_engine).actor(Box, "b-1")

    def work(handle: Box, name: str) -> None:
        for number in range(15):
            if number % 3 == 2:
                with pytest.raises(Full):
                    handle.put(thing=f"{name}-refused", then="refuse")
            else:
                handle.put(thing=f"{name}-{number}")

    running = [start(work, handle, f"{who}{number}") for number in range(3) for who, handle in (("a", box), ("b", other))]
    for each in running:
        each.result(60)
    puts = app.events(box, Put)
    assert cursors(puts) == [str(number) for number in range(1, 121, 2)]
    assert sorted(told(puts)) == sorted(
        f"{who}{number}-{thing}" for who in "ab" for number in range(3) for thing in range(15) if thing % 3 != 2
    )
    # What a turn counted is what it saw: the order of the events is the order of the turns.
    assert [entry.event.things for entry in app.events(box, Counted)] == list(range(1, 61))


@pytest.mark.conformance("RET-09")
def test_a_turn_whose_events_are_too_large_appends_none_of_them(app: Akter, box: Box) -> None:
    large = MAX_EVENT_BYTES // 2 - 20

    def careless(actor: Box) -> list[str]:
        for _ in range(3):
            actor.emit(Put(thing="x" * large))
        return []

    held["careless"] = careless
    with pytest.raises(Defect, match="1048576 bytes"):
        box.do("careless")
    assert inspect(app, box).event_sequence == 0


@pytest.mark.conformance("RET-09")
def test_a_handler_that_catches_the_refusal_keeps_the_events_before_it_and_gets_no_more_in(app: Akter, box: Box) -> None:
    large = MAX_EVENT_BYTES // 2 - 20

    def careful(actor: Box) -> list[str]:
        outcomes: list[str] = []
        for size in (large, large, large, 1):
            try:
                actor.emit(Put(thing="x" * size))
                outcomes.append("kept")
            except PayloadInvalid:
                outcomes.append("refused")
        return outcomes

    held["careful"] = careful
    assert box.do("careful") == ["kept", "kept", "refused", "refused"]
    assert [len(thing) for thing in told(app.events(box, Put))] == [large, large]
    assert inspect(app, box).event_sequence == 2


def test_reading_events_inside_a_turn_is_the_actors_own_affair(app: Akter, box: Box) -> None:
    held["outside"] = lambda actor: told(held["app"].events(held["app"].actor(Box, "b-1"), Put))
    with pytest.raises(InsideTurn, match=r"self\.events"):
        box.see("outside")
    with pytest.raises(Defect) as caught:
        box.do("outside")
    assert isinstance(caught.value.__cause__, InsideTurn)


def test_events_from_outside_ask_the_access_policies(akter_app: Any, app: Akter, box: Box) -> None:
    box.put(thing="a")
    asked: list[Access] = []

    def policy(access: Access) -> bool:
        asked.append(access)
        return access.kind == "events" and access.caller == User("ada")

    guarded = akter_app(Box, authorize=policy)
    with guarded.acting_as(User("ada")):
        assert told(guarded.events(guarded.actor(Box, "b-1"), Put)) == ["a"]
    with guarded.acting_as(User("eve")), pytest.raises(Unauthorized, match=r"may not read Box\.Put"):
        guarded.events(guarded.actor(Box, "b-1"), Put)
    assert asked[0] == Access(User("ada"), "default", "Box", "b-1", "Put", "events")
    with app.acting_as(User("ada")), pytest.raises(Unauthorized):
        app.events(app.actor(Box, "b-1"), Put)


def test_events_stay_in_their_tenant(app: Akter, box: Box) -> None:
    box.put(thing="a")
    with app.tenant("acme"):
        theirs = app.actor(Box, "b-1")
    assert app.events(theirs, Put) == []
    theirs.put(thing="b")
    assert (told(app.events(theirs, Put)), told(app.events(box, Put))) == (["b"], ["a"])


def test_a_handle_of_another_app_is_refused(app: Akter, akter_app: Any) -> None:
    with pytest.raises(LookupError, match="a handle of this Akter"):
        app.events(akter_app(Box).actor(Box, "b-1"), Put)


def test_a_dead_pooled_connection_does_not_matter(app: Akter, box: Box, beside: Any) -> None:
    box.put(thing="a")
    beside("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    assert told(app.events(box, Put)) == ["a"]


def test_reading_in_a_turn_while_its_connection_streams_is_a_defect_instead_of_a_hang(app: Akter, box: Box) -> None:
    def stream(actor: Box) -> list[str]:
        driver = actor.connection.connection.driver_connection
        assert driver is not None
        with driver.cursor() as cursor:
            for _ in cursor.stream("SELECT generate_series(1, 10)"):
                return told(actor.events(Put))
        return []

    held["stream"] = stream
    with pytest.raises(Defect, match="in the middle of a stream"):
        box.do("stream")


def test_a_constructed_actor_records_events_and_has_none_to_read() -> None:
    box = Box()
    box.put(thing="a")
    with pytest.raises(Exception, match="has no database"):
        box.events(Put)
