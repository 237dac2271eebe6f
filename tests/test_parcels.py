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
    shutil.rmtree(directory)


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], cwd=place, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
def test_a_relay_that_is_killed_and_started_again_delivers_each_parcel_once(place: Path) -> None:
    counting = start(place, "-m", "akter.examples.parcels", "60")
    assert counting.stdout is not None
    first = counting.stdout.readline()
    assert first.startswith("60 parcels are on their way"), first
    relay = start(place, *RELAY)
    try:
        for line in counting.stdout:
            if not line.startswith("0 delivered once"):
                break
        once = int(re.match(r"(\d+) delivered once, 0 more than once", line)[1])  # type: ignore[index]
        assert 0 < once < 60
        relay.kill()
        relay.wait()
        relay = start(place, *RELAY)
        end = time.monotonic() + 200
        for line in counting.stdout:
            assert time.monotonic() < end, line
        assert (line, counting.wait()) == ("60 delivered once, 0 more than once, 0 on their way\n", 0)
    finally:
        relay.terminate()
        relay.wait()
        counting.kill()
        counting.wait()
