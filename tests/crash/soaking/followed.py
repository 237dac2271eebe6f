"""Compares what was told with what was published: each once, in its order, whoever was killed, and whenever somebody stopped to follow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from soaking.following import is_noted, listener_of

Log = list[tuple[int, str]]


def judge(stored: Any, wrong: list[str], numbers: dict[str, Any]) -> None:
    """The logs are what the histories say, and what everybody was told is what the logs say."""
    logs: dict[str, Log] = defaultdict(list)
    for source, sequence, tag in stored.events:
        logs[source].append((sequence, tag))
    wrong += [*_published(stored, logs), *_listened(stored, logs)]
    pieces = [piece for id, seen in stored.followers.items() for piece in _pieces(id, seen)]
    last = {piece[:2]: number for number, piece in enumerate(pieces)}
    for number, (id, source, since, told) in enumerate(pieces):
        log = [sequence for sequence, _ in logs[source]]
        wrong += _followed(f"{id} of {source} since {since}", since, told, log, is_last=last[id, source] == number)
    wrong += [f"a subscription is not told all: {row}" for row in stored.untold]
    numbers["events published"] = len(stored.events)
    numbers["events told to listeners"] = sum(len(kept) for kept in stored.listeners.values())
    numbers["told more than once, kept once"] = sum(len(runs) > 1 for tag, runs in stored.runs.items() if tag.startswith("told "))
    numbers["events told to followers"] = sum(len(told) for *_, told in pieces)
    numbers["times that a follower began, and ended"] = (len(pieces), sum(since == "end" for _, _, since, _ in pieces))


def _published(stored: Any, logs: dict[str, Log]) -> Iterable[str]:
    """An event for each line of the history that is to have one, in the order of the turns, numbered from one."""
    for actor, head in stored.heads.items():
        history = stored.states[actor][0]["history"] if actor in stored.states else []
        wanted = [tag for _, tag in history if is_noted(tag)]
        if logs[actor] != list(enumerate(wanted, start=1)) or head != len(wanted):
            yield f"{actor}: published {logs[actor]} up to {head}, and its history is to have {wanted}"


def _listened(stored: Any, logs: dict[str, Log]) -> Iterable[str]:
    kept: dict[tuple[str, str], Log] = defaultdict(list)
    for id, lines in stored.listeners.items():
        for source, cursor, tag in lines:
            kept[id, source].append((cursor, tag))
    wanted: dict[tuple[str, str], Log] = defaultdict(list)
    for source, log in logs.items():
        for cursor, tag in log:
            wanted[listener_of(tag), source].append((cursor, tag))
    for name in {*kept, *wanted}:
        if kept[name] != wanted[name]:
            twice = [one for one, times in Counter(kept[name]).items() if times > 1]
            yield f"{name[0]} was told {kept[name]} by {name[1]}, twice {twice}, and is to have {wanted[name]}"


def _pieces(id: str, seen: Iterable[tuple[str, str, int]]) -> Iterable[tuple[str, str, str, list[int]]]:
    """What a follower was told of each source after each of its requests: "start", "now" or "end"."""
    found: list[tuple[str, str, str, list[int]]] = []
    latest: dict[str, list[int]] = {}
    for what, source, cursor in seen:
        if what in ("start", "now", "end"):
            latest[source] = []
            found.append((id, source, what, latest[source]))
        else:
            # A gap has no place in a log of which nothing was pruned.
            latest.setdefault(source, []).append(cursor if what == "told" else -cursor)
    return found


def _followed(who: str, since: str, told: list[int], log: list[int], *, is_last: bool) -> Iterable[str]:
    """A piece of the log without a hole; from the start, its start; and as long as nothing else was asked for, all that is left of it."""
    if since == "end":
        if told:
            yield f"{who}: was told {told}"
        return
    first = log.index(told[0]) if told and told[0] in log else 0
    if told != log[first : first + len(told)]:
        yield f"{who}: was told {told}, and the log is {log}"
    elif since == "start" and told and first:
        yield f"{who}: was told {told} first, and the log is {log}"
    elif is_last and (told or since == "start") and told[-1:] != log[-1:]:
        yield f"{who}: was told {told}, and the log goes on: {log}"
