"""Proves from what is stored that everything that was committed happened, once, and nothing else did."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from soaking import followed, leases, provider
from soaking.judge import Letter, judge
from soaking.till import ROUTES

RECEIVING = ("note", "book", "scribble", "pass_on", "refuse", "stumble", "charge", "charge_queued")
BOOKED = ("book", "scribble")
CLOSE = 0.5
"""Seconds between a turn's statements, which are sent at once."""


class Wanted(NamedTuple):
    """A message that was committed. `fate`: it must have happened; it may have, if it was claimed before its key was used again or
    cancelled; it never may, if that was done by the turn that asked for it."""

    tag: str
    id: str
    target: str
    member: str
    fate: str = "must"
    ended_by: tuple[str, int] | None = None
    """The turn that used its key again or cancelled it: the sender and the number."""


class Going(NamedTuple):
    """A row that left the outbox: the claims there had been, when, and in which transaction."""

    attempts: int
    at: float
    xid: str


@dataclass
class Findings:
    """What is wrong, and what a reader may want to know."""

    wrong: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)


class Stored:
    """All that the soak left, read in one transaction."""

    def __init__(self, connection: psycopg.Connection[Any], directory: Path) -> None:
        def rows(statement: str) -> list[Any]:
            return connection.execute(statement.encode()).fetchall()

        self.states = {id: (value, version) for id, value, version in rows(STATES)}
        self.receipts = rows(f"SELECT actor_id, command_id, command, outcome FROM akter.actor_receipts WHERE {OF_BOTH}")
        # The transaction and the time of every turn that changed its actor.
        self.turns = {(actor, number): (xid, at) for actor, number, xid, at in rows(TURNS)}
        self.effects = rows("SELECT tag, actor, number FROM public.soak_effects")
        self.outside = [Wanted(*row) for row in rows("SELECT tag, id, target, member FROM public.soak_outside")]
        self.gone: dict[str, list[Going]] = defaultdict(list)
        for id, *going in rows("SELECT id, attempts, extract(epoch FROM at)::float8, xid FROM public.soak_gone"):
            self.gone[own(id)].append(Going(*going))
        self.outbox = rows("SELECT intent_id, actor_id, command, attempts, last_error FROM akter.actor_outbox")
        self.ticks = rows("SELECT canary, number, extract(epoch FROM at)::float8 FROM public.soak_ticks ORDER BY canary, number, at")
        self.rests = dict(rows(RESTS))
        self.letters = {id: Letter(*kept) for id, *kept in rows("SELECT job_id, attempts, cause, ambiguous FROM akter.actor_dead_letters")}
        self.calls = provider.read(directory / "ledger")
        self.events = rows(EVENTS)
        self.heads = dict(rows(HEADS))
        self.listeners = {id: value["kept"] for id, value in rows(OF_ONE.format("Listener"))}
        self.followers = {id: value["seen"] for id, value in rows(OF_ONE.format("Follower"))}
        self.asked = [own(id) for (id,) in rows(ASKED)]
        self.untold = rows(UNTOLD)
        self.leases = leases.read(directory / "leases")
        self.killed = frozenset(map(int, (directory / "killed").read_text().split()))
        self.runs: dict[str, list[float]] = defaultdict(list)
        for line in (directory / "journal").read_text().splitlines():
            at, _, tag = line.split(" ", 2)
            self.runs[tag].append(float(at))


TURNS = """SELECT actor_id, (outcome::json->>'ok')::integer, xmin::text, (committed_at_ms / 1000.0)::float8 FROM akter.actor_receipts
    WHERE actor_type = 'Node' AND outcome::json->>'ok' IS NOT NULL"""
RESTS = "SELECT actor_id, committed_at_ms / 1000.0::float8 FROM akter.actor_receipts WHERE actor_type = 'Canary' AND command = 'rest'"


def own(id: str) -> str:
    """The end of a stored id, which is what a caller who chose it knows of it."""
    return id.rsplit(":", 1)[-1]


OF_BOTH = "actor_type IN ('Node', 'Till')"
STATES = f"SELECT actor_id, value::text::json, version FROM akter.actor_state WHERE {OF_BOTH}"
OF_ONE = "SELECT actor_id, value::text::json FROM akter.actor_state WHERE actor_type = '{}'"
EVENTS = "SELECT actor_id, sequence, value::text::json->>'tag' FROM akter.actor_events ORDER BY actor_id, sequence"
HEADS = "SELECT actor_id, event_sequence FROM akter.actor_generations WHERE actor_type = 'Node'"
ASKED = "SELECT command_id FROM akter.actor_receipts WHERE actor_type = 'Follower' AND command IN ('follow', 'forget')"
UNTOLD = """SELECT s.source_id, s.subscriber_type, s.subscriber_id, s.delivered, g.event_sequence, s.last_error
    FROM akter.actor_subscriptions s JOIN akter.actor_generations g ON (g.actor_type, g.actor_id) = (s.source_type, s.source_id)
    WHERE s.due_at_ms IS NOT NULL OR s.gaps > 0 OR s.active AND s.delivered > g.event_sequence"""


