"""Log lines of a command: the name of what happened, and what it was about, in one line each."""

from __future__ import annotations

import logging
import sys


class Lines(logging.Formatter):
    """`TIME LEVEL LOGGER noun.event actor=... attempts=...`: the message, then akter's fields without their prefix."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Add the fields behind the message, in front of a traceback."""
        fields = (f"{name[6:]}={_value(value)}" for name, value in vars(record).items() if name.startswith("akter_"))
        return " ".join([super().formatMessage(record), *fields])


def show(level: int = logging.INFO) -> None:
    """Log to standard error from this level on, unless the application set up its logging itself."""
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Lines())
        logging.basicConfig(level=level, handlers=[handler])


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or "-"
    text = str(value).replace("\n", "\\n")
    return repr(text) if " " in text else text
