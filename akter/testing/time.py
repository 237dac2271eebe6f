"""Move the clock of a test's database, and let everything that is due happen."""

from __future__ import annotations

from datetime import timedelta

from akter.app import Akter
from akter.runner import Runner
from akter.runner.retention import Sweeper, Swept
from akter.store import deployment
from akter.tables import SCHEMA


def advance(app: Akter, by: timedelta, *runners: Runner) -> None:
    """Move the deployment's clock forward, for every process that shares the database; then let the given runners drain."""
    milliseconds = by // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise ValueError("the clock only moves forward")
    with app.engine.begin() as connection:
        translated = connection.execution_options(schema_translate_map={SCHEMA: app.schema})
        deployment.move_clock(translated, milliseconds)
    app.clock_moved(milliseconds)
    for runner in runners:
        runner.drain()


def settle(app: Akter, *runners: Runner) -> None:
    """Deliver until nothing is due and nothing runs, by the given runners or by one made for the occasion.

    Raises `AkterError` when messages keep asking for messages that are due at once.
    """
    if runners:
        for runner in runners:
            runner.drain()
        return
    runner = Runner(app, listen=False)
    try:
        runner.drain()
    finally:
        runner.stop()


def sweep(app: Akter) -> list[Swept]:
    """Prune what is old enough now, as a runner's sweep does; returns how much of each actor type went."""
    return Sweeper(app).sweep()
