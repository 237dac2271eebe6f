"""`python -m akter.examples.ledger`: transfers between accounts, a killed worker, an audit."""

from __future__ import annotations

from .demo import demo

demo(prog_name="python -m akter.examples.ledger")
