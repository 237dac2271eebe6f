"""The file that every run of a handler leaves a line in, whether it commits or not."""

from __future__ import annotations

import os
import time

JOURNAL = "AKTER_SOAK_JOURNAL"
"""The environment variable that names the file."""


def ran(tag: str) -> None:
    """Leave a line. It survives the process, which is all that is killed; a file that waits for the disk would be all that is measured."""
    line = f"{time.time():.3f} {os.getpid()} {tag}\n".encode()
    journal = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(journal, line)
    finally:
        os.close(journal)
