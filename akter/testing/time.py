"""Move the clock of a test's database."""

from __future__ import annotations

from datetime import timedelta

from akter.app import Akter
from akter.store import deployment
from akter.tables import SCHEMA


def advance(app: Akter, by: timedelta) -> None:
    """Move the deployment's clock forward, for every process that shares the database."""
    milliseconds = by // timedelta(milliseconds=1)
    if milliseconds < 0:
        raise ValueError("the clock only moves forward")
    with app.engine.begin() as connection:
        translated = connection.execution_options(schema_translate_map={SCHEMA: app.schema})
        deployment.move_clock(translated, milliseconds)
    app.clock_moved(milliseconds)
