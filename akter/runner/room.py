"""The connections of a runner: a pool of its own like the application's, so that they never starve each other."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.pool import QueuePool

from akter.errors import ConfigurationError

BESIDE = 2
"""Connections of a runner beside those of its deliveries: one to claim, one for its sign of life."""

FOR_JOBS = 2
"""Connections for all jobs of a runner: one to renew leases, one to report how attempts ended."""

MAX_ROOM = 66
"""Connections that a runner uses at most when the engine's pool sets no limit."""


def own_engine(given: Engine, *, jobs: bool) -> tuple[Engine, int]:
    """An engine like the application's with a pool of its own, and how many of its connections are left for deliveries.

    Raises `ConfigurationError` when there is none.
    """
    pool = given.pool.recreate()
    room, needed = MAX_ROOM, BESIDE + (FOR_JOBS if jobs else 0)
    if isinstance(pool, QueuePool) and pool.size() > 0 and pool._max_overflow >= 0:
        room = min(room, pool.size() + pool._max_overflow)
    if room <= needed:
        raise ConfigurationError(
            f"Runner: the engine's pool holds {room} connections, and a runner needs {needed + 1} of its own: one to claim, "
            f"one for its sign of life, {'two for its jobs, ' if jobs else ''}and one for each delivery at a time; make pool_size larger"
        )
    return Engine(pool, given.dialect, given.url, hide_parameters=given.hide_parameters), room - needed
