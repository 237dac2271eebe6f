"""How fast akter is, measured beside a reference in the same run: `python -m benchmarks.turns`, `python -m benchmarks.memory`."""
