"""The actors of the simulation. What they ask for is drawn from a seed; all that they see stands in their states, for the judge to read."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from datetime import timedelta
from random import Random
from typing import Any

from plan import JOB_CAP, Step, steps
from sqlalchemy import column, insert, table

from akter import (
    Actor,
    Attempt,
    Cancellation,
    CursorRejected,
    DeadLetter,
    Delivered,
    Event,
    Gap,
    Job,
    NotApplied,
    Payload,
    Rejection,
    Retry,
    command,
    cron,
    subscription,
)

booked = table("sim_booked", column("tag"), column("actor"), schema="public")


class Tape:
    """What happened outside of every transaction: runs of handlers, and calls of the provider, by its idempotency key."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runs: Counter[str] = Counter()
        self.calls: dict[str, list[tuple[int, str]]] = defaultdict(list)

    def clear(self) -> None:
        """Begin a run."""
        with self.lock:
            self.runs.clear()
            self.calls.clear()

    def ran(self, tag: str) -> int:
        """A handler runs; returns how often it did."""
        with self.lock:
            self.runs[tag] += 1
            return self.runs[tag]


tape = Tape()


class Refused(Rejection):
    """The message is not wanted."""

    tag: str


class Noted(Event):
    """Something was noted."""

    tag: str
    turn: int


class Passed(Event):
    """Nobody but one follows this."""

    turn: int


class Answer(Payload):
    """What the outside world answered."""

    job_id: str
    attempt: int


def act(attempt: Attempt, tag: str) -> Answer:
    """The outside world: it answers as the tag and the number of the attempt say."""
    outcome = Random(f"{tag} {attempt.number}").choices(("done", "refused", "broken", "final"), (60, 15, 20, 5))[0]
    with tape.lock:
        tape.calls[attempt.job_id].append((attempt.number, outcome))
    if outcome in ("refused", "final"):
        raise NotApplied(outcome, final=outcome == "final")
    if outcome == "broken":
        raise ConnectionError(outcome)
    return Answer(job_id=attempt.job_id, attempt=attempt.number)


RETRY = Retry(attempts=3, base=20.0, cap=60.0)


class Node(Actor, max_state_bytes=1_000_000):
    """Sends, receives, asks for jobs and publishes. `history` has a line for every turn that changed it, `asked` one for every request."""

    count: int = 0
    history: list[tuple[int, str]] = []  # noqa: RUF012 - a state field's default is copied
    asked: list[tuple[int, str, str, str, str, str, str]] = []  # noqa: RUF012
    told: list[tuple[str, str, int, bool]] = []  # noqa: RUF012
    doing = Job(act, retry=RETRY, lease=60.0)
    queued = Job(act, retry=RETRY, lease=60.0, concurrency=JOB_CAP)

    @command
    def work(self, tag: str, seed: int) -> int:
        """Do what the seed says."""
        turn = self._turn_of(tag)
        for place, step in enumerate(steps(seed)):
            self._carry_out(turn, f"{tag}.{place}", step)
        return turn

    @command
    def note(self, tag: str) -> int:
        """Nothing but state and an event."""
        turn = self._turn_of(tag)
        self.emit(Noted(tag=tag, turn=turn))
        return turn

    @command(sql=True)
    def book(self, tag: str) -> int:
        """A row of the application's beside the state."""
        turn = self._turn_of(tag)
        self.connection.execute(insert(booked).values(tag=tag, actor=self.id))
        return turn

    @command
    def refuse(self, tag: str) -> int:
        """Keep a receipt and nothing else."""
        turn = self._turn_of(tag)
        self.emit(Noted(tag=f"{tag}!", turn=turn))
        self.send(self.actor(Node, self.id).note, f"{tag}!")
        raise Refused(tag=tag)

    @command
    def stumble(self, tag: str) -> int:
        """Fail the first time, and leave nothing of it."""
        turn = self._turn_of(tag)
        if tape.runs[tag] == 1:
            self.emit(Noted(tag=f"{tag}!", turn=turn))
            self.send(self.actor(Node, self.id).note, f"{tag}!")
            raise ArithmeticError("as it is meant to")
        return turn

    def _turn_of(self, tag: str) -> int:
        tape.ran(tag)
        self.count += 1
        self.history.append((self.count, tag))
        return self.count

    def _carry_out(self, turn: int, tag: str, step: Step) -> None:
        if step.verb == "emit":
            self.emit(Noted(tag=tag, turn=turn))
            self.emit(Passed(turn=turn))
            return
        id, target = "", step.target
        when: Any = self.after(timedelta(minutes=step.minutes), key=step.key or None) if step.minutes or step.key else self
        if step.verb == "cancel":
            self.cancel(step.key)
        elif step.verb == "mint":
            child = self.mint(Child)
            id, target = self.send(child.open, tag), child.id
        elif step.verb == "job":
            id = when.enqueue(self.queued if step.member == "queued" else self.doing, tag=tag)
        else:
            id = when.send(getattr(self.actor(Node, target), step.member), tag)
        self.asked.append((turn, step.verb, tag, id, target, step.member, step.key))

    @doing.on_success
    def did(self, answer: Answer) -> None:
        """Hear of it."""
        self.told.append((answer.job_id, "success", answer.attempt, False))

    @doing.on_dead_letter
    def gave_up(self, letter: DeadLetter) -> None:
        """Hear of it."""
        self.told.append((letter.job_id, "dead letter", letter.attempts, letter.ambiguous))

    @doing.on_cancelled
    def called_off(self, told: Cancellation) -> None:
        """Hear of it."""
        self.told.append((told.job_id, f"cancelled, {told.outcome}", told.attempts, told.ambiguous))

    @queued.on_success
    def queued_did(self, answer: Answer) -> None:
        """Hear of it."""
        self.did(answer)

    @queued.on_dead_letter
    def queued_gave_up(self, letter: DeadLetter) -> None:
        """Hear of it."""
        self.gave_up(letter)

    @queued.on_cancelled
    def queued_called_off(self, told: Cancellation) -> None:
        """Hear of it."""
        self.called_off(told)


