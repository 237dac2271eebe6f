"""SQLAlchemy's view of a turn's connection, which asks before it ends the transaction."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection


class Guarded(Connection):
    """A connection that calls `guard` with the verb before a commit or rollback of its transaction; what that raises prevents it.

    SQLAlchemy's events would tell as much, but two listeners on each turn's connection cost as much as one of its statements.
    """

    guard: Callable[[str], None] | None = None

    def _commit_impl(self) -> None:
        if self.guard is not None:
            self.guard("commit")
        super()._commit_impl()

    def _rollback_impl(self) -> None:
        if self.guard is not None:
            self.guard("rollback")
        super()._rollback_impl()