def check(stored: Stored, orders: Iterable[Any]) -> Findings:
    """Look at everything. `orders` is what the driver was to do."""
    found = Findings()
    _histories(stored, found)
    wanted = [*_sent(stored), *stored.outside, *_driven(stored, list(orders), found)]
    _messages(stored, wanted, found)
    _effects(stored, found)
    _ticks(stored, found)
    judge(stored, found.wrong, found.numbers)
    followed.judge(stored, found.wrong, found.numbers)
    found.wrong += [f"the outbox still holds {row}" for row in stored.outbox]
    return found


def _histories(stored: Stored, found: Findings) -> None:
    """Numbered from one without a gap or a double, at least as often as the state was written, each with its receipt."""
    answered: dict[str, list[int]] = defaultdict(list)
    for actor, _, command, outcome in stored.receipts:
        if command in ROUTES:
            continue
        said = json.loads(outcome)
        if "ok" in said:
            answered[actor].append(said["ok"])
        elif command != "refuse":
            found.wrong.append(f"{actor}: {command} was refused: {outcome}")
    for actor, (value, version) in stored.states.items():
        numbers = [number for number, _ in value["history"]]
        if numbers != list(range(1, len(numbers) + 1)):
            found.wrong.append(f"{actor}: a gap or a double in its history: {numbers}")
        # Messages for one actor that are delivered in one transaction write its state once.
        if not (len(numbers) == value["count"] and value["count"] + len(value.get("told", ())) >= version):
            found.wrong.append(f"{actor}: {len(numbers)} lines of history, a count of {value['count']}, written {version} times")
        if sorted(answered[actor]) != sorted(numbers):
            found.wrong.append(f"{actor}: its receipts answered {sorted(answered[actor])} and its history is {numbers}")
        twice = [what for what, times in Counter(what for _, what in value["history"]).items() if times > 1]
        found.wrong += [f"{actor}: {what} happened more than once" for what in twice]
    found.numbers["turns that changed state"] = sum(version for _, version in stored.states.values())


def _sent(stored: Stored) -> list[Wanted]:
    """What turns asked for, as their actors' committed states say."""
    wanted: list[Wanted] = []
    for actor, (value, _) in stored.states.items():
        latest: dict[str, tuple[int, Wanted]] = {}
        for turn, verb, tag, id, target, member, key in value.get("sent", ()):
            if key and key in latest:
                # The last word on this key: until the commit nothing of it existed.
                before, replaced = latest.pop(key)
                wanted.append(replaced._replace(fate="never" if before == turn else "may", ended_by=(actor, turn)))
            if verb == "keyed":
                latest[key] = turn, Wanted(tag, id, target, member)
            elif verb == "send":
                wanted.append(Wanted(tag, id, target, member))
        wanted += [last for _, last in latest.values()]
    return wanted


def _driven(stored: Stored, orders: list[Any], found: Findings) -> list[Wanted]:
    """Each order of the driver was carried out once; returns the messages among them."""
    spreads = Counter(own(id) for _, id, command, _ in stored.receipts if command == "spread")
    asked = Counter(stored.asked)
    tags = {wanted.tag for wanted in stored.outside}
    wanted: list[Wanted] = []
    for order in orders:
        if order.kind == "spread" and spreads[order.id] != 1:
            found.wrong.append(f"{order.id} has {spreads[order.id]} receipts")
        if order.kind == "follow" and asked[order.id] != 1:
            found.wrong.append(f"{order.id} has {asked[order.id]} receipts")
        if order.kind == "within" and f"{order.id}.0" not in tags:
            found.wrong.append(f"{order.id} was not committed")
        if order.kind == "send":
            wanted.append(Wanted(order.id, order.id, order.actor, "note"))
    return wanted


