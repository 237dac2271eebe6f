"""A process that was started by another one and, to find a function, runs that one's script again."""

from __future__ import annotations

import inspect
import sys

from akter.errors import AkterError


def check_not_importing() -> None:
    """Raise `AkterError` while a process that multiprocessing started runs the main script only to have its names.

    What the script does at its top level would be done once more in each such process: its turns, and its runners.
    """
    known = sys.modules.get("multiprocessing.process")
    if known is None or not getattr(known.current_process(), "_inheriting", False):
        return
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "__mp_main__":
            raise AkterError(
                "this process was started for one function and runs the script only to find it: put what the script does under "
                '`if __name__ == "__main__":`, or it is done once more for every job with a process of its own'
            )
        frame = frame.f_back
