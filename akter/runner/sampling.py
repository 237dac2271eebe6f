"""What waits in the outbox, measured for the gauges by one runner of the deployment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import sqlalchemy.exc
from sqlalchemy import Connection

from akter.store import backlog, lagging, presence
from akter.store.pinned import pinned
from akter.telemetry import Telemetry

logger = logging.getLogger("akter.runner")

EVERY = 15.0
"""Seconds between two samples."""


class Sampler:
    """Samples when somebody collects metrics here, and `me` is the eldest runner that lives: so that one of all does.

    `kept`: how long each type's events are kept, in milliseconds.
    """

    def __init__(self, telemetry: Telemetry, me: str, kept: Mapping[str, int]) -> None:
        self._telemetry, self._me, self._kept, self._next = telemetry, me, kept, 0.0

    def sample(self, deployment: Callable[[], AbstractContextManager[Connection]]) -> None:
        """Measure, unless it is too early; one that takes too long is left out."""
        if time.monotonic() < self._next or not self._telemetry.metered:
            return
        self._next = time.monotonic() + EVERY
        try:
            with deployment() as connection:
                if presence.eldest(presence.present(connection)) != self._me:
                    return
                counts = [*backlog.counts(connection, (), frozenset()), *lagging.counts(connection, (), frozenset())]
                held = pinned(connection, self._kept)
        except sqlalchemy.exc.SQLAlchemyError as problem:
            logger.info("runner.sample_failed", extra={"akter_reason": type(problem).__name__})
        else:
            self._telemetry.sampled(counts, held)
