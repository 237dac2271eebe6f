"""A `threading.Event` that costs nothing until somebody uses it."""

from __future__ import annotations

import threading

_making = threading.Lock()


class Flag(threading.Event):
    """An event that makes its lock when it is first set or waited for: most attempts are never told to stop."""

    def __init__(self) -> None:
        # Not the base class's, which makes a lock and a condition: that takes longer than all the rest of an attempt.
        self._made: threading.Event | None = None

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._made is not None and self._made.is_set()

    def set(self) -> None:
        """Set it, and end every wait for it."""
        self._event().set()

    def clear(self) -> None:
        """Take it back."""
        self._event().clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for `timeout` seconds at most; returns whether it is."""
        return self._event().wait(timeout)

    def __repr__(self) -> str:
        return f"<Event: {'set' if self.is_set() else 'unset'}>"

    def _event(self) -> threading.Event:
        if self._made is None:
            with _making:
                # Whoever sets it and whoever waits for it may come at once, and must get the same one.
                if self._made is None:
                    self._made = threading.Event()
        return self._made
