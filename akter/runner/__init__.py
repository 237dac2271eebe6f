"""What runs after the commit: one module per running thing."""

from __future__ import annotations

from akter.runner.process import Runner
from akter.runner.settler import Report

__all__ = ["Runner", "Report"]
