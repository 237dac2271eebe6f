"""What runs after the commit: one module per running thing."""

from __future__ import annotations

from akter.runner.process import Report, Runner

__all__ = ["Runner", "Report"]