class Child(Actor):
    """Exists once its parent's message created it."""

    opened: list[str] = []  # noqa: RUF012

    @command(creates=True)
    def open(self, tag: str) -> None:
        """Begin to exist."""
        tape.ran(tag)
        self.opened.append(tag)


class Shelf(Actor, max_state_bytes=1_000_000):
    """Routed by the event: a few shelves share all that is noted."""

    kept: list[tuple[str, int, str]] = []  # noqa: RUF012

    @subscription(Noted, source=Node, to=lambda noted: shelf_of(noted.tag))
    def noted(self, noted: Noted, of: Delivered) -> None:
        """Keep it."""
        self.kept.append((of.source, int(of.cursor), noted.tag))


def shelf_of(tag: str) -> str:
    """Whose an event is."""
    return f"shelf {len(tag) % 3}"


class Register(Actor, singleton=True, max_state_bytes=1_000_000):
    """One for everything."""

    kept: list[tuple[str, int]] = []  # noqa: RUF012

    @subscription(Noted, Passed, source=Node, to="singleton")
    def happened(self, happened: Noted | Passed, of: Delivered) -> None:
        """Keep it."""
        self.kept.append((of.source, int(of.cursor)))


class Watcher(Actor, max_state_bytes=1_000_000):
    """Follows the nodes it is told to. `seen` has all in its order: where following begins and ends, and what is told between."""

    seen: list[tuple[str, str, int]] = []  # noqa: RUF012

    @subscription(Noted, source=Node)
    def told(self, noted: Noted | Gap | CursorRejected, of: Delivered) -> None:
        """Keep it."""
        what = "told" if isinstance(noted, Noted) else type(noted).__name__
        self.seen.append((what, of.source, int(of.cursor)))

    @command
    def watch(self, node: str, since: str) -> None:
        """Follow it from here on."""
        self.subscribe(self.told, self.actor(Node, node), since=since)
        self.seen.append((since, node, 0))

    @command
    def forget(self, node: str) -> None:
        """Follow it no more."""
        self.unsubscribe(self.told, self.actor(Node, node))
        self.seen.append(("end", node, 0))


class Clock(Actor):
    """Has a schedule."""

    ticks: int = 0

    @command
    def wind(self) -> None:
        """Exist."""

    @cron(every=timedelta(minutes=7))
    def tick(self) -> None:
        """Count."""
        self.ticks += 1


ACTORS = (Node, Child, Shelf, Register, Watcher, Clock)
