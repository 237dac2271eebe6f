"""Flights themselves: statements sent together, whatever is in them and whatever becomes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import ARRAY, BigInteger, Boolean, Integer, LargeBinary, Text, bindparam, func, literal_column, select, type_coerce

from akter.store.flight import Line, Lost, StatementFailed, compile_core, depart, fly, land, raw, say
from akter.store.link import Link

ECHO = compile_core(select(bindparam("value", type_=Text()).label("value")), "akter")
SAME = compile_core(select(func.unnest(bindparam("value", type_=ARRAY(Text())), type_=Text()).label("value")), "akter")
SLEEP = raw("SELECT pg_sleep(30)")


@pytest.fixture
def connection(akter_database: str) -> Iterator[psycopg.Connection[Any]]:
    connection = psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True)
    yield connection
    connection.close()


@pytest.fixture(params=[False, True], ids=["direct", "pooled"])
def send(connection: psycopg.Connection[Any], request: pytest.FixtureRequest) -> Callable[..., Any]:
    link = Link(pooled=request.param)
    return lambda *lines, seconds=20.0: fly(connection, link, [Line(*line) for line in lines], seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "NULL",
        "null",
        "{}",
        '{"a": "b"}',
        'a"b',
        "a\\b",
        "\\\\\\",
        "a,b",
        "it's",
        "\n\r\t",
        "ü €  𝄞 \u2028",
        "$1",
        None,
        "x" * 70_000,
    ],
    ids=ascii,
)
def test_a_text_comes_back_as_it_was_sent_alone_and_in_an_array(send: Callable[..., Any], value: str | None) -> None:
    lone, several = send((ECHO, {"value": value}), (SAME, {"value": [value, "between", value]}))
    assert lone.rows == [(value,)]
    assert several.rows == [(value,), ("between",), (value,)]


def test_numbers_and_truths_come_back_as_they_were_sent(send: Callable[..., Any]) -> None:
    big = compile_core(
        select(bindparam("a", type_=BigInteger()), bindparam("b", type_=BigInteger()), bindparam("c", type_=Boolean())), "akter"
    )
    (answer,) = send((big, {"a": 2**63 - 1, "b": -(2**63), "c": True}))
    assert answer.rows == [(2**63 - 1, -(2**63), True)]
    (answer,) = send((big, {"a": None, "b": 0, "c": False}))
    assert answer.rows == [(None, 0, False)]


def test_an_empty_array_is_an_array_without_elements(send: Callable[..., Any]) -> None:
    assert send((SAME, {"value": []}))[0].rows == []


@pytest.mark.parametrize("value", ["a\0b", b"a\0b", ["fine", "a\0b"]], ids=["text", "bytes", "array"])
def test_a_nul_is_refused_instead_of_ending_the_text_early(send: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match="NUL"):
        send((SAME if isinstance(value, list) else ECHO, {"value": value}))


def test_ten_megabytes_each_way_do_not_block_either_side(send: Callable[..., Any]) -> None:
    # More than all buffers between hold: who only sends would wait for a server that only sends.
    payload = "x" * 10_000_000
    answers = send(*[(ECHO, {"value": payload})] * 3, (SAME, {"value": ["y" * 1000] * 10_000}))
    assert [len(answer.rows[0][0]) for answer in answers[:3]] == [10_000_000] * 3
    assert len(answers[3].rows) == 10_000


def test_the_first_refused_statement_is_named_and_what_stands_behind_it_does_not_run(send: Callable[..., Any]) -> None:
    send((raw("CREATE TEMP TABLE t (n int)"), {}))
    with pytest.raises(StatementFailed) as failed:
        send(
            (raw("BEGIN"), {}),
            (raw("INSERT INTO t VALUES (1)"), {}),
            (raw("SELECT 1/0"), {}),
            (raw("INSERT INTO t VALUES (2)"), {}),
            (raw("COMMIT"), {}),
        )
    assert failed.value.position == 2
    assert failed.value.error.sqlstate == "22012"
    send((raw("ROLLBACK"), {}))
    count = compile_core(select(literal_column("(SELECT count(*) FROM t)", Integer())), "akter")
    assert send((count, {}))[0].rows == [(0,)]


def test_a_statement_that_cannot_be_prepared_is_named_and_can_be_sent_again(send: Callable[..., Any]) -> None:
    missing = compile_core(select(literal_column("nothing", Integer())), "akter")
    for _ in range(2):
        with pytest.raises(StatementFailed) as failed:
            send((ECHO, {"value": "1"}), (missing, {}), (ECHO, {"value": "2"}))
        assert (failed.value.position, failed.value.error.sqlstate) == (1, "42703")
    assert send((ECHO, {"value": "3"}))[0].rows == [("3",)]


def test_one_statement_may_stand_in_a_flight_twice(send: Callable[..., Any]) -> None:
    for _ in range(2):
        assert [answer.rows for answer in send((ECHO, {"value": "a"}), (ECHO, {"value": "b"}))] == [[("a",)], [("b",)]]


def test_an_error_says_what_is_wrong_without_the_row_it_met(send: Callable[..., Any]) -> None:
    with pytest.raises(StatementFailed) as failed:
        send((raw("DO $$ BEGIN RAISE EXCEPTION 'outside' USING DETAIL = 'marker', HINT = 'marker'; END $$"), {}))
    assert str(failed.value) == str(failed.value.error) == "outside"


def test_notifications_that_arrive_in_a_flight_reach_their_listener(connection: psycopg.Connection[Any]) -> None:
    heard: list[str] = []
    connection.add_notify_handler(lambda notice: heard.append(notice.payload))
    connection.execute("LISTEN here")
    link = Link(pooled=False)
    fly(connection, link, [Line(raw("SELECT pg_notify('here', 'one')"), {}), Line(ECHO, {"value": "x"})], 5.0)
    fly(connection, link, [Line(ECHO, {"value": "x"})], 5.0)
    assert heard == ["one"]


def test_what_is_said_plainly_is_heard_and_leaves_what_came_with_its_answer_to_the_listener(connection: psycopg.Connection[Any]) -> None:
    connection.execute("LISTEN here")
    say(connection, b"NOTIFY here, 'it''s me'", 5.0)
    notice = connection.pgconn.notifies()
    assert notice is not None
    assert notice.extra == b"it's me"
    assert fly(connection, Link(pooled=False), [Line(ECHO, {"value": "x"})], 5.0)[0].rows == [("x",)]


def test_what_is_said_plainly_and_refused_or_not_answered_says_so(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(StatementFailed, match="nowhere"):
        say(connection, b"TABLE nowhere", 5.0)
    say(connection, b"NOTIFY here", 5.0)
    with pytest.raises(Lost, match="did not answer"):
        say(connection, SLEEP.sql, 0.3)


def test_notices_do_not_disturb_a_flight(send: Callable[..., Any]) -> None:
    noisy = raw("DO $$ BEGIN FOR n IN 1..2000 LOOP RAISE NOTICE 'notice % %', n, repeat('x', 500); END LOOP; END $$")
    assert send((noisy, {}), (ECHO, {"value": "x"}))[1].rows == [("x",)]


def test_a_server_that_does_not_answer_is_lost_in_time(send: Callable[..., Any]) -> None:
    began = time.monotonic()
    with pytest.raises(Lost, match="did not answer"):
        send((SLEEP, {}), seconds=0.3)
    assert time.monotonic() - began < 5


def test_a_server_that_keeps_talking_without_an_end_is_lost_in_time(send: Callable[..., Any]) -> None:
    chatty = raw("DO $$ BEGIN LOOP RAISE NOTICE 'still here'; PERFORM pg_sleep(0.01); END LOOP; END $$")
    with pytest.raises(Lost, match="did not answer"):
        send((raw("SET statement_timeout = '10s'"), {}), (chatty, {}), seconds=0.3)


def test_a_connection_that_was_terminated_says_why(send: Callable[..., Any], connection: psycopg.Connection[Any], observer: Any) -> None:
    observer.terminate(connection.info.backend_pid)
    with pytest.raises(Lost) as lost:
        send((ECHO, {"value": "x"}))
    assert lost.value.sqlstate == "57P01"
    with pytest.raises(Lost):
        send((ECHO, {"value": "x"}))


def test_a_connection_that_is_terminated_while_it_works_says_why(
    send: Callable[..., Any], connection: psycopg.Connection[Any], observer: Any, aside: Any, eventually: Any
) -> None:
    flight = aside(lambda: send((ECHO, {"value": "x"}), (SLEEP, {})))
    eventually(lambda: observer.sessions("wait_event = 'PgSleep'"))
    observer.terminate(connection.info.backend_pid)
    with pytest.raises(Lost) as lost:
        flight.answer(10)
    assert lost.value.sqlstate == "57P01"


def test_a_closed_connection_is_lost_at_once(send: Callable[..., Any], connection: psycopg.Connection[Any]) -> None:
    connection.close()
    with pytest.raises(Lost):
        send((ECHO, {"value": "x"}))


def test_bytes_are_read_as_bytes(send: Callable[..., Any]) -> None:
    some = compile_core(select(type_coerce(bindparam("value", type_=Text()), LargeBinary).label("value")), "akter")
    assert send((some, {"value": b'{"a":1}'}))[0].rows == [(b'{"a":1}',)]


@pytest.mark.parametrize("slow", ["first", "second", "neither"])
def test_two_flights_that_are_sent_together_are_answered_one_after_the_other(connection: psycopg.Connection[Any], slow: str) -> None:
    link = Link(pooled=False)
    wait = Line(raw("SELECT pg_sleep(0.2)"), {})
    lines, behind = [Line(ECHO, {"value": "a"})], [Line(ECHO, {"value": "b"}), Line(SAME, {"value": ["c"]})]
    for _ in range(2):
        first, second = depart(
            connection, link, [wait, *lines] if slow == "first" else lines, [wait, *behind] if slow == "second" else behind, 20.0
        )
        assert first[-1].rows == [("a",)]
        assert [answer.rows for answer in land(connection, link, second, 20.0)[-2:]] == [[("b",)], [("c",)]]
    assert fly(connection, link, [Line(ECHO, {"value": "d"})], 5.0)[0].rows == [("d",)]


def test_a_second_flight_that_is_refused_says_so_when_it_lands(connection: psycopg.Connection[Any]) -> None:
    link = Link(pooled=False)
    first, second = depart(
        connection, link, [Line(ECHO, {"value": "a"})], [Line(raw("TABLE nowhere"), {}), Line(ECHO, {"value": "b"})], 20.0
    )
    assert first[0].rows == [("a",)]
    with pytest.raises(StatementFailed, match="nowhere"):
        land(connection, link, second, 20.0)
    assert fly(connection, link, [Line(ECHO, {"value": "d"})], 5.0)[0].rows == [("d",)]


def test_a_second_flight_that_is_not_answered_or_whose_connection_ends_is_lost(connection: psycopg.Connection[Any], observer: Any) -> None:
    link = Link(pooled=False)
    _, second = depart(connection, link, [Line(ECHO, {"value": "a"})], [Line(raw("SELECT pg_sleep(60)"), {})], 20.0)
    with pytest.raises(Lost, match="did not answer"):
        land(connection, link, second, 0.3)
    observer.rows(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
    with pytest.raises(Lost, match="terminating connection"):
        land(connection, link, second, 20.0)


def test_a_first_flight_that_is_refused_is_named(connection: psycopg.Connection[Any]) -> None:
    with pytest.raises(StatementFailed, match="nowhere") as failed:
        depart(
            connection, Link(pooled=False), [Line(ECHO, {"value": "a"}), Line(raw("TABLE nowhere"), {})], [Line(ECHO, {"value": "b"})], 5.0
        )
    assert failed.value.position == 1
