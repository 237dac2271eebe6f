"""What the README invites to: kill who delivers, start it again, and count."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("AKTER_")}
RELAY = ("-m", "akter", "run", "akter.examples.parcels:app")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the account of an embedded PostgreSQL can reach, too."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    directory = Path(tempfile.mkdtemp(prefix="akter-test-", dir=memory if roomy else "/var/tmp"))
    directory.chmod(0o1777)
    yield directory
    # A server ends a moment after the last process that used it.
    end = time.monotonic() + 60
    while list(directory.rglob("postmaster.pid")) and time.monotonic() < end:
        time.sleep(0.02)
    shutil.rmtree(directory)


def start(place: Path, *arguments: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], cwd=place, env=ENVIRONMENT, stdout=output, stderr=subprocess.DEVNULL, text=True)


def arrived(line: str) -> int:
    """How many arrived once, by a line of the counter's; none, by a line that says something else."""
    found = re.match(r"(\d+) delivered once, 0 more than once, ", line)
    return int(found[1]) if found else 0


@pytest.mark.timeout(400)
def test_a_relay_that_is_killed_and_started_again_delivers_each_parcel_once(place: Path) -> None:
    with start(place, "-m", "akter.examples.parcels", "200", output=subprocess.PIPE) as counting:
        assert counting.stdout is not None
        assert counting.stdout.readline().startswith("200 parcels are on their way")
        relay = start(place, *RELAY)
        try:
            assert 0 < next(filter(None, map(arrived, counting.stdout))) < 200
            relay.kill()
            relay.wait()
            relay = start(place, *RELAY)
            *_, last = counting.stdout
            assert last == "200 delivered once, 0 more than once, 0 on their way\n"
            assert counting.wait(30) == 0
        finally:
            relay.terminate()
            relay.wait()
            counting.kill()
