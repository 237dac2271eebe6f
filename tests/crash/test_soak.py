"""A short soak, and what its checker says when something is wrong with what it left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from soak import Options, Soaked, judged, soak
from soaking.checker import Stored, check
from soaking.judge import Letter
from soaking.plan import Order, actions, orders, steps
from soaking.provider import Call
from soaking.tables import plain
from soaking.working import Place

OPTIONS = Options(seed=7, intents=1500, actors=300, seconds=8.0)


def damage(state: str) -> Callable[[psycopg.Connection[Any]], int]:
    """Change the state of an actor that has at least three lines of history, as a Python statement about `state` says."""

    def change(connection: psycopg.Connection[Any]) -> int:
        rows = connection.execute("SELECT ctid::text, value::text, version FROM akter.actor_state WHERE actor_type = 'Node'").fetchall()
        where, value, version = next(row for row in rows if len(json.loads(row[1])["history"]) > 2)
        found: dict[str, Any] = {**json.loads(value), "version": version}
        exec(state, {"state": found, "history": found["history"]})
        version = found.pop("version")
        changed = "UPDATE akter.actor_state SET value = %s, version = %s WHERE ctid = %s::tid"
        return connection.execute(changed, [json.dumps(found), version, where]).rowcount

    return change


FAULTS: dict[str, tuple[str | Callable[[psycopg.Connection[Any]], int], str]] = {
    "an effect that is lost": ("DELETE FROM public.soak_effects WHERE ctid = (SELECT min(ctid) FROM public.soak_effects)", "were to leave"),
    "an effect that is doubled": ("INSERT INTO public.soak_effects SELECT * FROM public.soak_effects LIMIT 1", "left 2 rows"),
    "an effect of nobody": ("INSERT INTO public.soak_effects VALUES ('x', 'n1', 1)", "left a row, and no line"),
    "a line of history that is lost": (damage("del history[1]"), "a gap or a double in its history"),
    "a number that came twice": (damage("history[2][0] = history[1][0]"), "a gap or a double in its history"),
    "a state that was overwritten": (damage("history.pop(); state['count'] -= 1; state['version'] -= 1"), "its receipts answered"),
    "a state written for nothing": (
        damage("state['version'] = 1 + state['count'] + len(state.get('told', []))"),
        "lines of history, a count of",
    ),
    "a message that came twice": (damage("history[1][1] = history[0][1]"), "happened more than once"),
    "a message that got lost": (
        "WITH one AS (SELECT ctid, command_id FROM akter.actor_receipts WHERE command = 'refuse' LIMIT 1) "
        "DELETE FROM akter.actor_receipts WHERE ctid IN (SELECT ctid FROM one)",
        "took effect 0 times",
    ),
    "a message of nobody": (
        'INSERT INTO akter.actor_receipts SELECT (jsonb_populate_record(r, \'{"command_id": "u:x:y"}\')).* FROM akter.actor_receipts r '
        "WHERE command = 'refuse' LIMIT 1",
        "a receipt that nobody asked for",
    ),
    "a message that was cancelled unclaimed": (
        "UPDATE public.soak_gone SET attempts = 0 WHERE ctid = (SELECT g.ctid FROM public.soak_gone g "
        "JOIN akter.actor_receipts r ON r.command_id = g.id AND r.command = 'note' LIMIT 1)",
        "nobody had claimed it",
    ),
    "a cancellation without an effect": (
        "UPDATE public.soak_gone SET xid = '1', at = at + interval '1 minute' WHERE ctid = (SELECT g.ctid FROM public.soak_gone g "
        "WHERE attempts = 0 LIMIT 1)",
        "was still pending",
    ),
    "a row that is left": (
        "INSERT INTO akter.actor_outbox (bucket, routing_key, tenant_id, actor_type, actor_id, intent_id, target_type, target_id, command, "
        "payload, caller, due_at_ms, scheduled_at_ms) VALUES (0, 1, 't', 'Node', 'n1', 'i', 'Node', 'n1', 'note', '{}', '{}', 0, 0)",
        "the outbox still holds",
    ),
    "a tick that is lost": ("DELETE FROM public.soak_ticks WHERE canary = 'c0' AND number = 3", "the ticks of c0 have a gap"),
    "an order that was dropped": (
        "DELETE FROM akter.actor_receipts WHERE ctid = (SELECT min(ctid) FROM akter.actor_receipts WHERE command = 'spread')",
        "has 0 receipts",
    ),
}


@pytest.fixture(scope="module")
def soaked() -> Iterator[tuple[Soaked, Place]]:
    with ExitStack() as stack:
        yield soak(OPTIONS, stack, print)


@pytest.mark.timeout(300)
def test_nothing_is_lost_doubled_or_left_while_everything_is_killed(soaked: tuple[Soaked, Place]) -> None:
    found, _ = soaked
    print(found.text)
    assert found.well, found.text


def sees(place: Place, change: Callable[[Stored], object], said: str) -> None:
    """Without the change, the judge does not say that, and with it, it does."""
    with psycopg.connect(plain(place.url)) as connection:
        stored = Stored(connection, Path(place.directory))
    wanted = orders(OPTIONS.seed, OPTIONS.intents, OPTIONS.actors)
    assert not any(said in one for one in check(stored, wanted).wrong)
    change(stored)
    wrong = check(stored, wanted).wrong
    assert any(said in one for one in wrong), wrong


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_sees(soaked: tuple[Soaked, Place], fault: str) -> None:
    _, place = soaked
    statement, said = FAULTS[fault]
    with psycopg.connect(plain(place.url)) as connection:
        changed = connection.execute(statement.encode()).rowcount if isinstance(statement, str) else statement(connection)
        assert changed == 1
        wrong = judged(connection, Path(place.directory), OPTIONS).wrong
        connection.rollback()
    assert any(said in one for one in wrong), wrong


def told(stored: Stored, how: str) -> tuple[list[Any], int]:
    """The list of what some actor heard of, and the place in it of an end of this kind."""
    for value, _ in stored.states.values():
        for place, one in enumerate(value.get("told", ())):
            if one[1] == how:
                return value["told"], place
    raise AssertionError(f"no job ended as {how}")


def of_success(change: Callable[[Stored, list[Any], int], object]) -> Callable[[Stored], object]:
    return lambda stored: change(stored, *told(stored, "success"))


JOB_FAULTS: dict[str, tuple[Callable[[Stored], object], str]] = {
    "a result that is lost": (of_success(lambda stored, all, at: all.pop(at)), "told 0 times, with 1 receipts"),
    "a result that is told twice": (of_success(lambda stored, all, at: all.append(all[at])), "told 2 times"),
    "a result that nobody gave": (
        of_success(lambda stored, all, at: stored.calls.update({all[at][0]: [Call("began", 1, 1), Call("lost", 1, 1)]})),
        "told as a success of attempt",
    ),
    "a result of another call": (of_success(lambda stored, all, at: all[at].__setitem__(3, 9)), "told as a success of attempt"),
    "a provider that acted twice": (
        of_success(lambda stored, all, at: stored.calls[all[at][0]].append(Call("lost", 3, 1))),
        "the provider acted twice",
    ),
    "an attempt that was called twice": (
        of_success(lambda stored, all, at: stored.calls[all[at][0]].append(stored.calls[all[at][0]][0])),
        "its attempts were",
    ),
    "a result with a letter": (
        of_success(lambda stored, all, at: stored.letters.update({all[at][0]: Letter(1, "x", True)})),
        "succeeded, and has a letter",
    ),
    "a success told as a dead letter": (
        of_success(lambda stored, all, at: all.__setitem__(at, [all[at][0], "dead letter", all[at][2], 0, False])),
        "without doubt after attempt",
    ),
    "a success told as cancelled": (
        of_success(lambda stored, all, at: all.__setitem__(at, [all[at][0], "cancelled, failed", all[at][2], 0, False])),
        "told as cancelled, failed without doubt",
    ),
    "a letter without its doubt": (
        lambda stored: _letter(stored, "ConnectionError: broken", ambiguous=False),
        "because of ConnectionError",
    ),
    "a letter with a doubt too many": (lambda stored: _letter(stored, "refused", ambiguous=True), "because of refused"),
    "a letter that is lost": (lambda stored: stored.letters.pop(_dead(stored)), "its letter is None"),
    "a call for nobody": (lambda stored: stored.calls.update({"x": [Call("began", 1, 1)]}), "a job that nobody asked for: x"),
    "a cap that was passed": (lambda stored: stored.leases.append((3, 3)), "3 live leases of one till at once"),
}


def _dead(stored: Stored) -> str:
    all, at = told(stored, "dead letter")
    return str(all[at][0])


def _letter(stored: Stored, cause: str, *, ambiguous: bool) -> None:
    all, at = told(stored, "dead letter")
    all[at][4] = ambiguous
    stored.letters[all[at][0]] = Letter(all[at][2], cause, ambiguous)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", JOB_FAULTS)
def test_the_judge_of_jobs_sees(soaked: tuple[Soaked, Place], fault: str) -> None:
    sees(soaked[1], *JOB_FAULTS[fault])


EVENT_FAULTS: dict[str, tuple[Callable[[Stored], object], str]] = {
    "an event that is lost": (lambda stored: stored.events.pop(3), "and its history is to have"),
    "an event of nobody": (lambda stored: stored.events.append((stored.events[0][0], 10_000, "x")), "and its history is to have"),
    "a number that was given out twice": (
        lambda stored: stored.heads.update({stored.events[0][0]: 1 + stored.heads[stored.events[0][0]]}),
        "and its history is to have",
    ),
    "an event that was not told": (lambda stored: next(iter(stored.listeners.values())).pop(2), "and is to have"),
    "an event that was told twice": (lambda stored: _doubled(next(iter(stored.listeners.values()))), "and is to have"),
    "events told in another order": (lambda stored: _swapped(stored), "and is to have"),
    "a follower who was told too little": (lambda stored: _told_to_a_follower(stored, lambda seen, at: seen.pop(at)), "and the log"),
    "a follower who was told twice": (
        lambda stored: _told_to_a_follower(stored, lambda seen, at: seen.insert(at, seen[at])),
        "and the log is",
    ),
    "a follower who was told after the end": (
        lambda stored: _told_to_a_follower(stored, lambda seen, at: seen.insert(at, ["end", seen[at][1], 0])),
        "was told",
    ),
    "a subscription that waits": (lambda stored: stored.untold.append(("n1",)), "is not told all"),
    "a request that was dropped": (lambda stored: stored.asked.pop(), "has 0 receipts"),
}


def _doubled(kept: list[Any]) -> None:
    kept.append(kept[0])


def _swapped(stored: Stored) -> None:
    """The first two events of one source that one listener was told."""
    for kept in stored.listeners.values():
        for place, one in enumerate(kept):
            for other in range(place + 1, len(kept)):
                if kept[other][0] == one[0]:
                    kept[place], kept[other] = kept[other], one
                    return
    raise AssertionError("nobody was told two events of one source")


def _told_to_a_follower(stored: Stored, change: Callable[[list[Any], int], object]) -> None:
    """Change a place in the middle of what a follower was told of one source."""
    for seen in stored.followers.values():
        for place, one in enumerate(seen):
            of = [other[0] for other in seen[:place] if other[1] == one[1]]
            if one[0] == "told" and of[-1:] == ["told"]:
                change(seen, place)
                return
    raise AssertionError("no follower was told two events of one source")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", EVENT_FAULTS)
def test_the_judge_of_events_sees(soaked: tuple[Soaked, Place], fault: str) -> None:
    sees(soaked[1], *EVENT_FAULTS[fault])


def test_a_seed_says_everything() -> None:
    def drawn(seed: int) -> tuple[list[Order], list[Any]]:
        plan = actions(seed, 3, 3.0)
        return orders(seed, 500, 100), [next(plan) for _ in range(30)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert steps(5, 40, 100) == steps(5, 40, 100)
    wanted, done = drawn(3)
    assert sum(order.fan for order in wanted) >= 500
    assert [one.what for one in done].count("restart") == [one.what for one in done].count("crash") == 1
