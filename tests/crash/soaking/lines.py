"""What the processes log, and what is read out of it."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path

LINE = re.compile(r"\S+ \S+ (INFO|WARNING|ERROR|CRITICAL) \S+ (\S+)(.*)")
RETRIED = re.compile(r" command=(\w+) .*reason=(\w+)")
MEANT = "relay.retry, as it is meant to"


class Lines(logging.Formatter):
    """What happened, what it was about, and the traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Add akter's fields."""
        fields = [f"{name.removeprefix('akter_')}={value}" for name, value in vars(record).items() if name.startswith("akter_")]
        return " ".join([super().formatMessage(record), *fields])


def write(path: Path) -> None:
    """Log into this file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def events(directory: Path) -> Counter[str]:
    """How often each thing was logged by any process; a retry by why."""
    found: Counter[str] = Counter()
    for log in directory.glob("*.log"):
        for line in log.read_text(errors="replace").splitlines():
            if (said := LINE.match(line)) is None:
                continue
            level, what, rest = said.groups()
            if what == "relay.retry" and (why := RETRIED.search(rest)) is not None:
                what = MEANT if why.groups() == ("stumble", "Defect") else f"{what} of {why[1]}: {why[2]}"
            found[f"{level.lower()} {what}"] += 1
    return found


def defects(logged: Counter[str]) -> list[str]:
    """What failed in handlers that do not fail."""
    return [f"{times} times: {what}" for what, times in logged.items() if what.endswith(": Defect")]
