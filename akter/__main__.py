"""`python -m akter`: the same as the command `akter`."""

from __future__ import annotations

from akter.cli import main

main(prog_name="python -m akter")
