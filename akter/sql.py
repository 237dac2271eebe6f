"""The application's own SQL inside a turn: in the same transaction, and unable to end it unnoticed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Connection, event

from akter.errors import InsideTurn
from akter.store.flight import Line, raw
from akter.store.guarded import Guarded
from akter.store.wire import Wire

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

SAVEPOINT = Line(raw("SAVEPOINT akter_turn"), {})
BACK_TO_SAVEPOINT = Line(raw("ROLLBACK TO SAVEPOINT akter_turn"), {})


class OwnSql:
    """A turn's connection and session, made when a handler first asks for them."""

    def __init__(self, wire: Wire, seconds: float, poison: Callable[[BaseException], None], *, savepoint: bool) -> None:
        if savepoint:
            # A rejection takes back what the handler wrote, and keeps its receipt.
            wire.fly([SAVEPOINT], seconds)
        self.connection: Connection = wire.connection
        # Only while the handler runs: a turn and its connection would keep each other alive, as a turn and its recorder would.
        self._poison: Callable[[BaseException], None] | None = poison
        self._session = None
        self.connection.begin()
        if isinstance(self.connection, Guarded):
            self.connection.guard = self._refuse
        else:
            # The application's engine has options or listeners, and makes its own.
            event.listen(self.connection, "commit", lambda _: self._refuse("commit"))
            event.listen(self.connection, "rollback", lambda _: self._refuse("rollback"))

    _session: Session | None

    def session(self) -> Session:
        """The ORM session on the turn's connection."""
        if self._session is None:
            # Imported here: the ORM takes a third of the time that akter takes to start.
            from sqlalchemy.orm import Session

            self._session = Session(bind=self.connection, join_transaction_mode="create_savepoint")
        return self._session

    def keep(self) -> None:
        """Send what the session still holds to the database, as part of the turn."""
        if self._session is not None:
            self._session.commit()
            self._session.close()

    def end(self) -> None:
        """Take the connection and the session away from the handler."""
        self._poison = None
        if isinstance(self.connection, Guarded):
            self.connection.guard = None
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.close()

    def _refuse(self, verb: str) -> None:
        poison = self._poison
        if poison is not None:
            problem = InsideTurn(
                f"a handler cannot {verb} the turn's transaction, which commits when the handler returns: "
                "raise a Rejection to undo it, or use begin_nested() for a part"
            )
            poison(problem)
            raise problem
