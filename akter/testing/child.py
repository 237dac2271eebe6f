"""A process beside the test, which runs real turns, stops at a named point and is killed there, as by `kill -9`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import Loader
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self, cast

from akter.errors import AkterError
from akter.fault import POINTS, Faults, Point, Subject

_START = "from akter.testing.child import main; main()"


class child:
    """Run a function, or a script, in a process of its own, which stands still at the first turn that comes to `stop_at`.

        def order(url: str) -> int:
            with Akter(url, actors=[Order]) as app, app.command_id("o-1"):
                return app.actor(Order, "1").place("ada")

        def test_an_order_survives(akter_database: str) -> None:
            with child(order, akter_database, stop_at="before_commit") as process:
                process.wait_reached()
                process.kill()
            with child(order, akter_database) as process:
                assert process.wait() == 3900

    The function is one of a module's own, in a test too; its arguments and its result are pickled. A script is given by its path, and
    its arguments are texts. `command_id` narrows the stop to one command. At the end of the block the process is killed, unless it ended.
    """

    def __init__(
        self, target: Callable[..., Any] | str | Path, *arguments: Any, stop_at: Point | None = None, command_id: str | None = None
    ) -> None:
        if stop_at is not None and stop_at not in POINTS:
            raise AkterError(f"there is no point {stop_at!r}; the points are {', '.join(POINTS)}")
        where = _named(target) if callable(target) else os.path.abspath(target)
        ahead = pickle.dumps(arguments)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        with suppress(BrokenPipeError):  # it is gone already, which waiting for it will tell
            self._pipe.send((where, stop_at, command_id))
            self._pipe.send_bytes(ahead)

    @property
    def output(self) -> str:
        """What the process printed so far, its traceback included."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def wait_reached(self, seconds: float = 30.0) -> str:
        """Wait until a turn stands at the point, and return its command id; raises `AkterError` with the output if none comes there."""
        kind, command_id = self._hear(seconds)
        if kind != "reached":
            raise AkterError(f"the child process came to its end and no turn to the point:\n{self.output}")
        return str(command_id)

    def release(self) -> None:
        """Let the turn go on."""
        self._pipe.send(None)

    def wait(self, seconds: float = 30.0) -> Any:
        """Wait for the end, and return what the function returned; raises `AkterError` with the traceback if it failed."""
        kind, result = self._hear(seconds)
        if kind == "reached":
            raise AkterError(f"the child process stands at the point with {result!r}: release() or kill() it")
        self._process.wait(seconds)
        return result

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone; its database connections close as those of a crashed process do."""
        self._process.kill()
        self._process.wait()

    def _hear(self, seconds: float) -> tuple[str, Any]:
        if not self._pipe.poll(seconds):
            raise AkterError(f"the child process came to nothing within {seconds} seconds:\n{self.output}")
        try:
            said: tuple[str, Any] = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            if status := self._process.wait():
                raise AkterError(f"the child process ended with status {status}:\n{self.output}") from None
            return "ended", None
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._pipe.close()
        self._output.close()


def _named(function: Callable[..., Any]) -> tuple[str, str, str]:
    module = sys.modules.get(getattr(function, "__module__", ""))
    name = getattr(function, "__qualname__", "<locals>")
    if "<" in name or module is None or module.__file__ is None:
        raise TypeError("child(...) takes a function of a module, which another process can find: no lambda, and none inside of another")
    return module.__name__, os.path.abspath(module.__file__), name


def main() -> None:
    """Be the child process; its argument is the descriptor that the test listens on."""
    parent = Connection(int(sys.argv[1]))
    os.set_inheritable(parent.fileno(), False)
    where, stop_at, command_id = parent.recv()
    first = threading.Lock()

    def stand(point: Point, subject: Subject) -> None:
        if point == stop_at and (command_id is None or subject.id.endswith(command_id)) and first.acquire(blocking=False):
            parent.send(("reached", subject.id))
            try:
                parent.recv()
            except (EOFError, ConnectionResetError):
                os._exit(1)  # the test itself is gone

    Faults.everywhere = stand if stop_at else None
    if isinstance(where, str):
        sys.argv = [where, *parent.recv()]
        sys.path.insert(0, str(Path(where).parent))
        runpy.run_path(where, run_name="__main__")
    else:
        target: Any = _module(*where[:2])
        for part in where[2].split("."):
            target = getattr(target, part)
        parent.send(("returned", target(*parent.recv())))


def _module(name: str, file: str) -> ModuleType:
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin == file:
            return importlib.import_module(name)
    # A test module that pytest imported by its path has a name that leads nowhere.
    spec = importlib.util.spec_from_file_location("child" if name == "__main__" else name, file)
    assert spec is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    cast(Loader, spec.loader).exec_module(module)
    return module
