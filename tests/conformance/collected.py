"""What is left for Python's collector of garbage, which holds the interpreter while it looks."""

from __future__ import annotations

import gc
from collections.abc import Callable


def garbage(work: Callable[[], None]) -> list[str]:
    """The classes of akter's that only the collector of garbage takes away after some work."""
    gc.collect()
    gc.disable()
    try:
        work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sorted({type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("akter.")})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
