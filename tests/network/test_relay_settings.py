"""Runners on databases whose defaults are not PostgreSQL's, and beside sessions that hold up who notifies."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from akter import Actor, Akter, Attempt, DeadLetter, Event, Job, NotApplied, Retry, Runner, command, subscription
from akter.operating import Operator
from akter.testing import inspect, settle


def _defaults() -> dict[str, dict[str, str]]:
    spec = importlib.util.spec_from_file_location("akter_tests_network_settings", Path(__file__).with_name("test_settings.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, dict[str, str]] = module.DEFAULTS
    return found


DEFAULTS = _defaults()


class Box(Actor):
    """Keeps letters and passes them on."""

    letters: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def keep(self, letter: str) -> None:
        self.letters = [*self.letters, letter]

    @command
    def pass_on(self, letter: str, to: str) -> None:
        self.send(self.actor(Box, to).keep, letter)


@pytest.mark.parametrize("settings", DEFAULTS.values(), ids=DEFAULTS)
def test_runners_do_not_depend_on_the_databases_defaults(
    akter_app: Callable[..., Akter], make_engine: Callable[..., Any], akter_database: str, configure: Any, settings: dict[str, str]
) -> None:
    configure(settings)
    apps = [akter_app(Box, engine=make_engine(akter_database, pool_size=8)) for _ in range(2)]
    words = "\\ ' \" $1 %s ü 𝄞 \\x41 {} ,"
    with Runner(apps[0], poll=0.05), Runner(apps[1], poll=0.05) as runner:
        for number in range(20):
            apps[0].actor(Box, f"from-{number}").pass_on(words, f"to-{number}")
        with apps[0].engine.connect() as connection, connection.begin():
            # Of the application's own, so its defaults hold; where they forbid writing, it says so.
            connection.exec_driver_sql("SET TRANSACTION READ WRITE")
            apps[0].within(connection).send(apps[0].actor(Box, "lent").keep, words)
        runner.drain()
        assert Operator(apps[0].engine, schema=apps[0].schema).health().good
    settle(apps[1])
    boxes = [f"to-{number}" for number in range(20)] + ["lent"]
    kept = [inspect(apps[1], apps[1].actor(Box, box)).state for box in boxes]
    assert kept == [{"letters": [words]}] * 21


def repeat(attempt: Attempt, word: str) -> str:
    """Says a word again; one that begins with "late" only the second time, and "never" not at all."""
    if word.startswith("never") or (word.startswith("late") and attempt.number == 1):
        raise NotApplied("not now")
    return word


class Heard(Event):
    """A job ended."""

    word: str


class Caller(Actor):
    """Asks for jobs, and tells its followers what it hears of them."""

    freely = Job(repeat, retry=Retry(attempts=2, base=0.01, cap=0.01))
    singly = Job(repeat, retry=Retry(attempts=2, base=0.01, cap=0.01), concurrency=1)

    @command
    def ask(self, words: list[str]) -> None:
        for word in words:
            self.enqueue(self.freely, f"{word}, free")
            self.enqueue(self.singly, f"{word}, single")

    @command
    def change_mind(self) -> None:
        self.after(timedelta(hours=1), key="k").enqueue(self.freely, "cancelled")
        self.cancel("k")

    @freely.on_success
    def free(self, word: str) -> None:
        self.emit(Heard(word=word))

    @singly.on_success
    def single(self, word: str) -> None:
        self.emit(Heard(word=word))

    @freely.on_dead_letter
    def freely_dead(self, letter: DeadLetter) -> None:
        self.emit(Heard(word=f"{letter.attempts} attempts, free"))

    @singly.on_dead_letter
    def singly_dead(self, letter: DeadLetter) -> None:
        self.emit(Heard(word=f"{letter.attempts} attempts, single"))


class Book(Actor):
    """Follows every caller."""

    words: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @subscription(Heard, source=Caller, to=lambda _: "all")
    def note(self, heard: Heard) -> None:
        self.words = [*self.words, heard.word]


class Reader(Actor):
    """Follows the callers that it was told to, until it was told not to."""

    words: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @subscription(Heard, source=Caller)
    def note(self, heard: Heard) -> None:
        self.words = [*self.words, heard.word]

    @command
    def begin(self, caller: str) -> None:
        self.subscribe(self.note, self.actor(Caller, caller), since="start")

    @command
    def end(self, caller: str) -> None:
        self.unsubscribe(self.note, self.actor(Caller, caller))


@pytest.mark.parametrize("settings", DEFAULTS.values(), ids=DEFAULTS)
def test_jobs_and_followers_do_not_depend_on_the_databases_defaults(
    akter_app: Callable[..., Akter],
    make_engine: Callable[..., Any],
    akter_database: str,
    configure: Any,
    eventually: Any,
    settings: dict[str, str],
) -> None:
    configure(settings)
    apps = [akter_app(Caller, Book, Reader, engine=make_engine(akter_database, pool_size=8)) for _ in range(2)]
    words = ["\\ ' \" $1 %s ü 𝄞 \\x41 {} ,", "late", "never"]
    told = [f"{word}, {how}" for word in (*words[:2], "2 attempts") for how in ("free", "single")]
    callers = ["one", "two", "three"]

    def heard(kind: type[Book | Reader], id: str) -> list[str]:
        return sorted((inspect(apps[1], apps[1].actor(kind, id)).state or {}).get("words", []))

    with Runner(apps[0], poll=0.05), Runner(apps[1], poll=0.05) as runner:
        apps[0].actor(Reader, "r").begin("one")
        for caller in callers:
            apps[0].actor(Caller, caller).ask(words)
            apps[0].actor(Caller, caller).change_mind()
        eventually(lambda: heard(Book, "all") == sorted(told * len(callers)), 60)
        eventually(lambda: heard(Reader, "r") == sorted(told), 60)
        apps[0].actor(Reader, "r").end("one")
        runner.drain()
        operator = Operator(apps[0].engine, schema=apps[0].schema)
        dead = sorted((letter.actor_id, letter.job, letter.attempts) for letter in operator.letters.list())
        assert dead == sorted((caller, job, 2) for caller in callers for job in ("freely", "singly"))
        assert operator.health().good
    assert heard(Reader, "r") == sorted(told)
