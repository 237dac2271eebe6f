"""What a person reads at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = 20


def table(title: str, numbers: Mapping[str, Any]) -> str:
    """Lines of a name and a number."""
    width = max(map(len, numbers), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {number}" for name, number in numbers.items())])


def report(
    seed: int, numbers: Mapping[str, Any], did: Counter[str], logged: Counter[str], wrong: Sequence[str], unasked: Sequence[str]
) -> str:
    """Everything, the verdict last."""
    parts = [
        table(f"soak with seed {seed}", numbers),
        table("what was done to it", dict(did.most_common())),
        table("what it logged", dict(logged.most_common())),
    ]
    parts += [f"ended by itself: {one}" for one in unasked]
    parts += [f"WRONG: {one}" for one in wrong[:SHOWN]]
    if len(wrong) > SHOWN:
        parts.append(f"WRONG: and {len(wrong) - SHOWN} more")
    parts.append(f"seed {seed}: {'FAILED' if wrong or unasked else 'nothing is lost, doubled or left'}")
    return "\n\n".join(parts)
