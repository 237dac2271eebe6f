"""Hints are said in the thread that committed, where that takes no time, and by a thread of their own otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from akter import Actor, Akter, command
from akter.hint import Wakes
from akter.store.voice import REST, Voice


class Inbox(Actor):
    """Takes letters."""

    @command
    def take(self, letter: str) -> None: ...


@pytest.fixture
def channel(akter_database: str, akter_schema: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as listening:
        listening.execute(f'LISTEN "akter_{akter_schema}"')
        yield listening


@pytest.fixture
def voice(akter_engine: Engine, akter_schema: str) -> Iterator[Voice]:
    made = Voice(akter_engine, akter_schema)
    yield made
    made.close()


def heard(channel: psycopg.Connection[Any], count: int) -> list[str]:
    return [notice.payload for notice in channel.notifies(timeout=10, stop_after=count)]


def rested(voice: Voice) -> Voice:
    threading.Event().wait(2 * REST)
    return voice


def test_without_a_connection_nothing_is_said_at_once(voice: Voice) -> None:
    assert not voice.at_once("a")


def test_what_is_said_at_once_is_heard(voice: Voice, channel: psycopg.Connection[Any]) -> None:
    voice.say("a")
    assert rested(voice).at_once("b")
    assert heard(channel, 2) == ["a", "b"]
    eventually_answered(voice)
    assert rested(voice).at_once("c")
    eventually_answered(voice)
    voice.say("d")
    assert heard(channel, 2) == ["c", "d"]


def eventually_answered(voice: Voice) -> None:
    connection = voice._connection
    assert connection is not None
    for _ in range(2000):
        if voice._heard(connection):
            return
        threading.Event().wait(0.005)
    raise AssertionError("the server does not answer")


def test_two_hints_are_a_rest_apart(voice: Voice) -> None:
    voice.say("a")
    voice._said_at += 60.0
    assert not voice.at_once("b")
    assert voice.rest() > 59.0


def test_a_voice_that_somebody_uses_is_not_waited_for(voice: Voice) -> None:
    voice.say("a")
    with voice._lock:
        assert not rested(voice).at_once("b")


def test_a_voice_of_the_process_that_forked_is_not_used(voice: Voice) -> None:
    voice.say("a")
    voice._pid += 1
    assert not rested(voice).at_once("b")


def test_a_connection_that_the_server_ended_is_replaced(voice: Voice, channel: psycopg.Connection[Any], akter_database: str) -> None:
    voice.say("a")
    first = voice._connection
    assert first is not None
    pid = first.info.backend_pid
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    assert not rested(voice).at_once("b"), "it would say it to nobody"
    voice.say("c")
    assert rested(voice).at_once("d")
    assert heard(channel, 3) == ["a", "c", "d"]


def slow_to_answer(voice: Voice, seconds: bytes) -> psycopg.Connection[Any]:
    """Let the server take that long to answer a hint; returns the connection on which it does."""
    voice.say("a")
    first = voice._connection
    assert first is not None
    first.pgconn.send_query(b"SELECT pg_sleep(" + seconds + b")")
    first.pgconn.flush()
    voice._answered = False
    assert not rested(voice).at_once("b")
    return first


def test_a_server_that_does_not_answer_has_its_connection_replaced(voice: Voice, channel: psycopg.Connection[Any]) -> None:
    first = slow_to_answer(voice, b"60")
    voice.say("c")
    assert voice._connection is not first
    assert heard(channel, 2) == ["a", "c"]


def test_a_server_that_answers_late_keeps_its_connection(voice: Voice, channel: psycopg.Connection[Any]) -> None:
    first = slow_to_answer(voice, b"0.3")
    voice.say("c")
    assert voice._connection is first
    assert heard(channel, 2) == ["a", "c"]


def test_commits_say_it_themselves_as_soon_as_there_is_a_connection(
    akter_app: Any, channel: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Akter = akter_app(Inbox)
    app.send(app.actor(Inbox, "a").take, "x")
    assert len(heard(channel, 1)) == 1
    said: list[str] = []
    real = Voice.at_once

    def at_once(voice: Voice, hint: str) -> bool:
        done = real(voice, hint)
        said.append(f"{threading.current_thread().name} {done}")
        return done

    monkeypatch.setattr(Voice, "at_once", at_once)
    wakes: Wakes = app.wakes
    rested(wakes._voice)
    app.send(app.actor(Inbox, "a").take, "x")
    assert said == [f"{threading.current_thread().name} True"]
    assert len(heard(channel, 1)) == 1
    wakes._voice._said_at += 1.0
    app.send(app.actor(Inbox, "a").take, "x")
    app.send(app.actor(Inbox, "a").take, "x")
    assert len(heard(channel, 1)) == 1, "what was committed meanwhile shares a hint of the thread's"
    assert not wakes._pending.some
