"""What can be wrong with a deployment, told with what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from akter.schedule import CRON_KEY
from akter.store import backlog, lagging, presence, versions
from akter.store.backlog import STUCK, Count
from akter.store.lagging import Lagging
from akter.store.pinned import MOST, Pinned, pinned
from akter.store.presence import IDLE_MS, Present
from akter.store.retention import HOLD_MS
from akter.store.versions import Readable

LATE_MS = 60_000
"""Milliseconds that a row is due after which its runners do not keep up."""

_OLD_TRANSACTION = 300
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and what to do. `name` is stable."""

    name: str
    finding: str
    remedy: str


def findings(connection: Connection) -> list[Finding]:
    """What is wrong now."""
    runners = presence.present(connection)
    served, paused = presence.served(runners), presence.held_back(presence.paused(connection))
    counted, following = backlog.counts(connection, served, paused), lagging.counts(connection, served, paused)
    found = _runners(runners)
    for count in (*counted, *following):
        found += _waiting(count)
    if any(count.stuck for count in following):
        found += [_behind(row) for row in lagging.page(connection, served, paused, attempts=STUCK, limit=_SHOWN)]
    if any(count.stuck for count in counted):
        for row in backlog.page(connection, served, paused, attempts=STUCK, limit=_SHOWN):
            if row.reason in ("backoff", "due"):
                where = f"{row.target_type}/{row.target_id}.{row.command}"
                said = f"{row.intent_id} to {where} was tried {row.attempts} times: {(row.last_error or 'its runner died each time')[:200]}"
                tick = (row.key or "").startswith(CRON_KEY)
                instead = "this time is skipped a day after it" if tick else f"akter outbox discard {row.intent_id} --yes"
                found.append(Finding("stuck", said, f"mend the handler, or: {instead}"))
    if (offset := presence.clock_offset_ms(connection)) != 0:
        said = f"a test moved this database's clock forward by {duration(offset)}"
        found.append(Finding("test clock", said, "timers fire early; never do that where people work"))
    for pid, name, seconds in presence.old_transactions(connection, _OLD_TRANSACTION):
        said = f"a transaction of pid {pid} ({name or 'unnamed'}) is open for {duration(seconds * 1000)}"
        found.append(Finding("old transaction", said, "it keeps dead rows from being removed, which slows everybody: end it"))
    return found


def kept_back(connection: Connection, kept: Mapping[str, int]) -> list[Finding]:
    """Followers for which events are kept longer than `kept` says, in milliseconds, of each type."""
    return [_kept_back(one) for one in pinned(connection, kept, _SHOWN)]


def _kept_back(one: Pinned) -> Finding:
    who = f"{one.subscription} {one.subscriber_id}".rstrip()
    number = f"{one.events} or more" if one.events >= MOST else str(one.events)
    said = (
        f"{number} old {'event' if number == '1' else 'events'} of {one.source}, the oldest {duration(one.oldest_ms)} old, kept for {who}"
    )
    skip = f"akter subscriptions skip {one.source} {who} --through {one.through} --yes"
    remedy = f"see why it is behind, akter subscriptions list; or: {skip}; after {duration(HOLD_MS)} more than others they go, told or not"
    return Finding("events kept back", said, remedy)


def unreadable(connection: Connection, readable: Iterable[Readable]) -> list[Finding]:
    """What newer code wrote and the given code cannot read."""
    remedy = "deploy the code that wrote it again, or a later one: older code refuses to start, and changes nothing"
    return [Finding("too new", str(one), remedy) for one in versions.stranded(connection, readable)]


def _runners(runners: list[Present]) -> list[Finding]:
    living = [runner for runner in runners if runner.alive]
    found: list[Finding] = []
    if not living:
        found.append(Finding("no runner", "nobody is running a Runner", "start one: akter run module:app"))
    for runner in living:
        if not runner.stopping and runner.idle_ms + runner.silent_ms > IDLE_MS:
            said = f"the runner {runner.label} has not looked for work for {duration(runner.idle_ms + runner.silent_ms)}"
            found.append(Finding("stuck runner", said, "see runner.loop_failed in its log, or restart it"))
        for family, threads in sorted(runner.overdue.items()):
            some = "every thread is" if family in runner.hung else "1 thread is" if threads == 1 else f"{threads} threads are"
            said = f"the runner {runner.label}, {family}: {some} in a handler past its time limit"
            shown = "akter subscriptions list" if family == "subscription" else "akter outbox list"
            remedy = f"relay.past_its_limit in its log names the handlers, and {shown} shows them: mend them, and restart it"
            found.append(Finding("hung runner" if family in runner.hung else "overdue", said, remedy))
    return found


def _behind(row: Lagging) -> Finding:
    who = f"{row.subscription} {row.subscriber_id}".rstrip()
    said = f"{who} cannot be told of {row.source} after {row.delivered}, tried {row.attempts} times: {(row.last_error or '')[:200]}"
    skip = f"akter subscriptions skip {row.source} {who} --through {row.delivered + 1} --yes"
    return Finding("stuck subscription", said, f"mend the handler, or: {skip}")


def _waiting(count: Count) -> list[Finding]:
    said = f"{count.rows} {count.kind} {'row' if count.rows == 1 else 'rows'} for {count.target_type}"
    only = f"--type {count.target_type}"
    if count.reason == "unknown type":
        listed = "subscriptions list" if count.kind == "subscription" else "outbox list --reason 'unknown type'"
        remedy = f"run a process that registers {count.target_type}, or: akter {listed} {only}"
        return [Finding("unknown type", f"{said} due and no live runner serves that type", remedy)]
    if count.reason == "unknown schedule":
        remedy = "run the code that has it; if it left the code, nothing: its rows are deleted a day after their time"
        return [Finding("unknown schedule", f"{said} of a schedule that the runner which looked last does not have", remedy)]
    if count.reason == "parked":
        remedy = f"akter outbox list --reason parked {only}; then discard or redirect"
        return [Finding("parked", f"{said} can never succeed", remedy)]
    if count.reason == "paused":
        family = backlog.FAMILY[count.kind]
        remedy = f"akter resume {family}, or: akter resume {family} {only}"
        return [Finding("paused", f"{said} due and paused", remedy)]
    if count.reason == "due" and count.late_ms > LATE_MS:
        remedy = "see akter status; more seats (--lane), more processes, or a quicker handler"
        return [Finding("late", f"{said} due, the oldest for {duration(count.late_ms)}", remedy)]
    return []


def duration(milliseconds: int) -> str:
    """A duration a person reads at a glance: 250ms, 12.3s, 4m 10s, 3h 5m, 12d 4h."""
    sign, rest = ("-" if milliseconds < 0 else ""), abs(milliseconds)
    if rest < 1000:
        return f"{sign}{rest}ms"
    if rest < 60_000:
        return f"{sign}{rest / 1000:.1f}s"
    minutes = rest // 60_000
    if minutes < 60:
        return f"{sign}{minutes}m {rest // 1000 % 60}s"
    hours = minutes // 60
    return f"{sign}{hours}h {minutes % 60}m" if hours < 48 else f"{sign}{hours // 24}d {hours % 24}h"
