"""The turn: one command, or a group of them, in one transaction from the lock to the commit.

A turn without SQL of its own costs two network round trips. Admission: begin, limits, lock, read. Commit: receipts, states, what was
asked for, commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from akter import staging
from akter.call import Call
from akter.capability import left
from akter.definition import Definition
from akter.errors import AkterError, Defect, OutcomeUnknown, Unavailable
from akter.following import Cursor
from akter.member import Member, Surroundings
from akter.named import Named
from akter.pace import Pace
from akter.sql import BACK_TO_SAVEPOINT, SAVEPOINT, OwnSql
from akter.store import ahead as admission
from akter.store import applied, failure, outbox, plans
from akter.store import turn as statements
from akter.store.flight import Line, Lost, Row, Rows, StatementFailed
from akter.store.rows import key, parameters
from akter.store.turn import FENCE, Admitted
from akter.store.wire import BEGIN, COMMIT, Wire

_GRACE = 5.0
"""Seconds beyond the server's own limit after which a server that says nothing is taken for dead."""
_NEAR_EXPIRY_MS = 60_000
_STALE = 0.75
"""The admission's time limits hold for the commit too, unless less than this share of their time is left."""


class Turn:
    """A transaction on a connection of its own until `deadline`, a `time.monotonic()` value; it runs in the calling thread."""

    __slots__ = ("_admitted", "_around", "_clock_ms", "_deadline", "_limited", "_saved", "_wire")

    def __init__(self, wire: Wire, deadline: float, around: Surroundings) -> None:
        self._wire, self._deadline, self._around = wire, deadline, around
        self._admitted, self._limited, self._clock_ms, self._saved = 0.0, 0.0, 0, False

    def run(self, call: Call, pace: Pace) -> Any:
        """Run one command, or find its receipt; returns its result or raises its rejection. `pace` learns how it went.

        Raises `Unavailable` when it may be retried under the same id, `OutcomeUnknown` when it may have committed, and `Defect`,
        `NotCreated`, `CommandConflict`, `CommandExpired` and `Unauthorized` when it did not.
        """
        member = Member(call, self._around)
        (found,) = self.admit([call])
        member.admit(found)
        if member.replayed is None:
            self._around.faults.at("before_handler", call)
            started = time.monotonic()
            try:
                member.handle(self.open_sql, self.read)
            finally:
                pace.saw(call.command, time.monotonic() - started, used_sql=member.used_sql)
            self.check_time(call)
            self._around.faults.at("before_commit", call)
            now_ms = self.commit([member])
            self._around.faults.at("after_commit", call)
            call.check_expiry(now_ms)
        else:
            self._wire.roll_back()
        return member.answer()

    def admit(self, calls: Sequence[Call], *, watched: bool = False) -> list[Admitted]:
        """Begin, lock the actors and read what the commands need, in the commands' order; `watched`: they brought their watches."""
        for call in calls if not watched else ():
            call.watch = self._around.telemetry.turn(call)
        try:
            found = self._admit(calls)
        except BaseException as problem:
            for call in calls:
                call.watch.failed(problem)
            raise
        for call in calls:
            call.watch.admitted()
        return found

    def asked(self, calls: Sequence[Call]) -> list[Line]:
        """The admission's statements."""
        get, many = self._around.statements.get, len(calls) > 1
        rows = [{**key(call.address), "command_id": call.id, "ord": position} for position, call in enumerate(calls)]
        values = parameters("", rows, many)
        return [
            BEGIN,
            Line(get(statements.settings), self._limits()),
            # In a group no handler has SQL of its own that this could disturb.
            *([Line(get(plans.generic), {})] if many else []),
            # Two statements: the read must see what the winner committed while the lock waited for it.
            Line(get(statements.lock, many), values),
            Line(get(statements.read, many), values),
            *([Line(get(applied.read), self._cursors(calls))] if calls[0].following is not None else []),
        ]

    def _admit(self, calls: Sequence[Call]) -> list[Admitted]:
        following = calls[0].following is not None
        try:
            answers = self._landed() or self._fly(calls)
        except StatementFailed as failed:
            if failed.error.sqlstate == "55P03":
                raise Unavailable(f"{calls[0].address} is busy with another turn", command_id=calls[0].id) from failed.error
            raise failure.of_statement(failed.error, calls[0].id, self._around.statements.schema) from failed.error
        except Lost as lost:
            raise Unavailable(f"the database connection was lost: {lost}", command_id=calls[0].id) from lost
        self._admitted = time.monotonic()
        cursors = {row[0]: Cursor(*row[1:]) for row in answers[-1].rows} if following else {}
        read = answers[-2 if following else -1].rows
        found = sorted((Admitted(*row) for row in read), key=lambda found: found.ord)
        if following:
            found = [one._replace(cursor=cursors.get(one.ord)) for one in found]
        self._clock_ms = found[0].now_ms
        return found

    def _fly(self, calls: Sequence[Call]) -> list[Rows]:
        lines = self.asked(calls)
        # What says that it has SQL of its own gets its savepoint without a flight more.
        self._saved = len(calls) == 1 and calls[0].command.mark.sql
        return self._wire.fly([*lines, SAVEPOINT] if self._saved else lines, left(self._deadline) + _GRACE)[: len(lines)]

    def _landed(self) -> list[Rows] | None:
        """The answers to an admission that was sent behind something else, if it found its actors."""
        if not self._wire.under_way:
            return None
        seconds = left(self._deadline)
        # A message's claim gave it as much just now; behind a group's commit, its limits were sent a while ago.
        self._limited = self._limited or seconds
        answers = self._wire.land(seconds + _GRACE)
        if not answers[-1].rows:
            self._wire.roll_back()
            return None
        return answers

    @property
    def now_ms(self) -> int:
        """The database's time, carried on from the admission's read: it may be a little behind, never ahead."""
        return self._clock_ms + int((time.monotonic() - self._admitted) * 1000)

    def _cursors(self, calls: Sequence[Call]) -> dict[str, Any]:
        """What names the cursors of deliveries to subscribers; other commands are never in one transaction with them."""
        rows = [
            {
                **key(call.address),
                "subscription": call.following.subscription,
                "source_type": call.following.source.actor_type,
                "source_id": call.following.source.actor_id,
                "ord": position,
            }
            for position, call in enumerate(calls)
            if call.following is not None
        ]
        return parameters("cursor_", rows, True)

    def check_time(self, call: Call) -> None:
        """Refuse to commit past the time limit."""
        if time.monotonic() > self._deadline:
            problem = Unavailable(f"{call.command.where} took longer than its time limit, and nothing was saved", command_id=call.id)
            call.watch.failed(problem)
            raise problem

    def commit(self, members: Sequence[Member], settle: Sequence[Line] = (), behind: Callable[[], Sequence[Line]] = tuple) -> int:
        """Write what the members leave, and `settle`, and commit; returns the database's time, in milliseconds.

        `behind` is asked for the admission of another turn, which follows on the connection if this one commits.
        """
        for member in members:
            member.call.watch.committing()
        try:
            now_ms = self._commit(members, settle, behind)
        except BaseException as problem:
            for member in members:
                member.call.watch.failed(problem)
            raise
        for member in members:
            member.committed()
        return now_ms

    def _commit(self, members: Sequence[Member], settle: Sequence[Line], behind: Callable[[], Sequence[Line]]) -> int:
        first = members[0]
        get = self._around.statements.get
        if self._wire.broken:
            raise Unavailable("the database connection was lost before the commit", command_id=first.call.id)
        own_sql = any(member.capability.sql is not None for member in members)
        if own_sql and (misuse := self._wire.misuse) is not None:
            self._wire.discard()
            raise Defect(f"{first.call.command.where} left the connection {misuse}, so nothing was saved", command_id=first.call.id)
        # Back first: a handler that turned an error of its own SQL into a rejection left the transaction aborted.
        lines = [BACK_TO_SAVEPOINT] if first.refused and own_sql else []
        if own_sql or left(self._deadline) < _STALE * self._limited:
            # A handler's own SQL may have changed the limits.
            lines.append(Line(get(statements.settings), self._limits()))
        lines.append(self._write(members))
        for member in members:
            lines += member.requests()
        lines += staging.moved(self._around.statements, [member.call for member in members])
        planting = self._around.planting
        missing = planting.missing(actor for member in members if (actor := member.planted) is not None)
        if missing:
            lines.append(planting.line(self._around.statements, missing, self.now_ms))
        lines += [*settle, COMMIT]
        commit = len(lines) - 1
        ids = (member.call.minted for member in members)
        watched = any(id is not None and id.expires_at_ms - self.now_ms < _NEAR_EXPIRY_MS for id in ids)
        if watched:
            lines.append(Line(get(statements.clock), {}))
        # A clock behind the commit would be the beginning of the transaction that follows.
        after = () if watched else behind()
        try:
            answers = self._wire.fly(lines, left(self._deadline) + _GRACE, after)
        except StatementFailed as failed:
            if failed.position > commit:
                raise OutcomeUnknown(command_id=first.call.id) from failed.error
            raise _refused(first.call, failed.error, self._around.statements.schema) from failed.error
        except Lost as lost:
            raise OutcomeUnknown(command_id=first.call.id) from lost
        if answers[commit].tag != b"COMMIT":
            raise Defect(f"{first.call.command.where}: PostgreSQL rolled the turn back when it should commit", command_id=first.call.id)
        if missing:
            planting.saw(missing)
        now_ms = self.now_ms
        soonest = [due for member in members if (due := member.due_from(now_ms)) is not None]
        if followed := staging.followed(lines, answers):
            soonest.append(0)
        if soonest:
            after_ms = min(soonest)
            self._around.wake(after_ms, _named(members, now_ms) if after_ms <= 0 and not followed else ())
        if any(member.capability.requests for member in members):
            self._tell(lines, answers)
        return int(answers[-1].rows[0][0]) if watched else first.found.now_ms

    def _tell(self, lines: Sequence[Line], answers: Sequence[Rows]) -> None:
        """Tell the runners of this process which running jobs were cancelled, so their functions hear of it at once."""
        cancel = self._around.statements.get(outbox.cancel)
        ids = [row[0] for line, answer in zip(lines, answers, strict=False) if line.statement is cancel for row in answer.rows]
        if ids:
            self._around.cancelled(ids)

    def _write(self, members: Sequence[Member]) -> Line:
        many = len(members) > 1
        receipts = [member.receipt() for member in members]
        states = [row for member in members if (row := member.state()) is not None]
        marks = [row for member in members if (row := member.mark()) is not None]
        values: dict[str, Any] = {"transaction": members[0].found.transaction}
        values |= parameters("receipt_", receipts, many)
        if states:
            values |= {"states": len(states), **parameters("state_", states, many)}
        if marks:
            values |= {"marks": len(marks), **parameters("mark_", marks, many)}
        return Line(self._around.statements.get(statements.write, many, bool(states), bool(marks)), values)

    def open_sql(self, member: Member) -> OwnSql:
        """The application's own SQL in this transaction, behind a savepoint."""
        with self._wire.answering(member.call.id):
            return OwnSql(self._wire, left(self._deadline) + _GRACE, member.capability.poison, savepoint=not self._saved)

    def read(self, member: Member, line: Line) -> list[Row]:
        """What a handler asks of its own actor in this transaction."""
        where, id = member.call.command.where, member.call.id
        if (misuse := self._wire.misuse) is not None:
            raise Defect(f"{where} read events while its connection was {misuse}: finish that first", command_id=id)
        with self._wire.answering(id):
            return self._wire.fly([line], left(self._deadline) + _GRACE)[0].rows

    def _limits(self) -> dict[str, str]:
        self._limited = left(self._deadline)
        return _limits(self._limited, self._around)


