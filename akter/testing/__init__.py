"""Test verbs on a real database: what was asked for, what was stored, and faults at named points."""

from __future__ import annotations

from akter.testing.child import child
from akter.testing.cluster import Node, cluster
from akter.testing.faults import clear_faults, crash_next, pause_next
from akter.testing.inspection import Inspection, Receipt, actor, inspect, outbox, receipts
from akter.testing.time import advance, settle, sweep

__all__ = [
    "actor",
    "outbox",
    "inspect",
    "Inspection",
    "receipts",
    "Receipt",
    "crash_next",
    "pause_next",
    "clear_faults",
    "child",
    "cluster",
    "Node",
    "advance",
    "settle",
    "sweep",
]
