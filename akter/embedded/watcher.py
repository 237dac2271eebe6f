"""The child that stops the server once nobody uses it any more, however its owner ended.

It runs as a program of its own, isolated and without site-packages, so it imports nothing of akter; the package takes from here how a
server is recognised and how it is stopped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

CLUSTER = "pgdata"
LOCK = "lock"
USERS = "users"
SOCKETS = "akter-pg-"
"""How a socket directory outside the data directory is called."""

FAST = (signal.SIGINT, 60.0)
IMMEDIATE = (signal.SIGQUIT, 10.0)
"""What asks a server to end, and for how many seconds it is waited for."""


HELD = 60.0
"""Seconds after which a process that holds the lock is taken for stuck, unless its server is just recovering or shutting down."""

LINGER = 0.5
"""Seconds in which a server that was about to start when its owner was killed shows itself."""


class Held(Exception):
    """Another process prepares, starts or stops the server, and does not get on; its pid, and what is known of it."""

    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.holder = "another process" if pid is None else f"process {pid} ({_program(pid)})"
        super().__init__(f"held by {self.holder}")


class Postmaster(NamedTuple):
    """What a server wrote into its postmaster.pid; parts are empty while it starts."""

    pid: int
    data: str
    port: int
    host: str
    ready: bool


def postmaster(directory: Path) -> Postmaster | None:
    """The server that runs in this data directory, or the one that last did and crashed."""
    try:
        lines = (directory / CLUSTER / "postmaster.pid").read_text().split("\n")
        lines += [""] * (8 - len(lines))
        return Postmaster(int(lines[0]), lines[1], int(lines[3] or 0), lines[4], lines[7].strip() == "ready")
    except (FileNotFoundError, ValueError):
        return None


def lives(directory: Path, found: Postmaster) -> bool:
    """Whether that server still runs: its files outlive a crash, and then its pid may be anybody's."""
    cluster = str(directory / CLUSTER)
    return found.data == cluster and (_listens(found) or _is_postmaster(found.pid, cluster))


def _listens(found: Postmaster) -> bool:
    if not found.host:
        return False
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5.0)
        try:
            client.connect(f"{found.host}/.s.PGSQL.{found.port}")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except (TimeoutError, BlockingIOError):
            return True  # so busy that nobody gets in
    return True


def _is_postmaster(pid: int, cluster: str) -> bool:
    if os.path.isdir("/proc/self"):
        try:
            words = [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
        except OSError:
            return False
        return os.path.basename(words[0]) in {"postgres", "postmaster"} and cluster in words
    import subprocess  # on Linux it would only make the watcher bigger

    shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], stdout=subprocess.PIPE, check=False).stdout
    return f"-D {cluster}" in os.fsdecode(shown)


def open_lock(path: Path, *, create: bool) -> int:
    """A descriptor to lock; never through a link, since root may be led astray by it."""
    return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)


@contextmanager
def alone(directory: Path, *, create: bool, patience: float | None = None) -> Generator[None]:
    """One process at a time prepares, starts or stops the server of a directory.

    Raises `Held` after `patience` seconds; without, it waits as long as it takes.
    """
    while True:
        lock = open_lock(directory / LOCK, create=create)
        try:
            _take(lock, directory, patience)
            if _is_still(lock, directory / LOCK):
                os.ftruncate(lock, 0)
                os.pwrite(lock, b"%d" % os.getpid(), 0)
                yield
                return
        finally:
            # Closing is not enough: a process forked meanwhile holds a copy.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)


def _take(lock: int, directory: Path, patience: float | None) -> None:
    if patience is None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                # A server that recovers or shuts down may take its time, which its holder limits.
                if not _changes(directory):
                    said = os.pread(lock, 20, 0)
                    raise Held(int(said) if said.isdigit() else None) from None
                end = time.monotonic() + patience
        time.sleep(0.02)


def _changes(directory: Path) -> bool:
    found = postmaster(directory)
    return found is not None and not found.ready and _is_postmaster(found.pid, str(directory / CLUSTER))


def _program(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "which has ended, but not what it forked"
    except PermissionError:
        pass
    try:
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return "still there"
    return " ".join(words).strip()[:80] or "still there"


def _is_still(lock: int, path: Path) -> bool:
    """Whether a locked file is the one of that name: it may have been removed with a throw-away server."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def leave(directory: Path, *, remove: bool, patience: float, held: float | None = None) -> None:
    """Stop the server unless somebody still uses it, and remove what is to be thrown away.

    After a death there is `patience`, in seconds: the lock may be there for a moment, and the server may be only just starting. Raises
    `Held` when another process starts or stops it for longer than `held` seconds.
    """
    end = time.monotonic() + patience
    with suppress(FileNotFoundError):
        while not _last_one_stops(directory, remove=remove, patience=min(patience, LINGER), held=held) and time.monotonic() < end:
            time.sleep(0.05)


def _last_one_stops(directory: Path, *, remove: bool, patience: float, held: float | None) -> bool:
    with alone(directory, create=False, patience=held):  # somebody may be removing the directory
        users = open_lock(directory / USERS, create=False)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(users)
        found = _appearing(directory, patience)
        if found is not None:
            _end(directory, found, [IMMEDIATE] if remove else [FAST, IMMEDIATE])
        if remove:
            _remove(directory)
        return True


def _appearing(directory: Path, patience: float) -> Postmaster | None:
    """The server to stop, also if its owner was killed while it was about to start."""
    end = time.monotonic() + patience
    while True:
        found = postmaster(directory)
        if found is not None and _is_postmaster(found.pid, str(directory / CLUSTER)):
            return found
        if time.monotonic() >= end:
            return None
        time.sleep(0.02)


def _end(directory: Path, found: Postmaster, ways: list[tuple[signal.Signals, float]]) -> None:
    for signum, patience in ways:
        with suppress(ProcessLookupError):
            os.kill(found.pid, signum)
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if not _is_postmaster(found.pid, found.data):
                remove_sockets(directory, found)
                return
            time.sleep(0.01)


def _remove(directory: Path) -> None:
    end = time.monotonic() + 10.0
    while directory.exists() and time.monotonic() < end:
        shutil.rmtree(directory, ignore_errors=True)  # more than once, where a start that was killed still leaves files


def remove_sockets(directory: Path, found: Postmaster | None) -> None:
    """Remove what the last server left of its sockets, and what a copy of the directory brought along."""
    places = [directory]
    if found and found.data == str(directory / CLUSTER) and os.path.basename(found.host).startswith(SOCKETS):
        places.append(Path(found.host))
    for place in places:
        for left in place.glob(".s.PGSQL.*"):
            left.unlink(missing_ok=True)
    for place in places[1:]:
        with suppress(OSError):
            place.rmdir()


def watch(directory: Path, *, remove: bool) -> None:
    """Wait until the owner died, which closes the pipe, or wrote that nothing is left to do."""
    os.chdir("/")
    os.closerange(3, 4096)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # meant for the owner, after whom there is work to do
    if not os.read(0, 1):
        leave(directory, remove=remove, patience=2.0)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), remove=sys.argv[2] == "remove")
