"""What a claim leaves for want of seats: whoever frees one has the relay look for that alone, in a piece of the buckets first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from post import NEVER, Mailbox, Node, Sender, eventually, handled, send_many

from akter.runner.ranges import Ranges

Make = Callable[..., Node]
ALL = (-128, 127)
BOXES = [f"box-{number}" for number in range(200)]


class Looks:
    """The claims of a runner: for which families, from which buckets."""

    def __init__(self, one: Node) -> None:
        self.seen: list[tuple[tuple[str, ...], tuple[int, int]]] = []
        self._claim = one.runner.relay._claim
        one.runner.relay._claim = self._seen  # type: ignore[method-assign]

    def _seen(self, shares: Any, first: int, last: int, *how: bool) -> float:
        if families := tuple(share.family.lane.family for share in shares if share.room > 0):
            self.seen.append((families, (first, last)))
        return self._claim(shares, first, last, *how)

    def taken(self) -> list[tuple[tuple[str, ...], tuple[int, int]]]:
        found, self.seen = self.seen, []
        return found


def passed(one: Node) -> float:
    """Do what the relay's loop does, and let what was claimed end."""
    wait = one.runner.relay.wait()
    assert one.runner._lane.wait_idle(20.0)
    return wait


def test_a_freed_seat_brings_what_was_left_from_a_piece_and_nobody_else_is_looked_for(node: Make) -> None:
    one = node(lanes={"intents": 2}, poll=NEVER)
    send_many(one.app, BOXES, BOXES)
    looks = Looks(one)
    passed(one)
    ((families, where),) = looks.taken()
    assert ("intents" in families, len(families) > 1, where) == (True, True, ALL), "at first it knows of nothing"
    for left in (196, 194, 192):
        passed(one)
        ((families, (first, last)),) = looks.taken()
        assert (families, last - first) == (("intents",), 31)
        assert len(BOXES) - len(handled.taken) == left


def test_where_a_piece_has_too_little_the_rest_is_looked_for_in_the_same_pass(node: Make) -> None:
    one = node(lanes={"intents": 2}, poll=NEVER)
    send_many(one.app, ["a", "b", "c"], ["m", "m", "m"])
    looks = Looks(one)
    passed(one)
    looks.taken()
    (piece,) = [piece for piece in [one.runner.relay._ranges.piece() for _ in range(8)] if not _has(one, piece)][:1]
    one.runner.relay._ranges.piece = lambda: piece  # type: ignore[method-assign]
    passed(one)
    assert looks.taken() == [(("intents",), piece), (("intents",), ALL)]
    assert sorted(handled.taken) == ["a", "b", "c"]
    assert not one.runner._lane.more


def _has(one: Node, piece: tuple[int, int]) -> bool:
    bucket = int(getattr(one.app.actor(Mailbox, "m"), "_address").bucket)  # noqa: B009 - a handle's own attribute, untyped on purpose
    return piece[0] <= bucket <= piece[1]


def test_what_was_left_is_had_in_the_end_wherever_it_is(node: Make, beside: Any) -> None:
    one = node(started=True, lanes={"intents": 2}, poll=NEVER, app={"hint": False})
    looks = Looks(one)
    send_many(one.app, BOXES, BOXES)
    one.runner.wake()
    eventually("all came", lambda: beside.count("actor_outbox") == 0)
    # One for the commit, one for this wake, and perhaps a second for a commit that took long.
    assert sum(len(families) > 1 for families, _ in looks.seen) <= 3
    assert set(handled.taken.values()) == {1}
    assert len(handled.taken) == 200


@pytest.mark.parametrize("why", ["somebody asks", "it is time", "a timer comes"])
def test_everything_is_looked_for_all_the_same_when(node: Make, why: str) -> None:
    one = node(lanes={"intents": 2}, poll=NEVER)
    send_many(one.app, BOXES, BOXES)
    passed(one)
    looks = Looks(one)
    if why == "somebody asks":
        one.runner.relay.ask()
    elif why == "it is time":
        one.runner.relay._look_by = time.monotonic()
    else:
        one.runner.relay.timers.expect(time.monotonic())
    passed(one)
    ((families, where),) = looks.taken()
    assert (len(families) > 1, where) == (True, ALL)


def test_messages_that_are_named_where_some_are_left_come_with_those(node: Make) -> None:
    one = node(lanes={"intents": 2}, poll=NEVER)
    send_many(one.app, BOXES, BOXES)
    passed(one)
    one.app.actor(Sender, "s").send_all(["new"], ["box-new"])
    looks = Looks(one)
    while one.runner._lane.more:
        passed(one)
    assert all(families == ("intents",) for families, _ in looks.taken())
    assert handled.taken["new"] == 1


def test_a_backlog_does_not_put_off_the_poll(node: Make, beside: Any) -> None:
    one, other = node(started=True, lanes={"intents": 1}, poll=0.2), node(app={"hint": False})
    looks, stop = Looks(one), threading.Event()

    def again(mailbox: Any, letter: str) -> None:
        if not stop.is_set():
            mailbox.send(mailbox.actor(Mailbox, mailbox.id).take, letter)

    handled.on_take = again
    send_many(other.app, ["x", "y", "z"], ["box-1", "box-2", "box-3"])
    eventually("it is at work", lambda: sum(handled.taken.values()) > 20)
    looks.taken()
    eventually("it looked at everything twice", lambda: sum(len(families) > 1 for families, _ in looks.seen) >= 2)
    stop.set()
    eventually("it came to an end", lambda: beside.count("actor_outbox") == 0)


def test_pieces_cover_all_the_buckets_and_nothing_else_in_turn() -> None:
    whole = Ranges([ALL])
    pieces = sorted(whole.piece() for _ in range(8))
    assert pieces == [(-128, -97), (-96, -65), (-64, -33), (-32, -1), (0, 31), (32, 63), (64, 95), (96, 127)]
    assert len({whole.piece() for _ in range(8)}) == 8
    few = Ranges([(-3, 40), (100, 100)])
    assert sorted(few.piece() for _ in range(3)) == [(-3, 28), (29, 40), (100, 100)]
    assert [few.every() for _ in range(3)] == [[(-3, 40), (100, 100)], [(100, 100), (-3, 40)], [(-3, 40), (100, 100)]]


def test_a_look_for_what_was_left_that_fails_is_made_up_for_by_a_look_at_everything(node: Make, beside: Any) -> None:
    one = node(lanes={"intents": 2}, poll=NEVER)
    send_many(one.app, BOXES[:6], BOXES[:6])
    passed(one)
    beside("ALTER TABLE {akter}.actor_pauses RENAME TO actor_pauses_away")
    with pytest.raises(Exception, match="actor_pauses"):
        one.runner.relay.wait()
    beside("ALTER TABLE {akter}.actor_pauses_away RENAME TO actor_pauses")
    for _ in range(2):
        passed(one)
    assert len(handled.taken) == 6
