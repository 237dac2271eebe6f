"""`akter status`, `akter health` and `akter doctor`: who runs, what waits, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from sqlalchemy import Connection, text

from akter.cli import Target
from akter.commands import show
from akter.store import backlog, presence
from akter.tables import SCHEMA

SILENT_MS = 20_000
"""Milliseconds after its last sign of life when a runner is taken for gone."""

IDLE_MS = 60_000
"""Milliseconds after its last look for work when a runner is taken for stuck."""

STUCK_ATTEMPTS = 8
_OLD_TRANSACTION = 300


@contextmanager
def reading(target: Target) -> Iterator[Connection]:
    """A read-only transaction on the akter schema, whose statements are limited to ten seconds."""
    with target.engine() as engine, engine.connect() as given:
        connection = given.execution_options(schema_translate_map={SCHEMA: target.schema})
        connection.execute(text("SET TRANSACTION READ ONLY"))
        connection.execute(text("SET LOCAL statement_timeout = '10s'"))
        yield connection


def alive(runners: list[presence.Present]) -> list[presence.Present]:
    """Those that gave a sign of life lately."""
    return [runner for runner in runners if runner.silent_ms <= SILENT_MS]


def served(runners: list[presence.Present]) -> list[str]:
    """The types that live runners serve."""
    return sorted({name for runner in alive(runners) for name in runner.types})


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_obj
def status(target: Target, as_json: bool) -> None:
    """Say who runs and what waits."""
    with reading(target) as connection:
        runners = presence.present(connection)
        waiting = backlog.counts(connection, served(runners))
        paused = presence.paused(connection)
    if as_json:
        said = {
            "runners": [_plain(runner) for runner in runners],
            "waiting": [_plain(count) for count in waiting],
            "paused": paused,
        }
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    columns = ("label", "silent_ms", "idle_ms", "lanes", "types", "library")
    show.rows(alive(runners), columns, as_json=False, empty="nobody is running a Runner: start one with `akter run module:app`")
    click.echo()
    show.rows(waiting, ("kind", "target_type", "reason", "rows", "late_ms"), as_json=False, empty="nothing waits")
    for pause in paused:
        click.echo(f"paused: {pause['family']} {pause['target'] or '(all)'} {pause['reason']}".rstrip())


@click.command()
@click.option("--silent", default=SILENT_MS / 1000, show_default=True, metavar="SECONDS", help="Without a sign of life, a runner is gone.")
@click.option("--idle", default=IDLE_MS / 1000, show_default=True, metavar="SECONDS", help="Without a look for work, a runner is stuck.")
@click.pass_obj
def health(target: Target, silent: float, idle: float) -> None:
    """Exit with 0 when a runner lives and looks for work, else with 1 and the reason."""
    with reading(target) as connection:
        runners = presence.present(connection)
    living = [runner for runner in runners if runner.silent_ms <= silent * 1000]
    working = [runner for runner in living if not runner.stopping and (runner.idle_ms or 0) + runner.silent_ms <= idle * 1000]
    if working:
        click.echo(f"akter: {len(working)} of {len(living)} live runners look for work")
        return
    reason = "every live runner is stuck: none looked for work lately" if living else "nobody is running a Runner"
    click.echo(f"akter: {reason}")
    raise SystemExit(1)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and what to do."""

    finding: str
    remedy: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@click.pass_obj
def doctor(target: Target, as_json: bool) -> None:
    """Name what is wrong and what to do; exit with 1 when there is something."""
    with reading(target) as connection:
        found = findings(connection)
    show.rows(found, ("finding", "remedy"), as_json=as_json, empty="akter: nothing is wrong")
    if found:
        raise SystemExit(1)


def findings(connection: Connection) -> list[Finding]:
    """What is wrong with the deployment now."""
    runners = presence.present(connection)
    counted = backlog.counts(connection, served(runners))
    found: list[Finding] = []
    if not alive(runners):
        found.append(Finding("nobody is running a Runner", "start one: akter run module:app"))
    for runner in alive(runners):
        if (runner.idle_ms or 0) > IDLE_MS:
            found.append(
                Finding(
                    f"runner {runner.label} has not looked for work for {show.duration(runner.idle_ms or 0)}", "see its log; restart it"
                )
            )
    for count in counted:
        said = f"{count.rows} {count.kind} rows for {count.target_type}"
        if count.reason == "unknown type":
            found.append(
                Finding(
                    f"{said} are due and no live runner serves that type", "run a process that registers it, or redirect them: akter outbox"
                )
            )
        if count.reason == "parked":
            found.append(Finding(f"{said} can never succeed", "akter outbox list --reason parked; then discard or redirect them"))
        if count.reason == "paused":
            found.append(Finding(f"{said} are due and paused", "akter resume"))
    found += _stuck(connection, served(runners)) + _horizon(connection)
    return found


def _stuck(connection: Connection, types: list[str]) -> list[Finding]:
    found: list[Finding] = []
    for row in backlog.waiting(connection, types, reason="backoff", limit=1000):
        if row.attempts >= STUCK_ATTEMPTS:
            where = f"{row.target_type}/{row.target_id}.{row.command}"
            said = f"{row.intent_id} to {where} failed {row.attempts} times: {(row.last_error or '')[:200]}"
            found.append(Finding(said, "mend the handler, or akter outbox discard"))
    return found[:20]


def _horizon(connection: Connection) -> list[Finding]:
    oldest = connection.execute(
        text(
            "SELECT pid, application_name, extract(epoch FROM clock_timestamp() - xact_start)::int FROM pg_stat_activity "
            "WHERE backend_xmin IS NOT NULL AND xact_start < clock_timestamp() - make_interval(secs => :old) ORDER BY xact_start LIMIT 3"
        ),
        {"old": _OLD_TRANSACTION},
    )
    return [
        Finding(
            f"a transaction of pid {pid} ({name or 'unnamed'}) is open for {show.duration(seconds * 1000)}",
            "it keeps dead rows from being removed, which slows everybody: end it",
        )
        for pid, name, seconds in oldest
    ]


def _plain(row: object) -> dict[str, object]:
    import dataclasses

    return dataclasses.asdict(row)  # type: ignore[call-overload,no-any-return]
