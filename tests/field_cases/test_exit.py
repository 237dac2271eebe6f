"""Group I: how a program with a runner in it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yard
from yard import Yard

from akter import Akter

Rows = Callable[..., list[Any]]
HERE = Path(__file__).parent
BEGIN = """
import atexit, os, signal, sys, threading, time
from akter import Runner
from yard import Yard, app
handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
def started():
    return Runner(app, poll=0.05, heartbeat=0.1).start()
def sent(thing):
    return app.send(app.actor(Yard, thing).take, thing)
def delivered(thing):
    end = time.monotonic() + 50
    while not thing_of(thing) and time.monotonic() < end:
        time.sleep(0.01)
def thing_of(thing):
    try:
        return app.outcome(app.actor(Yard, thing), ids[thing])
    except LookupError:
        return None
ids = {"a": sent("a")}
"""
ENDS = {
    "a with block": ("with started():\n    delivered('a')", 0, ""),
    "stopped": ("runner = started()\ndelivered('a')\nassert runner.stop().clean", 0, ""),
    "forgotten": ("started()\ndelivered('a')", 0, ""),
    "forgotten at once": ("started()", 0, ""),
    "forgotten in a function": ("def work():\n    runner = started()\n    delivered('a')\nwork()", 0, ""),
    "an exception": ("started()\ndelivered('a')\nraise RuntimeError('planted')", 1, "RuntimeError: planted"),
    "an exit": ("started()\ndelivered('a')\nsys.exit(3)", 3, ""),
    "an exit in a with block": ("with started():\n    delivered('a')\n    sys.exit(3)", 3, ""),
    "os._exit": ("started()\ndelivered('a')\nos._exit(4)", 4, ""),
    # A program that a script runs in the background is born without Python's handler.
    "an interrupt": (
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nstarted()\ndelivered('a')\nsignal.raise_signal(signal.SIGINT)",
        -signal.SIGINT,
        "KeyboardInterrupt",
    ),
    "started in a thread": ("thread = threading.Thread(target=started)\nthread.start()\nthread.join()\ndelivered('a')", 0, ""),
    "a handler of atexit that sends": ("started()\ndelivered('a')\natexit.register(lambda: sent('last'))", 0, ""),
    "signal handlers stay": (
        "with started():\n    delivered('a')\n    during = {n: signal.getsignal(n) for n in signal.valid_signals()}\n"
        "assert handlers == during == {n: signal.getsignal(n) for n in signal.valid_signals()}",
        0,
        "",
    ),
}


@pytest.mark.parametrize(("program", "code", "said"), ENDS.values(), ids=ENDS)
def test_a_program_ends_soon_cleanly_and_loses_nothing(
    app: Akter, rows: Rows, shared: Any, akter_database: str, akter_schema: str, program: str, code: int, said: str
) -> None:
    environment = {**os.environ, "AKTER_DATABASE_URL": akter_database, "AKTER_SCHEMA": akter_schema}
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + program], cwd=HERE, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    for bad in ("Exception ignored", "Fatal Python error", "interpreter shutdown", *(() if said else ("Traceback",))):
        assert bad not in ended.stderr, ended.stderr
    # What it left is delivered by the next one, at the latest when its lease ends.
    rows("UPDATE {akter}.actor_outbox SET due_at_ms = 1")
    with yard.runner(app) as one:
        one.drain()
    assert shared.things(rows, "a") == ["a"]
    if "last" in program:
        assert shared.things(rows, "last") == ["last"]
    assert app.actor(Yard, "a").take("b") == 2