def _messages(stored: Stored, wanted: list[Wanted], found: Findings) -> None:
    """Each took effect on its receiver as often as it was to: its receipt, and its line of history unless it was refused."""
    receipts = Counter((actor, own(id), command) for actor, id, command, _ in stored.receipts if command in RECEIVING)
    lines = Counter((actor, what) for actor, (value, _) in stored.states.items() for _, what in value["history"])
    late: list[float] = []
    fates: Counter[str] = Counter()
    for one in wanted:
        kept = receipts.pop((one.target, own(one.id), one.member), 0)
        happened = lines.pop((one.target, one.tag), 0)
        goings = stored.gone.get(own(one.id), [])
        if happened != (0 if one.member == "refuse" else kept):
            found.wrong.append(f"{one}: {kept} receipts and {happened} lines of history")
        if one.fate == "must" and kept != 1:
            found.wrong.append(f"{one}: took effect {kept} times")
        if one.fate == "may" and kept > 1:
            found.wrong.append(f"{one}: was replaced or cancelled, and took effect {kept} times")
        if one.fate == "never" and (kept or goings):
            found.wrong.append(f"{one}: was taken back in the turn that asked for it, and took effect {kept} times")
        # What is sent again under its id after it was delivered is delivered again, and its receipt answers.
        if one.fate != "never" and len(goings) != 1 and not (goings and one.id == one.tag):
            found.wrong.append(f"{one}: left the outbox {len(goings)} times")
        if kept and any(going.attempts == 0 for going in goings):
            found.wrong.append(f"{one}: took effect although nobody had claimed it when it was cancelled")
        if one.fate == "may" and goings and one.ended_by in stored.turns:
            xid, at = stored.turns[one.ended_by]
            # Whoever did not take the row out with its own commit found it gone.
            if goings[0].xid != xid and goings[0].at > at + CLOSE:
                found.wrong.append(f"{one}: was still pending {goings[0].at - at:.2f} s after it had been replaced or cancelled")
        fates[one.fate if one.fate != "may" else f"may, {'did' if kept else 'did not'}"] += 1
        if one.fate == "may" and kept:
            late.append(max(stored.runs[one.tag]) - goings[0].at if goings and stored.runs[one.tag] else 0.0)
        if kept and not stored.runs[one.tag]:
            found.wrong.append(f"{one}: took effect, and no handler ran")
    found.wrong += [f"a receipt that nobody asked for: {one}" for one in receipts]
    found.wrong += [f"a line of history that nobody asked for: {one}" for one in lines if not one[1].startswith("spread ")]
    found.numbers["messages committed"] = fates["must"] + fates["may, did"] + fates["may, did not"]
    found.numbers["of these replaced or cancelled in time"] = fates["may, did not"]
    found.numbers["replaced or cancelled after their claim, and happened"] = fates["may, did"]
    found.numbers["latest of these began after its cancellation (s)"] = round(max(late, default=0.0), 2)
    found.numbers["taken back in their own turn"] = fates["never"]
    found.numbers["claimed more than once"] = sum(going.attempts > 1 for goings in stored.gone.values() for going in goings)
    found.numbers["handlers run more than once"] = sum(len(runs) > 1 for runs in stored.runs.values())
    found.numbers["runs of handlers"] = sum(map(len, stored.runs.values()))


def _effects(stored: Stored, found: Findings) -> None:
    """The rows of the application are those of the histories."""
    booked = {(actor, own(id)) for actor, id, command, _ in stored.receipts if command in BOOKED}
    lines = {(actor, number): what for actor, (value, _) in stored.states.items() for number, what in value["history"]}
    rows = Counter((actor, number, tag) for tag, actor, number in stored.effects)
    for (actor, number, tag), times in rows.items():
        if times != 1:
            found.wrong.append(f"{tag} left {times} rows")
        if lines.get((actor, number)) != tag:
            found.wrong.append(f"{tag} left a row, and no line {number} in the history of {actor}")
    if len(rows) != len(booked):
        found.wrong.append(f"{len(booked)} messages were to leave a row, and {len(rows)} did")
    found.numbers["rows of their own"] = len(rows)


def _ticks(stored: Stored, found: Findings) -> None:
    """No tick is missing or doubled; the longest pause between two."""
    longest = 0.0
    canaries: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for canary, number, at in stored.ticks:
        canaries[canary].append((number, at))
    for canary, seen in canaries.items():
        if [number for number, _ in seen] != list(range(1, len(seen) + 1)):
            found.wrong.append(f"the ticks of {canary} have a gap or a double: {[number for number, _ in seen]}")
        moments = [at for _, at in seen] + [stored.rests.get(canary, seen[-1][1])]
        longest = max(longest, *(later - earlier for earlier, later in pairwise(moments)))
    found.numbers["ticks of the canaries"] = len(stored.ticks)
    found.numbers["longest pause of a canary (s)"] = round(longest, 2)
