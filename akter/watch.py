"""What turns and deliveries tell whoever watches them; these watchers tell nobody, at the cost of a call."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

_NOTHING = nullcontext()


class Watch:
    """What is told while one try of a turn goes on; this one tells nobody."""

    __slots__ = ()

    def admitted(self) -> None:
        """The actor is locked, and what the command needs is read."""

    def replayed(self) -> None:
        """A receipt answers; nothing runs."""

    def handling(self) -> AbstractContextManager[object]:
        """The handler runs in this block."""
        return _NOTHING

    def committing(self) -> None:
        """The commit is sent."""

    def committed(self, refused: bool, staged: Mapping[str, int]) -> None:
        """It is committed: whether it was a rejection, and how many requests of each kind it left."""

    def failed(self, problem: BaseException) -> None:
        """Nothing is committed of it, or nobody knows. What comes after the end of a try is not counted again."""


class Hop:
    """What is told of one claimed message, from the claim until it is settled; this one tells nobody."""

    __slots__ = ()

    def delivered(self) -> None:
        """Its receiver has committed, and its row is gone."""

    def retried(self, problem: BaseException) -> None:
        """It failed, and waits."""

    def released(self) -> None:
        """It was given back before it was begun, or its lease ran out."""


NO_WATCH, NO_HOP = Watch(), Hop()
