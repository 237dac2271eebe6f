"""The outputs in `docs/why-not-running.md` are what the commands say."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click.testing
from processes import until
from shop import Crate, Parcel

from akter import Runner
from akter.app import Akter
from akter.cli import main
from akter.operating import Operator
from akter.runner.settings import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "why-not-running.md").read_text(encoding="utf-8")


def plain(line: str) -> str:
    """A line without what differs each time."""
    line = re.sub(r"v1\.\d+\.\d+\.[0-9a-f-]{36}", "ID", line)
    line = re.sub(r"-?\b\d+(\.\d+)?(ms|s|m|h|d)( \d+[smh])?(?!\w)", "TIME", line)
    return re.sub(r"\s+", " ", line).strip()


def documented(command: str, which: int = 0) -> list[str]:
    """The lines that the document shows below a command."""
    shown = [block.splitlines()[1:] for block in TEXT.split("```")[1::2]]
    found = [lines[1:] for lines in shown if lines[0] == f"$ {command}"]
    return sorted(plain(line) for line in found[which] if line)


def said(environment: dict[str, str], *arguments: str) -> list[str]:
    result = click.testing.CliRunner().invoke(main, arguments, env=environment)
    return sorted(plain(line) for line in result.stdout.splitlines() if line)


def test_where_nobody_runs(app: Akter, environment: dict[str, str]) -> None:
    app.send(app.actor(Parcel, "p-1").move)
    assert said(environment, "doctor") == documented("akter doctor")


def test_where_somebody_runs_and_still(app: Akter, environment: dict[str, str], operator: Operator, rows: Callable[..., list[Any]]) -> None:
    with Runner(app, label="worker-1:4711", poll=0.1, heartbeat=0.2, listen=False):
        until(operator.runners)
        operator.pause("intents", "Crate", why="the crane is broken")
        app.send(app.actor(Parcel, "p-2").fail)
        app.send(app.actor(Crate, "c-1").move)
        with app.engine.begin() as connection:
            app.within(connection).after(timedelta(hours=3)).send(app.actor(Parcel, "p-3").move)
        until(lambda: operator.waiting(reason="backoff"))
        rows("UPDATE {akter}.actor_outbox SET attempts = 9, due_at_ms = due_at_ms + 200000 WHERE target_id = 'p-2'")
        rows(
            "INSERT INTO {akter}.actor_outbox (bucket, routing_key, tenant_id, actor_type, actor_id, intent_id, target_type, target_id,"
            " command, payload, caller, due_at_ms, scheduled_at_ms) SELECT bucket, routing_key, tenant_id, actor_type, actor_id, 'i-ghost',"
            " 'Letter', 'l-1', 'send', payload, caller, due_at_ms - 100000000, scheduled_at_ms FROM {akter}.actor_outbox"
            " WHERE target_id = 'p-3'"
        )
        app.send(app.actor(Parcel, "p-5").hold, 3.0)
        until(lambda: operator.waiting(reason="claimed"))
        time.sleep(0.01)
        assert said(environment, "status") == documented("akter status")
        assert said(environment, "outbox", "list") == documented("akter outbox list")
        assert said(environment, "doctor") == documented("akter doctor", 1)
        redirected = (
            "outbox",
            "redirect",
            "i-ghost",
            "--type",
            "Parcel",
            "--id",
            "p-9",
            "--command",
            "move",
            "--why",
            "letters are parcels now",
        )
        resumed = said(environment, "resume", "intents", "--type", "Crate")
        assert said(environment, *redirected) + resumed == ["akter: redirected i-ghost", "akter: intents Crate is resumed"]


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "production.md").read_text(encoding="utf-8")
    tables = text.split("## Settings\n")[1].split("\n## ")[0].split("| `Runner(app, ...)` |")
    named = [set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)))) for table in tables]
    akter = set(inspect.signature(Akter).parameters) - {"target", "actors"}
    assert named == [akter, {"label", *Settings.__dataclass_fields__}]


def test_the_tests_that_documents_name_exist() -> None:
    root = Path(__file__).parents[2]
    for document in ("production.md", "why-not-running.md", "logging.md", "inspecting.md"):
        for name in re.findall(r"`(?:tests/)?([\w/]+\.py)(?:::(\w+))?`", (root / "docs" / document).read_text(encoding="utf-8")):
            path = root / "tests" / name[0]
            assert path.exists(), f"{document}: {name[0]}"
            assert f"def {name[1]}" in path.read_text(encoding="utf-8"), f"{document}: {name[0]}::{name[1]}"
