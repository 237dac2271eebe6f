"""A job's function in a child process, which can be killed: at the attempt's deadline, or when its lease is lost.

The function is found by its module and name, so it belongs to a module that can be imported. The child ends with this process, and what
the function started ends with the child, unless it has made a session of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from akter.job import Attempt, Cancelled, NotApplied
from akter.rejection import Rejection
from akter.runner.attempt import Run

_CONTEXT = multiprocessing.get_context("spawn")
_LOOK = 0.05


class ChildFailed(Exception):
    """What the function raised in its process, or how that process ended. `final`: it has acted, and another try would act again.
    `begun`: the function had been called."""

    def __init__(self, said: str, *, final: bool = False, begun: bool = True) -> None:
        super().__init__(said)
        self.final, self.begun = final, begun


def call(run: Run, arguments: Any) -> Any:
    """Run an attempt's function in a process of its own and return what it returned; raises what became of it otherwise."""
    attempt = run.attempt
    assert attempt is not None
    positional, named = _split(run, arguments)
    here, there = _CONTEXT.Pipe()
    alive, ours = _CONTEXT.Pipe(duplex=False)
    about = (attempt.job_id, attempt.number, attempt.actor_id, attempt.tenant, run.known.job.timeout)
    process = _CONTEXT.Process(target=_child, args=(there, alive, run.known.job.function, about, positional, named), daemon=True)
    try:
        process.start()
        there.close()
        alive.close()
        run.kill = lambda: _kill(process)
        return _await(process, here, run, attempt)
    finally:
        run.kill = None
        if process.pid is not None:
            _kill(process)
            process.join()
        for end in (here, there, alive, ours):
            end.close()


def _split(run: Run, arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    values = msgspec.structs.asdict(arguments)
    named = {name: values.pop(name) for name in run.known.job.call.keywords}
    return tuple(values.values()), named


def _kill(process: Any) -> None:
    """End the process, and those that it started and that are still in its group."""
    with contextlib.suppress(OSError):
        # Its group has its number. Before it has made that group, it has started nothing.
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _await(process: Any, here: Connection, run: Run, attempt: Attempt) -> Any:
    while True:
        # The function may have started processes of its own, which hold the pipe open: so the child itself is asked, too.
        gone = process.exitcode is not None
        if here.poll(0.0 if gone else _LOOK):
            try:
                kind, value = here.recv()
                if kind == "ready":
                    _let_go(here, run)
            except (EOFError, OSError):
                raise _ended(process, run.called) from None
            if kind == "ready":
                continue
            if kind == "progress":
                with contextlib.suppress(Exception):
                    attempt.progress(pickle.loads(value))
            else:
                return _answer(kind, value)
        elif gone:
            raise _ended(process, run.called)
        if attempt.cancelled.is_set():
            _kill(process)


def _let_go(here: Connection, run: Run) -> None:
    """Let the function be called, unless the attempt was given up while its process started."""
    # In this order: whoever gives it up asks afterwards whether it was called, and so one of the two sees the other.
    run.called = True
    if not run.over:
        # What it took to start the process is not the function's time.
        run.deadline = min(run.deadline, time.monotonic() + run.known.job.timeout)
        here.send(None)


def _ended(process: Any, begun: bool) -> ChildFailed:
    process.join(5.0)
    code = process.exitcode
    said = f"its process ended with {f'signal {-code}' if code is not None and code < 0 else f'exit code {code}'}"
    if not begun:
        said += (
            " before the function was called: what its module's import wrote is in this process's output, and a script does what it "
            'does under `if __name__ == "__main__":`'
        )
    return ChildFailed(said, begun=begun)


def _answer(kind: str, value: Any) -> Any:
    if kind == "returned":
        try:
            return pickle.loads(value)
        except Exception as problem:
            raise ChildFailed(f"what it returned cannot be read: {_said(problem)}", final=True) from problem
    said, applied, final = value
    if kind == "cancelled":
        raise Cancelled
    raise ChildFailed(said, final=final) if applied else NotApplied(said, final=final)


def _child(
    there: Connection,
    alive: Connection,
    function: Callable[..., Any],
    about: tuple[str, int, str, str, float],
    positional: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    with contextlib.suppress(OSError):
        # A group of its own, for all that the function starts; and what a terminal sends is for the runner, which ends this one.
        os.setsid()
    threading.Thread(target=_follow, args=(alive,), daemon=True).start()
    id, number, actor_id, tenant, seconds = about
    lock = threading.Lock()

    def send(kind: str, value: Any) -> None:
        with lock:
            there.send((kind, value))

    def report(value: Any) -> None:
        # Progress never fails a job.
        with contextlib.suppress(Exception):
            send("progress", pickle.dumps(value))

    send("ready", None)
    there.recv()
    attempt = Attempt(job_id=id, number=number, actor_id=actor_id, tenant=tenant, deadline=time.monotonic() + seconds, report=report)
    try:
        value = function(attempt, *positional, **named)
    except BaseException as problem:  # noqa: BLE001 - it is told to the process that waits
        applied = not isinstance(problem, NotApplied | Rejection)
        final = isinstance(problem, NotApplied) and getattr(problem, "final", False) is True
        kind = "cancelled" if isinstance(problem, Cancelled) else "raised"
        send(kind, (getattr(problem, "said", None) or _said(problem), applied, final))
        return
    try:
        send("returned", pickle.dumps(value))
    except Exception as problem:  # noqa: BLE001 - what it returned cannot be sent, so it is not known here
        send("raised", (f"what it returned cannot leave its process: {_said(problem)}", True, True))


def _said(problem: BaseException) -> str:
    try:
        return f"{type(problem).__name__}: {problem}"[:2000]
    except Exception:  # noqa: BLE001 - a text that cannot be made must not hide the failure
        return type(problem).__name__


def _follow(alive: Connection) -> None:
    """End with the process that started this one, and with what the function started."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv_bytes()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
