"""Processes that fork with an app in use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("forking.py")


@pytest.fixture
def fork(akter_database: str, akter_schema: str) -> Callable[[str], Any]:
    def run(way: str) -> Any:
        command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(PROGRAM), way, akter_database, akter_schema]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert (ended.returncode, ended.stderr) == (0, "")
        return json.loads(ended.stdout)

    return run


@pytest.mark.parametrize(("way", "children"), [("os.fork", 4), ("fork", 2), ("spawn", 2)])
def test_children_and_parent_count_every_command_on_connections_of_their_own(
    fork: Callable[[str], Any], observer: Any, way: str, children: int
) -> None:
    found = fork(way)
    assert found["statuses"] == [0] * children
    assert len(set(found["backends"])) == children + 1
    assert found["kept"], "the parent's connection ended with a child"
    assert observer.one("SELECT value ->> 'balance' FROM actor_state") == str((children + 1) * 25)
    assert observer.one("SELECT count(*) FROM actor_receipts WHERE command = 'add'") == (children + 1) * 25


def test_a_fork_leaves_a_turn_of_another_thread_alone(fork: Callable[[str], Any]) -> None:
    assert fork("beside a turn") == {"statuses": [0], "answers": [1], "again": 2}


def test_a_fork_in_a_handler_commits_its_turn_once(fork: Callable[[str], Any], observer: Any) -> None:
    assert fork("in a turn") == {"statuses": [0], "again": 2}
    assert observer.one("SELECT count(*) FROM actor_receipts") == 2
