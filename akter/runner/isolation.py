"""A job's function in a child process, which can be killed: at the attempt's deadline, or when its lease is lost.

The function is found by its module and name, so it belongs to a module that can be imported. The child ends with this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from akter.job import Attempt, Cancelled, NotApplied
from akter.rejection import Rejection
from akter.runner.attempt import Run

_CONTEXT = multiprocessing.get_context("spawn")
_LOOK = 0.05


class ChildFailed(Exception):
    """What the function raised in its process, or how that process ended."""


def call(run: Run, arguments: Any) -> Any:
    """Run an attempt's function in a process of its own and return what it returned; raises what became of it otherwise."""
    attempt = run.attempt
    assert attempt is not None
    positional, named = _split(run, arguments)
    here, there = _CONTEXT.Pipe()
    alive, ours = _CONTEXT.Pipe(duplex=False)
    about = (attempt.job_id, attempt.number, attempt.actor_id, attempt.tenant, attempt.remaining())
    process = _CONTEXT.Process(target=_child, args=(there, alive, run.known.job.function, about, positional, named), daemon=True)
    try:
        process.start()
        there.close()
        alive.close()
        run.kill = process.kill
        return _await(process, here, attempt)
    finally:
        run.kill = None
        if process.pid is not None:
            process.kill()
            process.join()
        for end in (here, there, alive, ours):
            end.close()


def _split(run: Run, arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    values = msgspec.structs.asdict(arguments)
    named = {name: values.pop(name) for name in run.known.job.call.keywords}
    return tuple(values.values()), named


def _await(process: Any, here: Connection, attempt: Attempt) -> Any:
    while True:
        ready = wait([here, process.sentinel], _LOOK)
        if here in ready:
            try:
                kind, value = here.recv()
            except (EOFError, OSError):
                raise _ended(process) from None
            if kind != "progress":
                return _answer(kind, value)
            attempt.progress(value)
        elif ready:
            raise _ended(process)
        if attempt.cancelled.is_set():
            process.kill()


def _ended(process: Any) -> ChildFailed:
    process.join(5.0)
    code = process.exitcode
    return ChildFailed(f"its process ended with {f'signal {-code}' if code is not None and code < 0 else f'exit code {code}'}")


def _answer(kind: str, value: Any) -> Any:
    if kind == "returned":
        return value
    said, applied, final = value
    if kind == "cancelled":
        raise Cancelled
    raise ChildFailed(said) if applied else NotApplied(said, final=final)


def _child(
    there: Connection,
    alive: Connection,
    function: Callable[..., Any],
    about: tuple[str, int, str, str, float],
    positional: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    threading.Thread(target=_follow, args=(alive,), daemon=True).start()
    id, number, actor_id, tenant, seconds = about
    lock = threading.Lock()

    def send(kind: str, value: Any) -> None:
        with lock:
            there.send((kind, value))

    def report(value: Any) -> None:
        # Progress never fails a job.
        with contextlib.suppress(Exception):
            send("progress", value)

    attempt = Attempt(job_id=id, number=number, actor_id=actor_id, tenant=tenant, deadline=time.monotonic() + seconds, report=report)
    try:
        value = function(attempt, *positional, **named)
    except BaseException as problem:  # noqa: BLE001 - it is told to the process that waits
        applied = not isinstance(problem, NotApplied | Rejection)
        final = isinstance(problem, NotApplied) and problem.final
        kind = "cancelled" if isinstance(problem, Cancelled) else "raised"
        send(kind, (problem.said if isinstance(problem, NotApplied) else _said(problem), applied, final))
        return
    try:
        send("returned", value)
    except Exception as problem:  # noqa: BLE001 - what it returned cannot be sent, so it is not known here
        send("raised", (f"what it returned cannot leave its process: {_said(problem)}", True, True))


def _said(problem: BaseException) -> str:
    try:
        return f"{type(problem).__name__}: {problem}"[:2000]
    except Exception:  # noqa: BLE001 - a text that cannot be made must not hide the failure
        return type(problem).__name__


def _follow(alive: Connection) -> None:
    """End with the process that started this one."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(1)
