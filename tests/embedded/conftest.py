"""Directories every account can reach, and real processes, as this account and as an ordinary one."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from akter.embedded import Server

ROOT = Path(__file__).parent.parent.parent
CHILD = Path(__file__).with_name("child.py")
ORDINARY = "nobody"


class Account:
    """Who a process runs as, and with which interpreter, since root's may be out of an ordinary user's reach."""

    def __init__(self, interpreter: str, name: str | None) -> None:
        self.interpreter = interpreter
        self.name = name
        self.options: dict[str, Any] = {}
        if name is not None:
            self.options = {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.interpreter, *arguments], env=child_environment(environment), cwd="/", capture_output=True, text=True, **self.options
        )


class Process:
    """A running child.py, in words."""

    def __init__(self, account: Account, environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [account.interpreter, str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(environment),
            cwd="/",
            text=True,
            **account.options,
        )

    def tell(self, *line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(line) + "\n")
        self.popen.stdin.flush()

    def answer(self) -> Any:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, self.popen.stderr and self.popen.stderr.read()
        return json.loads(line)

    def ask(self, *line: str) -> Any:
        self.tell(*line)
        return self.answer()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def close(self) -> None:
        if self.popen.stdin is not None and not self.popen.stdin.closed:
            self.popen.communicate(timeout=20)


def child_environment(changes: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    packages = [path for path in sys.path if path.endswith("-packages")]
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages]), "PYTHONDONTWRITEBYTECODE": "1", **changes}


def eventually(fact: Callable[[], bool], within: float = 30.0) -> bool:
    """Whether something outside of the test came true in that many seconds."""
    end = time.monotonic() + within
    while not fact():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_gone(pid: int) -> bool:
    """Whether a process ended; one that nobody has waited for yet did."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def interpreter_for(name: str) -> str | None:
    for candidate in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        try:
            if Account(candidate, name).run("-c", "import psycopg, sqlalchemy, akter.errors").returncode == 0:
                return candidate
        except OSError:
            continue
    return None


@pytest.fixture(scope="session")
def ordinary() -> Account:
    if os.geteuid() != 0:
        pytest.skip("only root can be another account, and this one is an ordinary one already")
    interpreter = interpreter_for(ORDINARY)
    if interpreter is None:
        pytest.skip(f"the account {ORDINARY!r} can reach no Python that has the packages akter needs")
    return Account(interpreter, ORDINARY)


@pytest.fixture
def account(request: pytest.FixtureRequest) -> Account:
    """Whom processes run as: this account, unless a test is parametrized with another one."""
    if getattr(request, "param", "this") == "this":
        return Account(sys.executable, None)
    found: Account = request.getfixturevalue("ordinary")
    return found


@pytest.fixture(scope="session")
def pristine(reachable: Callable[[], AbstractContextManager[Path]]) -> Iterator[Path]:
    """A data directory as the first start leaves it, since a copy is there sooner than another one."""
    with reachable() as directory:
        with Server(directory / "data"):
            pass
        yield directory / "data"


@pytest.fixture
def data(place: Path, pristine: Path, account: Account) -> Path:
    """A data directory of `account` that has been used before."""
    subprocess.run(["cp", "-R", str(pristine), str(place / "data")], check=True)
    if account.name is not None:
        subprocess.run(["chown", "-R", account.name, str(place / "data")], check=True)
    return place / "data"


@pytest.fixture
def child(place: Path, account: Account) -> Iterator[Callable[..., Process]]:
    """Starts processes, and ends those that a test left; after `place`, so that nothing runs there when it is removed."""
    processes: list[Process] = []

    def start(**environment: str) -> Process:
        processes.append(Process(account, environment))
        return processes[-1]

    yield start
    for process in processes:
        process.close()
    assert eventually(lambda: not list(place.glob("*/pgdata/postmaster.pid")))


@pytest.fixture
def ends() -> Callable[[int], bool]:
    """Whether a process ends by itself, soon."""
    return lambda pid: eventually(lambda: is_gone(pid))


@pytest.fixture
def vanishes() -> Callable[[Path | str], bool]:
    """Whether a file or a directory is removed by somebody, soon."""
    return lambda path: eventually(lambda: not Path(path).exists())
