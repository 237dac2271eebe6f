"""Proves from what is stored that every operation happened once, and everything it asked for."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from acting import shelf_of
from plan import Line, Operation, steps

RECEIVING = ("note", "book", "refuse", "stumble")
ROUTES = ("did", "gave_up", "called_off", "queued_did", "queued_gave_up", "queued_called_off")
ANSWERED = ("work", "note", "book", "refuse", "stumble", "watch", "forget", "wind")


class Sent(NamedTuple):
    """A message that was committed. `fate`: it must have happened, may have, or never may."""

    tag: str
    id: str
    target: str
    member: str
    fate: str


class Stored:
    """All that the simulation left."""

    def __init__(self, rows: Any, calls: dict[str, list[tuple[int, str]]], answers: dict[str, Any]) -> None:
        self.states: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for kind, id, value in rows("SELECT actor_type, actor_id, value::text FROM {schema}.actor_state"):
            self.states[kind][id] = json.loads(value)
        found = "SELECT actor_type, actor_id, command_id, command, outcome FROM {schema}.actor_receipts"
        self.receipts = [(kind, actor, own(id), command, json.loads(outcome)) for kind, actor, id, command, outcome in rows(found)]
        self.events: dict[str, list[tuple[int, str, Any]]] = defaultdict(list)
        found = "SELECT actor_id, sequence, event, value::text FROM {schema}.actor_events ORDER BY actor_id, sequence"
        for actor, sequence, event, value in rows(found):
            self.events[actor].append((sequence, event, json.loads(value)))
        self.heads = dict(rows("SELECT actor_id, event_sequence FROM {schema}.actor_generations WHERE actor_type = 'Node'"))
        self.booked = rows("SELECT tag, actor FROM public.sim_booked")
        self.outside = rows("SELECT tag, actor FROM public.sim_outside")
        self.letters = dict(rows("SELECT job_id, ambiguous FROM {schema}.actor_dead_letters"))
        self.created = [id for (id,) in rows("SELECT actor_id FROM {schema}.actor_generations WHERE actor_type = 'Child' AND created")]
        self.schedules = rows("SELECT actor_id, timer_key FROM {schema}.actor_outbox")
        self.calls, self.answers = calls, answers


def own(id: str) -> str:
    """The end of a stored id, which is what a caller who chose it knows of it."""
    return id.rsplit(":", 1)[-1]


def judge(stored: Stored, lines: list[Line]) -> list[str]:
    """What is wrong."""
    operations = {operation.id: operation for operation, _ in lines if operation.text != "again"}
    return [
        *_commands(stored, operations.values()),
        *_histories(stored),
        *_messages(stored, operations.values()),
        *_jobs(stored),
        *_published(stored),
        *_followed(stored),
        *_schedules(stored),
    ]


def _commands(stored: Stored, operations: Iterable[Operation]) -> Iterable[str]:
    """Each was answered, has one receipt, and the answer is what that says."""
    receipts: dict[str, list[Any]] = defaultdict(list)
    for _, _, id, _, outcome in stored.receipts:
        receipts[id].append(outcome)
    asked = [operation for operation in operations if operation.what in ANSWERED]
    if not asked:
        yield "nothing was asked"
    for operation in asked:
        kept = receipts[operation.id]
        if len(kept) != 1:
            yield f"{operation}: has {len(kept)} receipts"
        elif operation.id not in stored.answers:
            yield f"{operation}: was not answered"
        elif stored.answers[operation.id] != (kept[0].get("ok") if "ok" in kept[0] else f"refused {kept[0]['rejected']['fields']['tag']}"):
            yield f"{operation}: was answered with {stored.answers[operation.id]}, and its receipt says {kept[0]}"


def _histories(stored: Stored) -> Iterable[str]:
    """Numbered from one without a gap or a double, and each line is what a receipt answers; own rows are those of their lines."""
    answered: dict[str, list[int]] = defaultdict(list)
    for kind, actor, _, command, outcome in stored.receipts:
        if kind == "Node" and command not in ROUTES and "ok" in outcome:
            answered[actor].append(outcome["ok"])
    for actor, state in stored.states["Node"].items():
        numbers = [number for number, _ in state["history"]]
        if numbers != list(range(1, state["count"] + 1)):
            yield f"{actor}: a gap or a double in its history: {numbers}, with a count of {state['count']}"
        if sorted(answered[actor]) != numbers:
            yield f"{actor}: its receipts answered {sorted(answered[actor])}, and its history is {numbers}"
        yield from (f"{actor}: {tag} happened {n} times" for tag, n in Counter(tag for _, tag in state["history"]).items() if n > 1)
    booked = [(own(id), actor) for _, actor, id, command, outcome in stored.receipts if command == "book" and "ok" in outcome]
    lines = {(tag, actor) for actor, state in stored.states["Node"].items() for _, tag in state["history"]}
    if len(stored.booked) != len(booked) or len(set(stored.booked)) != len(booked) or not set(stored.booked) <= lines:
        yield f"{len(booked)} turns were to leave a row of the application's, and it has {sorted(stored.booked)}"


def _sent(stored: Stored, operations: Iterable[Operation]) -> Iterable[Sent]:
    """What was asked for, with what may have become of it."""
    for operation in operations:
        if operation.what == "send":
            yield Sent(operation.id, operation.id, operation.actor, "note", "must")
    for tag, actor in stored.outside:
        yield Sent(tag, "", actor, "note", "must")
    for state in stored.states["Node"].values():
        pending: dict[str, tuple[int, Sent]] = {}
        for turn, verb, tag, id, target, member, key in state["asked"]:
            # A job and a message may have one key; cancelling takes back both.
            if verb != "job" and key in pending:
                before, last = pending.pop(key)
                yield last._replace(fate="never" if before == turn else "may")
            if verb == "keyed":
                pending[key] = (turn, Sent(tag, id, target, member, "must"))
            elif verb in ("send", "later"):
                yield Sent(tag, id, target, member, "must")
            elif verb == "mint":
                yield Sent(tag, id, target, "open", "must")
        yield from (last for _, last in pending.values())


def _messages(stored: Stored, operations: Iterable[Operation]) -> Iterable[str]:
    """Each took effect as often as it was to, and nothing that nobody asked for did."""
    operations = list(operations)
    lines = Counter((actor, tag) for actor, state in stored.states["Node"].items() for _, tag in state["history"])
    lines += Counter((id, tag) for id, state in stored.states["Child"].items() for tag in state["opened"])
    receipts = Counter((actor, id) for _, actor, id, command, _ in stored.receipts if command in (*RECEIVING, "open"))
    for one in _sent(stored, operations):
        happened = lines.pop((one.target, one.tag), 0)
        kept = receipts[one.target, own(one.id)] if one.id else happened
        if happened != (0 if one.member == "refuse" else kept):
            yield f"{one}: has {kept} receipts and {happened} lines"
        if kept not in {"must": (1,), "may": (0, 1), "never": (0,)}[one.fate]:
            yield f"{one}: took effect {kept} times"
    direct = {(operation.actor, operation.id) for operation in operations}
    yield from (f"{one} was asked for by nobody" for one in lines if one not in direct)
    children = {one.target for one in _sent(stored, operations) if one.member == "open"}
    if sorted(stored.created) != sorted(children):
        yield f"the children are {stored.created}, and asked for were {children}"
    for operation in operations:
        if operation.what == "work" and len(stored.states["Node"].get(operation.actor, {"asked": []})["asked"]) == 0:
            if any(step.verb != "emit" for step in steps(operation.seed)):
                yield f"{operation}: what it asked for is gone"


def _jobs(stored: Stored) -> Iterable[str]:
    """Each ended in one way, which the calls of the provider bear out."""
    told: dict[str, list[Any]] = defaultdict(list)
    routed = Counter(id for _, _, id, command, _ in stored.receipts if command in ROUTES)
    asked: dict[str, bool] = {}
    for state in stored.states["Node"].values():
        for job, *rest in state["told"]:
            told[job].append(rest)
        latest: dict[str, str] = {}
        for _, verb, _, id, _, _, key in state["asked"]:
            if verb in ("job", "cancel") and key in latest:
                asked[latest.pop(key)] = True
            if verb == "job":
                asked[id] = False
                if key:
                    latest[key] = id
    for id, over in asked.items():
        calls, ends = stored.calls.get(id, []), told[id]
        attempts = [number for number, _ in calls]
        if len(ends) > 1 or routed[own(id)] != len(ends):
            yield f"{id}: was told {ends}, with {routed[own(id)]} receipts"
        if len(set(attempts)) != len(attempts) or max(attempts, default=0) > 3:
            yield f"{id}: its attempts were {calls}"
        done = [number for number, outcome in calls if outcome == "done"]
        if not ends:
            if not over or calls:
                yield f"{id}: nobody was told of its end; its calls were {calls}"
            continue
        ((how, attempt, ambiguous),) = ends
        if how.startswith("cancelled") and not over:
            yield f"{id}: was told as {how}, and nobody did that"
        if how == "success" and attempt not in done:
            yield f"{id}: was told as a success of attempt {attempt}; its calls were {calls}"
        if not ambiguous and how in ("dead letter", "cancelled, failed") and calls and calls[-1][1] in ("done", "broken"):
            yield f"{id}: was told as {how} without doubt; its calls were {calls}"
        if (how == "dead letter") > (id in stored.letters):
            yield f"{id}: was told as a dead letter, and has none"
    yield from (f"{id}: a job that nobody asked for" for id in {*told, *stored.calls, *stored.letters} - set(asked))


def _published(stored: Stored) -> Iterable[str]:
    """Events are numbered from one without a gap, and are those of turns that committed."""
    for actor, state in stored.states["Node"].items():
        numbers = [sequence for sequence, _, _ in stored.events[actor]]
        if numbers != list(range(1, stored.heads[actor] + 1)):
            yield f"{actor}: its events are {numbers}, and its head is {stored.heads[actor]}"
        turns = {number for number, _ in state["history"]}
        published = [value["turn"] for _, _, value in stored.events[actor]]
        if not set(published) <= turns or sorted(published) != published:
            yield f"{actor}: published in turns {published}, and its turns are {turns}"
        noted = Counter(value["tag"] for _, event, value in stored.events[actor] if event == "Noted")
        yield from (f"{actor}: published {tag} {n} times" for tag, n in noted.items() if n > 1)


def _followed(stored: Stored) -> Iterable[str]:
    """What each was told is what was published, in its order, once."""
    shelves: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for id, state in stored.states["Shelf"].items():
        for source, cursor, tag in state["kept"]:
            shelves[id, source].append((cursor, tag))
    register: dict[str, list[int]] = defaultdict(list)
    for source, cursor in stored.states["Register"].get("singleton", {"kept": []})["kept"]:
        register[source].append(cursor)
    for source, log in stored.events.items():
        wanted: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for sequence, event, value in log:
            if event == "Noted":
                wanted[shelf_of(value["tag"])].append((sequence, value["tag"]))
        for shelf in (f"shelf {number}" for number in range(3)):
            if shelves.pop((shelf, source), []) != wanted[shelf]:
                yield f"{shelf} was not told what {source} published: {wanted[shelf]}, and it has {stored.states['Shelf'].get(shelf)}"
        if register.pop(source, []) != [sequence for sequence, _, _ in log]:
            yield f"the register was not told what {source} published"
    yield from (f"{one} was told of what nobody published" for one in [*shelves, *register])
    for id, state in stored.states["Watcher"].items():
        yield from _watched(stored, id, state["seen"])


def _watched(stored: Stored, id: str, seen: list[tuple[str, str, int]]) -> Iterable[str]:
    """Between two requests a watcher is told a piece of the log without a hole, and after the last one all the rest of it."""
    for source in {source for _, source, _ in seen}:
        log = [sequence for sequence, event, _ in stored.events[source] if event == "Noted"]
        pieces: list[tuple[str, list[int]]] = []
        for what, of, cursor in seen:
            if of == source and what == "told":
                pieces[-1][1].append(cursor)
            elif of == source:
                pieces.append((what, []))
        for place, (since, told) in enumerate(pieces):
            start = log.index(told[0]) if told and told[0] in log else 0
            if since == "start" and told[:1] not in ([], log[:1]):
                yield f"{id}: followed {source} from the start, and was told {told} first"
            if told != log[start : start + len(told)] or (since == "end" and told):
                yield f"{id}: after {since} it was told {told} of {source}, whose log is {log}"
            last = place == len(pieces) - 1
            if last and since != "end" and (told[-1:] != log[-1:] if told or since == "start" else False):
                yield f"{id}: follows {source} since {since} and was told {told}, and its log is {log}"


def _schedules(stored: Stored) -> Iterable[str]:
    """Every tick that counted has its receipt, and the schedule goes on."""
    ticks = sum(state["ticks"] for state in stored.states["Clock"].values())
    receipts = sum(kind == "Clock" and command == "tick" for kind, _, _, command, _ in stored.receipts)
    if ticks != receipts:
        yield f"the clock ticked {ticks} times, with {receipts} receipts"
    if [actor for actor, _ in stored.schedules] != ["c0"]:
        yield f"the outbox holds {stored.schedules}"
