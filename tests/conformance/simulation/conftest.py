"""A run of a seed on a database of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from simulate import simulate


@pytest.fixture
def simulated(akter_clone: Callable[[], str], akter_schema: str) -> Callable[..., Any]:
    """Runs a seed, or another program under its name; see `simulate`."""
    return lambda seed, *lines, **options: simulate(seed, akter_clone(), akter_schema, *lines, **options)
