"""The files of one server, and how it comes to run on them.

A data directory holds the cluster proper (`pgdata`), the locks that count its users, its log and its socket.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from akter.embedded.account import Account, account_for
from akter.embedded.binaries import Binaries, usable
from akter.embedded.watcher import CLUSTER, LOCK, SOCKETS, USERS, Postmaster, lives, postmaster, remove_sockets
from akter.errors import ConfigurationError, Unavailable

LOG = "server.log"
LONGEST_LOG = 16 << 20
OURS = re.compile(rf"({CLUSTER}(\.init-.*)?|{LOCK}|{USERS}|{re.escape(LOG)}.*|\.s\.PGSQL\..*|lost\+found)")

RESERVED = {"listen_addresses", "unix_socket_directories", "port", "data_directory", "config_file", "hba_file", "external_pid_file"}
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
# Without synchronous_commit=off, which would gain nothing here, commits outlive the server's own crash, if not the machine's.
FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # in the directory, so it is removed with it after a crash
}

PATIENCE = 600
"""Seconds for a start: recovery after a crash may take minutes, and a start that fails is noticed at once."""
ORPHANS = 10.0
"""Seconds in which the processes of a killed server notice that it is gone."""
LONGEST_SOCKET = 85
"""Characters of a directory in which a Unix socket fits on every platform."""
UNSPEAKABLE = r'["$`\\\n]'
"""What pg_ctl does not protect from the shell it starts the server with."""
NOBODYS_PID = 2**31 - 2


class Cluster:
    """The PostgreSQL of one data directory. Its methods are called while `watcher.alone(directory)`, but for `prepare`."""

    def __init__(self, directory: Path, settings: Mapping[str, str], *, durable: bool) -> None:
        for name in settings:
            if name.lower() in RESERVED:
                raise ConfigurationError(f"The setting {name!r} is akter's own for an embedded PostgreSQL: leave it out.")
            if durable and name.lower() in DURABLE:
                raise ConfigurationError(
                    f"The setting {name!r} may not be changed for a data directory, whose commits have to survive a crash: "
                    "leave it out, or use Server.temporary() for data to throw away."
                )
        self.directory = directory
        self.durable = durable
        self._files = directory / CLUSTER
        self._settings = settings if durable else {**FAST, **settings}

    def prepare(self) -> None:
        """Make the directory, unless it is there already and somebody else's."""
        if re.search(UNSPEAKABLE, str(self.directory)):
            raise ConfigurationError(
                f"The name {str(self.directory)!r} cannot be passed to PostgreSQL: leave out quotes, dollars and backslashes."
            )
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            foreign = [name for name in sorted(os.listdir(self.directory)) if not OURS.fullmatch(name)]
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigurationError(f"{error.filename} is a file: name a directory for the data.") from error
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be used for the data ({error.strerror}): name another directory.") from error
        if "PG_VERSION" in foreign:
            raise ConfigurationError(
                f"{self.directory} is a PostgreSQL cluster made by other means: name another directory, "
                "or run that server yourself and give akter its URL."
            )
        if foreign and not self._files.exists():
            raise ConfigurationError(
                f"{self.directory} holds other things, such as {foreign[0]!r}: name a new or empty directory for the data."
            )

    def run(self) -> None:
        """Bring the server up: make its files if there are none, recover them if it crashed."""
        if self._runs():
            return
        account = account_for(self.directory)
        account.own(self.directory)
        account.reach(self.directory)
        binaries = usable(account)
        if not (self._files / "PG_VERSION").exists():
            self._create(account, binaries)
        self._refuse_other_version(binaries)
        if self.durable:
            self._refuse_relaxed_durability(account, binaries)
        self._launch(account, binaries)

    def _runs(self) -> bool:
        end = time.monotonic() + PATIENCE
        while (found := postmaster(self.directory)) and lives(self.directory, found):
            if found.ready:
                return True
            if time.monotonic() > end:
                raise Unavailable(f"The PostgreSQL in {self.directory} has been starting or stopping for {PATIENCE} s: see {LOG} there.")
            time.sleep(0.02)
        return False

    def _create(self, account: Account, binaries: Binaries) -> None:
        for left in self.directory.glob(f"{CLUSTER}.init-*"):
            shutil.rmtree(left, ignore_errors=True)
        half = Path(tempfile.mkdtemp(prefix=f"{CLUSTER}.init-", dir=self.directory))
        if account.uid is not None and account.gid is not None:
            os.chown(half, account.uid, account.gid)
        # The same order and case rules on every machine, whatever is installed there.
        locale = ["--locale=C", *(["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if binaries.major >= 17 else [])]
        access = ["--username=postgres", "--auth-local=trust", "--auth-host=reject"]
        safety = ["--data-checksums"] if self.durable else ["--no-sync"]
        status, printed = account.run(
            binaries.directory / "initdb", f"--pgdata={half}", "--encoding=UTF8", "--no-instructions", *access, *locale, *safety
        )
        if status:
            shutil.rmtree(half, ignore_errors=True)
            raise ConfigurationError(f"PostgreSQL could not make its files in {self.directory}:\n{printed}")
        # Only whole ones have the name, so an initdb that was killed is simply done again.
        half.rename(self._files)
        if self.durable:
            made = os.open(self.directory, os.O_RDONLY)
            os.fsync(made)
            os.close(made)

    def _refuse_other_version(self, binaries: Binaries) -> None:
        version = (self._files / "PG_VERSION").read_text().strip()
        if version != str(binaries.major):
            raise ConfigurationError(
                f"{self.directory} was made by PostgreSQL {version}, and {binaries.directory} holds PostgreSQL {binaries.major}: "
                f"set AKTER_PG_BIN to the programs of version {version}, "
                f"or move the data with pg_upgrade or with pg_dump of version {version}."
            )

    def _refuse_relaxed_durability(self, account: Account, binaries: Binaries) -> None:
        for name in DURABLE:
            status, printed = account.run(binaries.directory / "postgres", "-D", str(self._files), "-C", name)
            if status:
                raise ConfigurationError(f"PostgreSQL cannot read its configuration in {self._files}:\n{printed}")
            if printed.split()[-1] == "off":
                raise ConfigurationError(
                    f"{self.directory} is configured with {name}=off, so commits may be lost in a crash: "
                    f"remove {name} from postgresql.conf and postgresql.auto.conf in {self._files}, "
                    "or use Server.temporary() for data to throw away."
                )

    def _launch(self, account: Account, binaries: Binaries) -> None:
        log = self.directory / LOG
        if log.exists() and log.stat().st_size > LONGEST_LOG:
            log.replace(log.with_name(f"{LOG}.1"))
        end = time.monotonic() + ORPHANS
        while True:
            seen = log.stat().st_size if log.exists() else 0
            self._disown(postmaster(self.directory))
            status, printed = account.run(
                binaries.directory / "pg_ctl",
                *("--pgdata", str(self._files), "--log", str(log), "--wait", "--timeout", str(PATIENCE)),
                *("--options", self._options(account), "start"),
            )
            if status == 0:
                return
            said = _text_after(log, seen)
            if "pre-existing shared memory block" not in said or time.monotonic() > end:
                raise ConfigurationError(f"PostgreSQL did not start in {self.directory}:\n{printed}{said[-4000:]}")
            time.sleep(0.1)

    def _disown(self, found: Postmaster | None) -> None:
        """A crashed server's pid may be another process's by now, which PostgreSQL takes for a server.

        The rest of the file stays: by it PostgreSQL notices processes of the crashed server that still run.
        """
        remove_sockets(self.directory, found)
        if found is None:
            return
        with open(self._files / "postmaster.pid", "r+", opener=_no_links) as file:
            lines = file.read().split("\n")
            file.seek(0)
            file.write("\n".join([str(NOBODYS_PID), *lines[1:]]))
            file.truncate()

    def _options(self, account: Account) -> str:
        host = str(self.directory)
        if len(os.fsencode(host)) > LONGEST_SOCKET or "," in host:
            host = tempfile.mkdtemp(prefix=SOCKETS, dir="/tmp")
            if account.uid is not None and account.gid is not None:
                os.chown(host, account.uid, account.gid)
        chosen = {**self._settings, "listen_addresses": "", "unix_socket_directories": f'"{host}"', "port": "5432"}
        return " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in chosen.items())


def _no_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _text_after(path: Path, position: int) -> str:
    try:
        with open(path, errors="replace", opener=_no_links) as file:
            file.seek(position)
            return file.read()
    except FileNotFoundError:
        return ""
