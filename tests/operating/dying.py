"""An application whose processes die as soon as they have one."""

from __future__ import annotations

import os

print("dying", flush=True)
os._exit(3)
