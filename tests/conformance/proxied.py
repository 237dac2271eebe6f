"""The proxy of tests/network, which is not a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("akter_tests_network_proxy", Path(__file__).parents[1] / "network" / "proxy.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Proxy = _load().Proxy
