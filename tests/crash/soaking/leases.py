"""Looks at the live leases of capped jobs, again and again, while everything is disturbed."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg

from soaking.tables import plain

EVERY = 0.05

# Not the time at which the statement began: a lease that ended before its snapshot may have made room for one that is in it.
LIVE = """SELECT coalesce(max(live), 0), coalesce(sum(live), 0) FROM (
    SELECT count(*) AS live FROM akter.actor_outbox WHERE kind = 'job' AND command = 'queued' AND running
    AND due_at_ms > extract(epoch FROM clock_timestamp()) * 1000 GROUP BY actor_id) AS groups"""


class Leases:
    """A thread that leaves a line with the most live leases of one actor, and of all, whenever it has looked."""

    def __init__(self, url: str, file: Path) -> None:
        self._url, self._file, self._ended = plain(url), file, threading.Event()
        file.touch()
        self._thread = threading.Thread(target=self._look, name="soak-leases", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        with self._file.open("a") as file:
            while not self._ended.is_set():
                try:
                    with psycopg.connect(self._url, autocommit=True, connect_timeout=10) as connection:
                        while not self._ended.wait(EVERY):
                            for most, together in connection.execute(LIVE):
                                file.write(f"{most} {together}\n")
                except psycopg.Error:
                    # The database is restarted, or somebody ended this connection.
                    self._ended.wait(EVERY)


def read(file: Path) -> list[tuple[int, int]]:
    """What was seen: the most of one actor, and of all together."""
    return [(int(most), int(together)) for most, together in (line.split() for line in file.read_text().splitlines())]
