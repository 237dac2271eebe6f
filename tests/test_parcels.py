"""What the README invites to: kill who delivers, start it again, and count."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("AKTER_")}
RELAY = ("-m", "akter", "run", "akter.examples.parcels:app")


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
