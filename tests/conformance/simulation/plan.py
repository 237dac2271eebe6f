"""What is drawn from a seed: a program of operations, and the faults that meet it."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

JOB_CAP = 1
NODES = 4
KEYS = ("k0", "k1", "k2")
WATCHERS = 2


class Step(NamedTuple):
    """One thing that a handler asks for. `verb`: send, cancel, emit, mint or job; those with a key replace what is pending under it."""

    verb: str
    member: str = ""
    target: str = ""
    minutes: int = 0
    key: str = ""


class Operation(NamedTuple):
    """One thing that is done to the system. `what` is a member of an actor, or one of the harness's own."""

    id: str
    what: str
    actor: str = ""
    seed: int = 0
    text: str = ""


class Fault(NamedTuple):
    """What goes wrong at an operation. `point` is a fault point of akter or a flight of the network; `family` is whose work it meets."""

    kind: str
    point: str
    family: str = ""


CALL_FAULTS = [
    *(Fault("crash", point) for point in ("before_delivery", "before_handler", "before_commit", "after_commit")),
    *(Fault("network", point) for point in ("cut BEGIN", "drop BEGIN", "cut COMMIT", "drop COMMIT", "drop COMMIT")),
    Fault("connections", "all"),
]
TURN = ("before_delivery", "before_handler", "before_commit", "after_commit")
POINTS = {
    "intents": ("after_claim", *TURN),
    "jobs": ("before_execute", "after_execute"),
    "feed": ("after_claim", "before_outbox_delete"),
    "control": ("after_claim", "before_outbox_delete"),
    "subscription": TURN,
}
"""Where the work of each family may be cut short. A fault is only planned where there is such work."""

Line = tuple[Operation, Fault | None]


def steps(seed: int) -> list[Step]:
    """What one handler asks for."""
    random = Random(seed)
    found: list[Step] = []
    for _ in range(random.randint(0, 5)):
        verb = random.choices(("send", "later", "keyed", "cancel", "emit", "mint", "job"), (26, 12, 18, 8, 18, 6, 12))[0]
        key = random.choice(KEYS) if verb in ("keyed", "cancel") or (verb == "job" and random.random() < 0.4) else ""
        target, minutes = f"n{random.randrange(NODES)}", random.choice((0, 0, 5, 20, 40)) if key else 0
        member = random.choices(("note", "book", "refuse", "stumble"), (55, 20, 10, 15))[0]
        if verb in ("cancel", "emit", "mint"):
            found.append(Step(verb, key=key))
        elif verb == "job":
            found.append(Step("job", random.choice(("doing", "queued")), "", minutes, key))
        else:
            found.append(Step("keyed" if key else "send", member, target, 5 * random.randint(1, 8) if verb == "later" else minutes, key))
    return found


def is_sent_at_once(operation: Operation) -> bool:
    """Whether the operation leaves a message that is due, whatever else it does."""
    if operation.what == "work":
        return any(step.verb == "send" and not step.minutes for step in steps(operation.seed))
    return operation.what in ("send", "within")


def due_after(operation: Operation) -> set[str]:
    """The families that surely have work after an operation that was answered."""
    asked = steps(operation.seed) if operation.what == "work" else []
    found: set[str] = set()
    if is_sent_at_once(operation):
        found.add("intents")
    if any(step.verb == "job" and not step.key for step in asked):
        found.add("jobs")
    if operation.what == "note" or any(step.verb == "emit" for step in asked):
        found |= {"feed", "subscription"}
    if operation.what in ("watch", "forget"):
        found.add("control")
    return found


def program(seed: int, size: int = 24) -> list[Line]:
    """The operations of a seed, in their order, each with the fault that meets it."""
    random = Random(f"program of {seed}")
    found: list[Line] = [(Operation("op-0000", "wind", "c0"), None)]
    due: set[str] = set()
    for number in range(1, size + 1):
        operation = _operation(f"op-{number:04}", random, found)
        fault: Fault | None = None
        if operation.what == "drain":
            if due and random.random() < 0.9:
                fault = _relay_fault(random, random.choice(sorted(due)))
            due.clear()
        elif random.random() < 0.45:
            fault = random.choice(_faults(operation))
        due |= due_after(operation) if operation.text != "again" else set()
        found.append((operation, fault))
    return found


def _relay_fault(random: Random, family: str) -> Fault:
    """What meets a relay that has work for this family."""
    kind = random.choices(("crash", "stall", "network", "connections"), (50, 25, 15, 10))[0]
    if kind in ("crash", "stall"):
        return Fault(kind, random.choice(POINTS[family]), family)
    return Fault(kind, random.choice(("cut COMMIT", "drop COMMIT")) if kind == "network" else "all")


def _operation(id: str, random: Random, before: list[Line]) -> Operation:
    kinds = ("work", "note", "book", "refuse", "stumble", "send", "within", "watch", "forget", "again", "advance", "drain")
    what = random.choices(kinds, (30, 5, 5, 4, 4, 6, 6, 7, 3, 6, 8, 16))[0]
    node, seed = f"n{random.randrange(NODES)}", random.randrange(2**31)
    if what in ("watch", "forget"):
        return Operation(id, what, f"w{random.randrange(WATCHERS)}", text=f"{node} {random.choice(('now', 'start'))}")
    if what == "again":
        calls = [operation for operation, _ in before if operation.what in ("work", "note", "book", "refuse", "stumble")]
        return random.choice(calls)._replace(text="again") if calls else Operation(id, "note", node)
    if what == "advance":
        return Operation(id, what, seed=random.choice((1, 5, 11, 30)))
    return Operation(id, what, "" if what == "drain" else node, seed)


def _faults(operation: Operation) -> list[Fault | None]:
    """What can meet an operation; a fault that it never comes to would be met by a later one, or by none."""
    if operation.what in ("advance", "within"):
        return [None]
    if operation.what == "send":
        return [Fault("network", "cut COMMIT"), Fault("network", "drop COMMIT"), Fault("connections", "all")]
    if operation.text == "again":
        return [fault for fault in CALL_FAULTS if fault.point in ("before_delivery", "cut BEGIN", "drop BEGIN", "all")]
    return list(CALL_FAULTS)
