"""What is drawn from a seed: which messages each order sends, and what the supervisor does to whom."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

HOT_SENDERS = 12
"""Actors that send most, so that their keys are replaced and cancelled while they are pending."""

HOT_TARGETS = 20
FOLLOWS = ("start", "start", "now", "now", "end")
"""What a follower asks for: to be told from there on, or no more."""

KEYS = ("k0", "k1", "k2")
LONGEST_MS = 3000
"""The longest delay of a timer."""

CHARGES = ("charge", "charge_queued")
"""Commands of a till, each of which enqueues a job."""

TILLS = 6
MEMBERS = {"note": 52, "book": 18, "scribble": 8, "pass_on": 12, "refuse": 4, "stumble": 6, "charge": 8, "charge_queued": 8}
"""The receivers' commands, and how often each is drawn."""


class Step(NamedTuple):
    """One thing that a handler asks for. `verb` is send, keyed or cancel."""

    verb: str
    member: str = ""
    target: str = ""
    delay_ms: int = 0
    key: str = ""


class Order(NamedTuple):
    """One thing that the driver does. `kind`: spread is a turn that sends, send and within send from outside of turns, follow is a request
    of a follower."""

    id: str
    kind: str
    actor: str
    seed: int
    fan: int


class Action(NamedTuple):
    """One thing that the supervisor does, `wait` seconds after the last; `who` is the number of a process, or what a share is drawn by."""

    wait: float
    what: str
    who: int
    seconds: float = 0.0


def steps(seed: int, fan: int, actors: int, *, deeper: bool = True) -> list[Step]:
    """What one handler asks for; only what the driver asked for may be passed on."""
    random = Random(seed)
    chosen = {name: weight for name, weight in MEMBERS.items() if deeper or name != "pass_on"}
    found: list[Step] = []
    while sum(step.verb != "cancel" for step in found) < fan:
        verb = random.choices(("at once", "later", "keyed", "cancel"), (34, 38, 22, 6))[0]
        key = random.choice(KEYS) if verb in ("keyed", "cancel") else ""
        if verb == "cancel":
            found.append(Step("cancel", key=key))
            continue
        member = random.choices(list(chosen), list(chosen.values()))[0]
        target = f"n{random.randrange(HOT_TARGETS if random.random() < 0.1 else actors)}"
        if member in CHARGES:
            target = f"t{random.randrange(TILLS)}"
        delay = 0 if verb == "at once" else random.randint(1, LONGEST_MS)
        found.append(Step("keyed" if key else "send", member, target, delay, key))
    return found


def orders(seed: int, intents: int, actors: int) -> list[Order]:
    """What the driver does until it has asked for this many messages."""
    random = Random(f"orders of {seed}")
    found: list[Order] = []
    asked = 0
    while asked < intents:
        kind = random.choices(("spread", "send", "within", "follow"), (60, 6, 6, 28))[0]
        fan = {"spread": random.choice((1, 4, 12, 30, 60)), "send": 1, "within": random.randint(1, 6), "follow": 0}[kind]
        actor = f"n{random.randrange(HOT_SENDERS if random.random() < 0.7 else actors)}"
        found.append(Order(f"o{len(found)}", kind, actor, random.randrange(2**31), fan))
        asked += fan
    return found


def actions(seed: int, processes: int, lease: float) -> Iterator[Action]:
    """What the supervisor does, without an end; the database is restarted once gently and once by SIGKILL among the first."""
    random = Random(f"actions of {seed}")
    restarts = {random.randint(2, 4): "restart", random.randint(6, 8): "crash"}
    number = 0
    while True:
        # A process takes seconds to start; most of the time, most of them are to be at work.
        wait = random.uniform(0.2, 1.0) if random.random() < 0.3 else random.uniform(1.5, 3.5)
        what = random.choices(("kill", "end", "stop", "terminate", "kill driver"), (34, 8, 24, 26, 8))[0]
        who, seconds = random.randrange(processes), random.uniform(lease + 0.5, lease + 3.0)
        yield Action(wait, restarts.get(number, what), who, seconds)
        number += 1


LEAST_ACTIONS = 10
"""Actions until both restarts are among them."""
