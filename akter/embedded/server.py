"""The embedded PostgreSQL as its users hold it."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote
from weakref import WeakSet

from akter.embedded import watcher
from akter.embedded.cluster import Cluster
from akter.embedded.share import Share
from akter.embedded.watcher import Held, Postmaster, alone, leave, postmaster
from akter.errors import ConfigurationError, Unavailable


class Server:
    """A PostgreSQL of your own in the directory `data`, for this process and all others that open the same directory.

        with Server("./data") as server:
            psycopg.connect(server.url(driver=""))

    Making one starts nothing. The server ends when the last process that uses it stopped it or ended, by SIGKILL too, and
    recovers at the next start if it was killed itself. Every commit is on disk before it is reported. The user is `postgres`,
    reached without a password through a socket that only this account, and root, can open.

    `settings` are PostgreSQL's own, such as `{"max_connections": "200"}`, and hold from the start of the server to its end; a process
    that joins a running server does not change them. A forked child counts as a user from its first `url()` or `start()`.

    Raises ConfigurationError, which says what to do, for settings and directories that cannot be used.
    """

    def __init__(self, data: str | os.PathLike[str], *, settings: Mapping[str, str] | None = None) -> None:
        self._hold(Cluster(Path(data).expanduser().resolve(), dict(settings or {}), durable=True))

    @classmethod
    def temporary(cls, settings: Mapping[str, str] | None = None) -> Self:
        """A server for tests: fast because its data is in memory where there is room, and removed when the server ends."""
        memory = Path("/dev/shm")
        roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30
        place = (memory if roomy else Path("/tmp")).resolve()
        server = cls.__new__(cls)
        server._hold(Cluster(place / f"akter-pg-{secrets.token_hex(8)}", dict(settings or {}), durable=False))
        return server

    def _hold(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._guard = threading.RLock()
        self._share: Share | None = None
        self._inherited = False
        _servers.add(self)

    def start(self) -> Self:
        """Start the server or join the one that runs; once started, start it again if it crashed.

        Takes about a second the first time, which makes the files, and a tenth of one later. Raises ConfigurationError if it cannot run,
        and Unavailable, naming the process in the way, when another one starts or stops it and does not get on for a minute.
        """
        directory = self.data
        with self._guard:
            if self._share is None:
                if self._inherited and not self._cluster.durable and not directory.exists():
                    raise ConfigurationError(
                        f"The throw-away PostgreSQL in {directory} ended with the process that made it: make one here."
                    )
                self._cluster.prepare()
            try:
                with alone(directory, create=True, patience=watcher.HELD):
                    # Before anything is started, so that nothing survives a process that is killed meanwhile.
                    self._share = self._share or Share(directory, remove=not self._cluster.durable)
                    self._cluster.run()
            except Held as held:
                raise _in_the_way(directory, held) from held
            except OSError as error:
                self.stop()
                raise ConfigurationError(
                    f"{error.filename or directory} cannot be used for the data ({error.strerror}): use a data directory of your own."
                ) from error
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop using the server, and end it unless other processes use it; harmless if it was not started, or here only by a fork.

        Raises Unavailable, and leaves the server to its next user, when another process starts or stops it and does not get on.
        """
        with self._guard:
            share, self._share = self._share, None
            if share is not None and share.end():
                try:
                    leave(self.data, remove=not self._cluster.durable, patience=0.0, held=watcher.HELD)
                except Held as held:
                    raise _in_the_way(self.data, held) from held

    def url(self, database: str = "postgres", driver: str = "+psycopg") -> str:
        """The URL of a database: for SQLAlchemy as it is, for psycopg with `driver=""`.

        Raises ConfigurationError before `start()`, and Unavailable if the server is gone.
        """
        found = self._running()
        return f"postgresql{driver}://postgres@/{quote(database, safe='')}?host={quote(found.host, safe='')}&port={found.port}"

    @property
    def data(self) -> Path:
        """The data directory, absolute."""
        return self._cluster.directory

    @property
    def durable(self) -> bool:
        """Whether commits survive a crash; false for `Server.temporary()`."""
        return self._cluster.durable

    @property
    def started(self) -> bool:
        """Whether this process uses the server, which may have crashed since."""
        return self._share is not None

    @property
    def host(self) -> str:
        """The directory of the server's socket, which drivers take as a host. Raises like `url()`."""
        return self._running().host

    @property
    def port(self) -> int:
        """The number in the socket's name; no TCP port is open. Raises like `url()`."""
        return self._running().port

    @property
    def pid(self) -> int:
        """The process id of the server itself. Raises like `url()`."""
        return self._running().pid

    def _running(self) -> Postmaster:
        with self._guard:
            if self._share is None and self._inherited:
                self.start()
            if self._share is None:
                raise ConfigurationError(f"The PostgreSQL in {self.data} is not started: use `with server:` or call start().")
        found = postmaster(self.data)
        if found is None or not found.host:
            raise Unavailable(f"The PostgreSQL in {self.data} does not run any more: call start() again.")
        return found

    def _after_fork(self) -> None:
        share, self._share = self._share, None
        self._guard = threading.RLock()
        if share is not None:
            self._inherited = True
            share.forget()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.data}>"


def _in_the_way(directory: Path, held: Held) -> Unavailable:
    return Unavailable(
        f"The PostgreSQL in {directory} is held by {held.holder}, which has been about to start or stop it for {watcher.HELD:g} s: "
        "wait for it, or end it."
    )


_servers: WeakSet[Server] = WeakSet()


def _after_fork_in_child() -> None:
    for server in list(_servers):
        server._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