def ahead(who: Definition, message: Named, ticket: str, seconds: float, around: Surroundings) -> list[Line]:
    """What follows the BEGIN in the admission of a message's turn that is sent with its claim, before anybody knows what it says.

    It gives the turn `seconds`; a command with a time limit of its own has to be admitted again.
    """
    assert message.target_key is not None
    key = message.target_key
    values = {"bucket": key >> 56, "routing_key": key, "actor_type": who.name, "command_id": message.intent_id, "ticket": ticket}
    get = around.statements.get
    limits = Line(get(statements.settings), _limits(seconds, around))
    return [limits, Line(get(admission.lock), values), Line(get(admission.read), values)]


def _limits(seconds: float, around: Surroundings) -> dict[str, str]:
    rest = max(1, int(seconds * 1000))
    return {
        "statement_timeout": f"{rest}ms",
        "lock_timeout": f"{max(1, min(rest, int(around.lock * 1000)))}ms",
        "idle_in_transaction_session_timeout": f"{rest + 1000}ms",
    }


def _named(members: Sequence[Member], now_ms: int) -> list[Named]:
    """The messages that these leave due at once, when they leave nothing else; otherwise none."""
    rows: list[Named] = []
    for member in members:
        if (found := member.named(now_ms)) is None:
            return []
        rows += found
    return rows


def _refused(call: Call, error: Any, schema: str) -> AkterError:
    said = str(error)
    if FENCE in said:
        if "another transaction" in said:
            return Defect(
                f"{call.command.where} ended the turn's transaction with SQL of its own, so nothing of the turn was saved",
                command_id=call.id,
            )
        return Unavailable(f"the state of {call.address} was changed from outside while its turn ran", command_id=call.id)
    if error.sqlstate == "25P02":
        return Defect(
            f"{call.command.where}: a statement failed and its error was swallowed, so the transaction cannot commit: "
            "put statements that may fail into self.connection.begin_nested()",
            command_id=call.id,
        )
    if error.sqlstate == "23505" and "actor_receipts" in said:
        return Unavailable("another process ran this command at the same time", command_id=call.id)
    return failure.of_statement(error, call.id, schema)
