"""A real PostgreSQL of your own, without installing or running one: `pip install 'akter[embedded]'`.

`engine("embedded:./data")` is all an application needs. `Server` is the same server under your own control, and `Server.temporary()`
one for tests. Processes that open the same directory share one server; it ends with the last of them, however that one ends.
"""

from __future__ import annotations

import sys

from akter.errors import ConfigurationError

if sys.platform == "win32":
    raise ConfigurationError(
        "akter.embedded needs a POSIX system: on Windows use WSL, or give akter the URL of a PostgreSQL that runs already."
    )

from akter.embedded.engine import engine, engine_server, stop
from akter.embedded.server import Server

__all__ = ["engine", "engine_server", "stop", "Server"]
