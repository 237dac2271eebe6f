"""How long and how large: the limits of one Akter, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from akter.errors import ConfigurationError

_MOST_SECONDS = 2_147_483.0
_MOST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: a handler's execution, a call with its retries, one wait for the actor's lock. Bytes: arguments and result, each.

    Milliseconds: how long a minted command id may be retried, and how long receipts and events are kept. Raises `ConfigurationError`
    for what is out of range.
    """

    execution: float = 10.0
    delivery: float = 30.0
    lock: float = 2.0
    max_payload_bytes: int = 1_048_576
    retry_window_ms: int = 86_400_000
    keep_receipts_ms: int = 7 * 86_400_000
    keep_events_ms: int = 30 * 86_400_000

    def __post_init__(self) -> None:
        for name in ("execution", "delivery", "lock"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.001 <= value <= _MOST_SECONDS:
                raise ConfigurationError(f"Akter: {name} is seconds between 0.001 and 2147483, not {value!r}")
        size: object = self.max_payload_bytes
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST_BYTES:
            raise ConfigurationError(f"Akter: max_payload_bytes is a number of bytes from 1 to {_MOST_BYTES}")

    def longest(self, execution: float) -> float:
        """Seconds that a call may take with its retries, when one run of its handler may take this long."""
        return max(self.delivery, execution + self.lock)


def seconds(what: str, value: object) -> float:
    """How long to wait, in seconds; raises `ConfigurationError` for what is no time: negative, not a number, or for ever."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS:
        raise ConfigurationError(f"{what} is seconds between 0 and {_MOST_SECONDS:.0f}, not {value!r}")
    return value


def window_ms(window: timedelta) -> int:
    """A retry window in milliseconds; raises `ConfigurationError` unless it is from one millisecond to 30 days."""
    milliseconds = window // timedelta(milliseconds=1) if isinstance(window, timedelta) else 0
    if not 1 <= milliseconds <= 30 * 86_400_000:
        raise ConfigurationError("Akter: retry_window is a timedelta from one millisecond to 30 days")
    return milliseconds


def kept_ms(time: object) -> int | None:
    """How long something is kept, in milliseconds, or None for what is no time; `timedelta.max` is for ever."""
    return time // timedelta(milliseconds=1) if isinstance(time, timedelta) and time >= timedelta(0) else None


def configured_ms(name: str, time: object) -> int:
    """The same of an option of `Akter`; raises `ConfigurationError` naming it."""
    kept = kept_ms(time)
    if kept is None:
        raise ConfigurationError(f"Akter: {name} is a timedelta that is not negative, timedelta.max for ever, not {time!r}")
    return kept
