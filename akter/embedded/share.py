"""One process's use of a server: kernel locks and a child, both of which notice its end by themselves."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path

from akter.embedded import watcher
from akter.errors import ConfigurationError


class Share:
    """The use of the server in a directory by this process; made while `watcher.alone(directory)`."""

    def __init__(self, directory: Path, *, remove: bool) -> None:
        self._owner = os.getpid()
        self._users = watcher.open_lock(directory / watcher.USERS, create=True)
        try:
            fcntl.flock(self._users, fcntl.LOCK_SH)
            self._watcher, self._pipe = _watch(directory, remove=remove)
        except BaseException:
            os.close(self._users)
            raise

    def end(self) -> bool:
        """Stop using the server; false where this process only inherited the share, which then stays its parent's."""
        if self._owner != os.getpid():
            self.forget()
            return False
        fcntl.flock(self._users, fcntl.LOCK_UN)
        with suppress(BrokenPipeError):
            os.write(self._pipe, b"q")
        self.forget()
        with suppress(ChildProcessError):
            os.waitpid(self._watcher, 0)
        return True

    def forget(self) -> None:
        """Give up the copies that came with a fork, so that the parent's end is seen as such."""
        os.close(self._users)
        os.close(self._pipe)


def _watch(directory: Path, *, remove: bool) -> tuple[int, int]:
    """Start the watcher; its pid, and the pipe whose end tells it that this process is gone."""
    ours = "remove" if remove else "keep"
    command = [sys.executable, "-I", "-S", watcher.__file__, str(directory), ours]
    there, here = os.pipe()
    silence = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    try:
        # Not a Popen: that would complain when the process ends before its child, which is the very purpose of this one.
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, there, 0), *silence], setsid=True)
    except OSError as error:
        os.close(here)
        raise ConfigurationError(f"Cannot run {sys.executable!r} to watch over the embedded PostgreSQL: {error.strerror}.") from error
    finally:
        os.close(there)
    return pid, here
