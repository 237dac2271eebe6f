"""Child processes of tests: what they return, where they stand, and what they say when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from akter import Actor, Akter, AkterError, command, query
from akter.testing import child


class Counter(Actor):
    """Counts."""

    count: int = 0

    @command
    def increment(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @query
    def value(self) -> int:
        return self.count


def increment(url: str, schema: str, *ids: str) -> list[int]:
    with Akter(url, actors=[Counter], schema=schema) as app:
        answers: list[int] = []
        for id in ids:
            with app.command_id(id):
                answers.append(app.actor(Counter, "visits").increment())
        return answers


def fail(_: str) -> None:
    raise LookupError("no such thing")


def talk(number: int) -> set[int]:
    print("hello", flush=True)
    return {number, os.getpid()}


SCRIPT = """
import sys
from akter import Akter, Actor, command

class Counter(Actor):
    count: int = 0
    @command
    def increment(self, by: int) -> int:
        self.count += by
        return self.count

if __name__ == "__main__":
    with Akter(sys.argv[1], actors=[Counter], schema=sys.argv[2]) as app:
        print(app.actor(Counter, "visits").increment(by=int(sys.argv[3])))
"""


@pytest.fixture
def where(akter_database: str, akter_schema: str) -> tuple[str, str]:
    return akter_database, akter_schema


def test_it_returns_what_the_function_returns() -> None:
    with child(talk, 7) as process:
        answer = process.wait()
        assert 7 in answer
        assert os.getpid() not in answer
        assert process.output == "hello\n"


def test_it_stands_at_the_point_of_one_command_until_it_is_released(where: tuple[str, str], akter_app: Any) -> None:
    with child(increment, *where, "a", "b", "c", stop_at="after_commit", command_id=":b") as process:
        assert process.wait_reached().endswith(":b")
        assert akter_app(Counter).actor(Counter, "visits").value() == 2
        process.release()
        assert process.wait() == [1, 2, 3]


def test_a_script_is_given_by_its_path(where: tuple[str, str], akter_app: Any, tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text(SCRIPT)
    with child(script, *where, "4", stop_at="before_commit") as process:
        process.wait_reached()
        process.kill()
    with child(str(script), *where, "6") as process:
        assert process.wait() is None
        assert process.output == "6\n"
    assert akter_app(Counter).actor(Counter, "visits").value() == 6


def test_a_failure_comes_with_its_traceback() -> None:
    with child(fail, "x", stop_at="before_commit") as process, pytest.raises(AkterError, match="status 1") as raised:
        process.wait_reached()
    assert "LookupError: no such thing" in str(raised.value)
    assert "in fail" in str(raised.value)


def test_a_point_that_no_turn_comes_to_is_reported(where: tuple[str, str]) -> None:
    with child(increment, *where, stop_at="before_commit") as process, pytest.raises(AkterError, match="no turn to the point"):
        process.wait_reached()
    with child(increment, *where, "a", stop_at="before_commit", command_id=":z") as process, pytest.raises(AkterError, match="no turn"):
        process.wait_reached()


def test_waiting_for_the_end_of_one_that_stands_still_is_refused(where: tuple[str, str]) -> None:
    with child(increment, *where, "a", stop_at="before_commit") as process, pytest.raises(AkterError, match="stands at the point"):
        process.wait()


def test_what_another_process_cannot_find_is_refused() -> None:
    with pytest.raises(TypeError, match="no lambda"):
        child(lambda: 1)
    with pytest.raises(AkterError, match="there is no point 'nowhere'"):
        child(talk, 1, stop_at="nowhere")  # type: ignore[arg-type]


def test_a_child_is_killed_at_the_end_of_the_block(where: tuple[str, str]) -> None:
    with child(increment, *where, "a", stop_at="before_commit") as process:
        process.wait_reached()
        found = process._process
    assert found.returncode == -9


def test_a_child_ends_when_its_test_was_killed(where: tuple[str, str], tmp_path: Path) -> None:
    script = tmp_path / "test_it.py"
    script.write_text(
        "import os, sys\nfrom akter.testing import child\n"
        f"inner = child({os.fspath(tmp_path / 'count.py')!r}, *sys.argv[1:], '1', stop_at='before_commit')\n"
        "inner.wait_reached()\nprint(inner._process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "count.py").write_text(SCRIPT)
    command_line = [sys.executable, str(script), *where]
    done = subprocess.run(command_line, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    pid = int(done.stdout)
    for _ in range(1000):
        if subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True).stdout.strip()[:1] in ("", "Z"):
            return
    pytest.fail("it still runs")
