"""Whom PostgreSQL runs as: it refuses to run as root."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from akter.embedded.watcher import CLUSTER, LOCK, USERS
from akter.errors import ConfigurationError

ACCOUNTS = ("postgres", "nobody")
UNREACHABLE = 126


@dataclass(frozen=True, slots=True)
class Account:
    """The account PostgreSQL's programs run as; without a uid it is this process's own."""

    uid: int | None = None
    gid: int | None = None
    name: str = ""

    def run(self, program: Path, *arguments: str) -> tuple[int, str]:
        """Run one of PostgreSQL's programs: its exit status, 126 if the account cannot get at it, and what it printed."""
        # A server keeps the output it was started with, so a pipe would not end before the server does.
        with tempfile.TemporaryFile() as output:
            try:
                status = subprocess.run(
                    [str(program), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env=environment(),
                    user=self.uid,
                    group=self.gid,
                    extra_groups=None if self.uid is None else [],
                    check=False,
                ).returncode
            except OSError as error:
                if error.errno in (errno.EACCES, errno.ENOENT, errno.ENOEXEC):
                    return UNREACHABLE, f"{program}: {error.strerror}"
                raise ConfigurationError(
                    f"Cannot run PostgreSQL as the account {self.name!r} ({error.strerror}), and it refuses to run as root: "
                    "start this process as an ordinary user."
                ) from error
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def own(self, directory: Path) -> None:
        """Make a data directory this account's and nobody else's, also one that root restored from a copy."""
        try:
            if self.uid is not None and self.gid is not None:
                restored = directory.lstat().st_uid == 0 or _is_of_root(directory / CLUSTER)
                for path in directory.rglob("*") if restored else (directory / LOCK, directory / USERS):
                    if _is_of_root(path):
                        os.chown(path, self.uid, self.gid, follow_symlinks=False)
                if directory.lstat().st_uid == 0:
                    os.chown(directory, self.uid, self.gid)
            for path in (directory, directory / CLUSTER):
                if path.exists() and path.stat().st_mode & 0o077:
                    path.chmod(0o700)  # whoever reaches the socket is let in
        except PermissionError as error:
            raise ConfigurationError(f"{error.filename} belongs to another account: use a data directory of your own.") from error

    def reach(self, directory: Path) -> None:
        """Refuse a directory that the account cannot get at."""
        if self.uid is None or self.run(Path(shutil.which("test") or "/usr/bin/test"), "-w", str(directory))[0] == 0:
            return
        closed = next((parent for parent in reversed(directory.parents) if not parent.stat().st_mode & 0o001), directory.parent)
        raise ConfigurationError(
            f"This process is root's, so PostgreSQL runs as the account {self.name!r}, which cannot get at {directory} "
            f"because {closed} is private: use a data directory elsewhere, such as below /var/lib, or `chmod o+x {closed}`."
        )


def account_for(directory: Path) -> Account:
    """The account for a data directory: its owner, or for root's own directories one that exists everywhere."""
    if os.geteuid() != 0:
        return Account()
    for entry in _candidates(directory):
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid, entry.pw_name)
    raise ConfigurationError(
        f"PostgreSQL refuses to run as root, and none of the accounts {' and '.join(ACCOUNTS)} exists: "
        "create one of them, or start this process as an ordinary user."
    )


def _candidates(directory: Path) -> Iterator[pwd.struct_passwd]:
    with suppress(KeyError):
        yield pwd.getpwuid(directory.stat().st_uid)
    for name in ACCOUNTS:
        with suppress(KeyError):
            yield pwd.getpwnam(name)


def environment() -> dict[str, str]:
    """What PostgreSQL's programs see: not the locale and the PG* settings of whoever started them, which may not even exist."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return {**kept, "LANG": "C", "LC_ALL": "C", "TZ": "UTC"}


def _is_of_root(path: Path) -> bool:
    try:
        return path.lstat().st_uid == 0
    except FileNotFoundError:
        return False
