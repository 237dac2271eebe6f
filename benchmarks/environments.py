"""Virtual environments for what akter is compared with, made when they are needed and kept: nothing of them gets into akter's own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


class NotInstalled(Exception):
    """Why something cannot be compared with here."""


def cache() -> Path:
    """Where the environments are: `$AKTER_BENCHMARK_CACHE`, or `akter-benchmarks` in the user's cache directory."""
    if told := os.environ.get("AKTER_BENCHMARK_CACHE"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "akter-benchmarks")


def python_of(name: str, requirements: Sequence[str], least: tuple[int, int]) -> str:
    """The Python of an environment with these requirements; raises `NotInstalled`."""
    tag = hashlib.blake2b("\n".join(requirements).encode(), digest_size=4).hexdigest()
    place = cache() / f"{name}-{tag}"
    made = place / "bin" / "python"
    if (place / "complete").exists():
        return str(made)
    base = next(_pythons(least), None)
    if base is None:
        raise NotInstalled(f"needs a Python {least[0]}.{least[1]} or newer, and none was found")
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    for step in ([base, "-m", "venv", str(place)], [str(made), "-m", "pip", "install", "--quiet", *requirements]):
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise NotInstalled(f"cannot be installed: {said[:300]}")
    (place / "complete").write_text("\n".join(requirements) + "\n")
    return str(made)


def _pythons(least: tuple[int, int]) -> Iterator[str]:
    """Pythons that are new enough: this one, those on the path, pyenv's."""
    named = [sys.executable, *(f"python3.{minor}" for minor in range(14, least[1] - 1, -1)), "python3"]
    found = [path for name in named if (path := shutil.which(name))]
    found += map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"), reverse=True))
    for path in found:
        asked = subprocess.run([path, "-c", "import sys, venv; print(*sys.version_info[:2])"], capture_output=True, text=True)
        if asked.returncode == 0 and tuple(map(int, asked.stdout.split())) >= least:
            yield path
