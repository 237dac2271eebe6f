"""Command ids of one's own, event loops, and where calls may be made from."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from akter import Actor, InsideTurn, InvalidCommandId, command, query
from akter.testing import inspect, receipts

held: dict[str, object] = {}


class Counter(Actor):
    """Counts."""

    count: int = 0

    @command
    def increment(self) -> int:
        self.count += 1
        return self.count

    @command
    def open_a_block(self) -> None:
        with held["app"].command_id("inner"):  # type: ignore[attr-defined]
            pass

    @query
    def value(self) -> int:
        return self.count


@pytest.mark.conformance("TURN-20")
def test_a_command_id_covers_exactly_one_command(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    with app.command_id("a"):
        assert counter.increment() == 1
        assert counter.value() == 1
        with pytest.raises(InvalidCommandId, match="exactly one"):
            counter.increment()
        with pytest.raises(InvalidCommandId, match="exactly one"):
            app.actor(Counter, "c-2").increment()
    assert counter.increment() == 2
    assert len(receipts(app, counter)) == 2


@pytest.mark.conformance("TURN-20")
def test_a_command_id_is_not_used_up_by_a_call_that_was_refused_before_it_began(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    with app.command_id("a"):
        with pytest.raises(TypeError):
            counter.increment(5)  # type: ignore[call-arg]
        assert counter.increment() == 1


@pytest.mark.conformance("TURN-20")
def test_the_innermost_command_id_counts(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    with app.command_id("outer"):
        with app.command_id("inner"):
            assert counter.increment() == 1
        assert counter.increment() == 2
    with app.command_id("inner"):
        assert counter.increment() == 1
    with app.command_id("outer"):
        assert counter.increment() == 2
    assert inspect(app, counter).state == {"count": 2}


@pytest.mark.conformance("TURN-20")
def test_a_command_id_goes_along_with_its_context_and_is_used_once_by_whichever_thread_is_first(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")
    outcomes: list[object] = []

    def call() -> None:
        try:
            outcomes.append(counter.increment())
        except InvalidCommandId as problem:
            outcomes.append(type(problem))

    with app.command_id("a"):
        threads = [threading.Thread(target=contextvars.copy_context().run, args=(call,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(outcomes, key=str) == [1, InvalidCommandId, InvalidCommandId, InvalidCommandId]
    assert len(receipts(app, counter)) == 1


@pytest.mark.conformance("TURN-20")
def test_own_ids_of_two_actors_and_two_tenants_are_two_commands(akter_app) -> None:
    app = akter_app(Counter)
    for id, tenant in (("c-1", "acme"), ("c-1", "umbrella"), ("c-2", "acme")):
        with app.tenant(tenant), app.command_id("a"):
            assert app.actor(Counter, id).increment() == 1


@pytest.mark.conformance("TURN-27")
def test_a_command_id_block_inside_a_turn_is_refused(akter_app) -> None:
    app = akter_app(Counter)
    held["app"] = app
    with pytest.raises(Exception, match="belongs outside turns") as caught:
        app.actor(Counter, "c-1").open_a_block()
    assert isinstance(caught.value.__cause__, InsideTurn)
    assert inspect(app, app.actor(Counter, "c-1")).generation is None


def test_a_call_in_a_running_event_loop_works_and_warns_with_the_remedy(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")

    async def blocking() -> tuple[int, int]:
        with pytest.warns(RuntimeWarning, match=r"increment blocks the event loop.*asyncio\.to_thread") as seen:
            one = counter.increment()
        with pytest.warns(RuntimeWarning, match=r"value blocks the event loop.*asyncio\.to_thread"):
            other = counter.value()
        assert seen[0].filename == __file__
        return one, other

    async def polite() -> tuple[int, int]:
        return await asyncio.to_thread(counter.increment), await asyncio.to_thread(counter.value)

    assert asyncio.run(blocking()) == (1, 1)
    assert asyncio.run(polite()) == (2, 2)


def test_a_call_under_asyncios_to_thread_keeps_its_command_id(akter_app) -> None:
    app = akter_app(Counter)
    counter = app.actor(Counter, "c-1")

    async def twice() -> list[int]:
        answers = []
        for _ in range(2):
            with app.command_id("a"):
                answers.append(await asyncio.to_thread(counter.increment))
        return answers

    assert asyncio.run(twice()) == [1, 1]
