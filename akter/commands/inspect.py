"""`akter inspect`: one actor's whole life, as it is stored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from akter.cli import Target
from akter.commands.outbox import operator_of
from akter.finding import duration
from akter.identity import DEFAULT_TENANT
from akter.store.life import Life, Row
from akter.store.settle import PARKED_MS

_WIDE = 160
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command()
@click.argument("kind")
@click.argument("id")
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, metavar="NAME", help="Whose actor it is.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 10_000), help="Commands and events to show, the newest.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with nothing cut short.")
@click.pass_obj
def inspect(target: Target, kind: str, id: str, tenant: str, limit: int, as_json: bool) -> None:
    """Show everything that is stored of the actor KIND ID.

    Its state, what happened to it, what it asked for and what waits for it.
    """
    with operator_of(target) as operator:
        found = operator.life(kind, id, tenant=tenant, limit=limit)
    if as_json:
        click.echo(json.dumps(_plain(found), ensure_ascii=False))
        return
    for line in _lines(found, limit):
        click.echo(line)


def _plain(life: Life) -> dict[str, Any]:
    whole: dict[str, Any] = {**dataclasses.asdict(life), "address": life.address._asdict()}
    whole["state"] = None if life.state is None else json.loads(life.state)
    for row in (*whole["commands"], *whole["events"], *whole["operations"]):
        for name in ("outcome", "value"):
            if name in row:
                row[name] = json.loads(row[name])
    return whole


def _lines(life: Life, limit: int) -> Iterator[str]:
    yield f"{life.address.actor_type}/{life.address.actor_id}"
    known = [f"tenant {life.address.tenant_id}", "created" if life.created else "", f"newest event {life.event_sequence}"]
    known += [f"state version {life.version}" if life.version else "no state", f"life {life.generation + 1}" if life.generation else ""]
    yield f"  {', '.join(filter(None, known))}"
    yield from _section("state", [] if life.state is None else _fields(json.loads(life.state)))
    yield from _section("what happened", _story(life, limit))
    yield from _section("what it asked for", [_waits(row, life, f"{row['target_type']}/{row['target_id']}") for row in life.asked])
    yield from _section("what others asked of it", [_waits(row, life, f"from {_sender(row)}") for row in life.waiting])
    yield from _section("who follows it", [_follower(row, life) for row in life.followers])
    yield from _section("whom it follows", [_follows(row) for row in life.follows])
    yield from _section("jobs that gave up", [_gave_up(row) for row in life.dead_letters])


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0:
            yield title
        yield f"  {line}"


def _fields(state: dict[str, Any]) -> list[str]:
    width = max((len(name) for name in state), default=0)
    return [f"{name.ljust(width)}  {_cut(_json(value))}" for name, value in state.items()]


def _story(life: Life, limit: int) -> list[str]:
    """Commands and what operators did, in their order, each command with the events it emitted."""
    told = [(row["committed_at_ms"], [_command(row)]) for row in life.commands]
    by_command = {row["command_id"]: lines for row, (_, lines) in zip(life.commands, told, strict=True)}
    for event in life.events:
        line = f"#{event['sequence']} {event['event']} {_cut(event['value'])}"
        if event["command_id"] in by_command:
            by_command[event["command_id"]].append(f"{'':25}{line}")
        else:
            # The receipt is not there any more, or not among the newest.
            told.append((event["emitted_at_ms"], [f"{_at(event['emitted_at_ms'])}  {line}"]))
    for row in life.operations:
        told.append((row["at_ms"], [_cut(_operation(row, str(life.address)))]))
    older = [f"(the newest {limit}; there may be older ones)"] if max(len(life.commands), len(life.events)) == limit else []
    return older + [line for _, lines in sorted(told, key=lambda one: one[0]) for line in lines]


def _command(row: Row) -> str:
    (how, answer), *_ = json.loads(row["outcome"]).items()
    said = f"answered {_json(answer)}" if how == "ok" else f"rejected {answer['type']} {_json(answer['fields'])}"
    return f"{_at(row['committed_at_ms'])}  {row['command']} {_cut(said)}  [{row['command_id']}]"


def _operation(row: Row, here: str) -> str:
    what = "" if row["target"] == here else f" {row['target']}"
    why = f": {row['reason']}" if row["reason"] else ""
    return f"{_at(row['at_ms'])}  {row['action']}{what} by {row['operator'] or 'nobody named'}{why}"


def _waits(row: Row, life: Life, who: str) -> str:
    wait = row["due_at_ms"] - life.now_ms
    when = "never: parked" if row["due_at_ms"] >= PARKED_MS else f"in {duration(wait)}" if wait > 0 else f"due for {duration(-wait)}"
    tried = f", {row['attempts']} attempts" if row["attempts"] else ""
    failed = f": {row['last_error']}" if row["last_error"] else ""
    key = f" ({row['timer_key']})" if row["timer_key"] else ""
    kind = "message" if row["kind"] == "intent" else row["kind"]
    return _cut(f"{kind} {row['command']} {who}{key}, {'running' if row['running'] else when}{tried}{failed}  [{row['intent_id']}]")


def _gave_up(row: Row) -> str:
    doubt = ", and may have been done" if row["ambiguous"] else ""
    return _cut(f"{_at(row['dead_at_ms'])}  {row['job']} after {row['attempts']} attempts{doubt}: {row['cause']}  [{row['job_id']}]")


def _follower(row: Row, life: Life) -> str:
    behind = f"told up to {row['delivered']} of {life.event_sequence}"
    failed = f", {row['attempts']} attempts: {row['last_error']}" if row["last_error"] else ""
    return _cut(f"{row['subscriber_type']}/{row['subscriber_id'] or '(routed)'} by {row['subscription']}, {behind}{_ended(row)}{failed}")


def _follows(row: Row) -> str:
    return f"{row['source_type']}/{row['source_id']} by {row['subscription']}, applied up to {row['applied']}{_ended(row)}"


def _ended(row: Row) -> str:
    return "" if row["active"] else ", no more"


def _sender(row: Row) -> str:
    return "outside" if row["actor_type"] == "$outside" else f"{row['actor_type']}/{row['actor_id']}"


def _at(milliseconds: int) -> str:
    return f"{_EPOCH + timedelta(milliseconds=milliseconds):%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    line = text.replace("\n", " ")
    return line if len(line) <= _WIDE else line[: _WIDE - 3] + "..."
