"""The turn: one command, one transaction, from the lock to the commit.

A turn without SQL of its own costs two network round trips. Admission: begin, limits, lock, read. Commit: state, receipt, what was
asked for, commit.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from akter import outcome, staging
from akter.actor import Actor
from akter.call import Call
from akter.capability import Capability, left
from akter.context import running
from akter.errors import AkterError, Defect, OutcomeUnknown, PayloadInvalid, Unavailable
from akter.fault import Faults
from akter.identity import CommandId
from akter.intent import Enqueue, Send
from akter.rejection import Rejection
from akter.sql import BACK_TO_SAVEPOINT, OwnSql
from akter.store import failure
from akter.store import turn as statements
from akter.store.flight import Line, Lost, StatementFailed, raw
from akter.store.rows import key, parameters
from akter.store.turn import FENCE, Admitted
from akter.store.wire import Statements, Wire

logger = logging.getLogger("akter.turn")

_BEGIN = Line(raw("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"), {})
_COMMIT = Line(raw("COMMIT"), {})
_GRACE = 5.0
"""Seconds beyond the server's own limit after which a server that says nothing is taken for dead."""
_NEAR_EXPIRY_MS = 120_000


class Surroundings(NamedTuple):
    """What all turns of one Akter share; `lock` is seconds, `keep_ms` how long the receipt of a caller's own id lives."""

    statements: Statements
    faults: Faults
    lock: float
    keep_ms: int
    max_payload_bytes: int


class Ended(NamedTuple):
    """How a handler ended: in stored form, and for its caller."""

    outcome: str
    result: Any = None
    rejection: Rejection | None = None
    state: bytes | None = None


class Turn:
    """One command inside its transaction, on a connection and in a thread of its own until `deadline`, a `time.monotonic()` value."""

    __slots__ = ("_around", "_call", "_capability", "_deadline", "_found", "_wire")

    _found: Admitted
    _capability: Capability

    def __init__(self, call: Call, wire: Wire, deadline: float, around: Surroundings) -> None:
        self._call, self._wire, self._deadline, self._around = call, wire, deadline, around

    def run(self) -> Any:
        """Run the command, or find its receipt; returns its result or raises its rejection.

        Raises `Unavailable` when it may be retried under the same id, `OutcomeUnknown` when it may have committed, and `Defect`,
        `NotCreated`, `CommandConflict`, `CommandExpired` and `Unauthorized` when it did not.
        """
        call = self._call
        self._found = self._admit()
        if not call.retried:
            call.check_expiry(self._found.now_ms)
        if self._found.outcome is not None:
            return self._replay(self._found.outcome)
        call.check_admission(self._found)
        self._around.faults.at("before_handler", call)
        ended = self._handle()
        if time.monotonic() > self._deadline:
            raise Unavailable(f"{call.command.where} took longer than its time limit, and nothing was saved", command_id=call.id)
        self._around.faults.at("before_commit", call)
        now_ms = self._commit(ended)
        self._around.faults.at("after_commit", call)
        call.check_expiry(now_ms)
        if ended.rejection is not None:
            raise ended.rejection
        return ended.result

    def _admit(self) -> Admitted:
        get, address = self._around.statements.get, key(self._call.address)
        lines = [
            _BEGIN,
            Line(get(statements.settings), self._limits()),
            # Two statements: the read must see what the winner committed while the lock waited for it.
            Line(get(statements.lock, False), address),
            Line(get(statements.read, False), {**address, "command_id": self._call.id, "ord": 0}),
        ]
        try:
            return Admitted(*self._wire.fly(lines, left(self._deadline) + _GRACE)[3].rows[0])
        except StatementFailed as failed:
            if failed.error.sqlstate == "55P03":
                raise Unavailable(f"{self._call.address} is busy with another turn", command_id=self._call.id) from failed.error
            raise failure.of_statement(failed.error, self._call.id, self._around.statements.schema) from failed.error
        except Lost as lost:
            raise Unavailable(f"the database connection was lost: {lost}", command_id=self._call.id) from lost

    def _replay(self, kept: str) -> Any:
        self._call.check_receipt(self._found)
        self._wire.roll_back()
        self._call.check_expiry(self._found.now_ms)
        return outcome.answer(kept, self._call.command)

    def _handle(self) -> Ended:
        call = self._call
        self._capability = capability = Capability(call.command.where, self._mint, self._open_sql, self._around.max_payload_bytes)
        token = running.set(capability)
        try:
            actor, loaded = self._load()
            ended = self._call_handler(actor, loaded)
            if capability.spoilt is not None:
                raise capability.spoilt
            return ended
        except Exception as problem:
            raise self._failed(problem) from problem
        finally:
            running.reset(token)
            capability.close()

    def _load(self) -> tuple[Actor, bytes | None]:
        definition, found = self._call.definition, self._found
        if found.value is None:
            fields = definition.fresh()
            loaded: bytes | None = definition.dump(fields)
        else:
            version = found.payload_version or 0
            fields = definition.load(found.value, version)
            loaded = found.value if version == len(definition.options.migrations) else None
        actor: Actor = definition.kind.__new__(definition.kind)
        actor._enter(self._call.address, self._capability, fields)
        return actor, loaded

    def _call_handler(self, actor: Actor, loaded: bytes | None) -> Ended:
        call = self._call
        try:
            value = call.command.call(actor, call.arguments)
        except Rejection as refused:
            return Ended(outcome.refusal(refused), rejection=refused)
        if self._capability.sql is not None:
            self._capability.sql.keep()
        raw_result, result = call.command.result.round_trip(value)
        if len(raw_result) > self._around.max_payload_bytes:
            raise PayloadInvalid(
                f"{call.command.result.where} is {len(raw_result)} bytes long; the limit is {self._around.max_payload_bytes}"
            )
        state = call.definition.dump(actor.__dict__)
        if state == loaded:
            return Ended(outcome.success(raw_result), result)
        call.definition.codec.decode(state)
        return Ended(outcome.success(raw_result), result, state=state)

    def _mint(self, request: Send | Enqueue) -> CommandId:
        now, when = self._found.now_ms, request.when
        due = now + when.delay_ms if when.due_at_ms is None else max(now, when.due_at_ms)
        fresh = CommandId.mint(now, self._around.keep_ms)
        return CommandId(fresh.issued_at_ms, due + self._around.keep_ms, fresh.unique)

    def _open_sql(self) -> OwnSql:
        return OwnSql(self._wire, left(self._deadline) + _GRACE, self._capability.poison, savepoint=True)

    def _failed(self, problem: Exception) -> AkterError:
        call = self._call
        if isinstance(problem, Unavailable):
            return problem
        for error in failure.driver_errors(problem):
            if failure.is_retryable(error):
                return Unavailable(f"{call.command.where}: {error}", command_id=call.id)
        logger.error(
            "turn.defect",
            exc_info=problem,
            extra={"akter_actor": str(call.address), "akter_command": call.command.name, "akter_command_id": call.id},
        )
        return Defect(f"{call.command.where} of {call.address} failed and nothing was saved: {_said(problem)}", command_id=call.id)

    def _commit(self, ended: Ended) -> int:
        call, found, around = self._call, self._found, self._around
        lines = [Line(around.statements.get(statements.settings), self._limits())]
        if ended.rejection is not None and self._capability.sql is not None:
            lines.append(BACK_TO_SAVEPOINT)
        lines.append(self._write(ended))
        if ended.rejection is None:
            lines += staging.lines(around.statements, call, self._capability.requests)
        lines.append(_COMMIT)
        commit = len(lines) - 1
        watched = call.minted is not None and call.minted.expires_at_ms - found.now_ms < _NEAR_EXPIRY_MS
        if watched:
            lines.append(Line(around.statements.get(statements.clock), {}))
        try:
            answers = self._wire.fly(lines, left(self._deadline) + _GRACE)
        except StatementFailed as failed:
            raise refused(call, failed.error, around.statements.schema) from failed.error
        except Lost as lost:
            raise OutcomeUnknown(command_id=call.id) from lost
        if answers[commit].tag != b"COMMIT":
            raise Defect(f"{call.command.where}: PostgreSQL rolled the turn back when it should commit", command_id=call.id)
        return int(answers[-1].rows[0][0]) if watched else found.now_ms

    def _write(self, ended: Ended) -> Line:
        call, found, address = self._call, self._found, key(self._call.address)
        receipt = {
            **address,
            "command_id": call.id,
            "command": call.command.name,
            "payload_hash": call.payload_hash,
            "caller_key": call.caller.key,
            "outcome": ended.outcome,
            "expires_at_ms": call.minted.expires_at_ms if call.minted else found.now_ms + self._around.keep_ms,
            "started_at_ms": found.now_ms,
        }
        values: dict[str, Any] = {"transaction": found.transaction, "receipts": 1, **parameters("receipt_", [receipt], False)}
        if ended.state is not None:
            version, shape = (found.version or 0) + 1, len(call.definition.options.migrations)
            saved = {**address, "value": ended.state, "version": version, "payload_version": shape}
            values |= {"states": 1, **parameters("state_", [saved], False)}
        creates = call.command.mark.creates and not found.created and ended.rejection is None
        if creates:
            values |= {"marks": 1, **parameters("mark_", [address], False)}
        return Line(self._around.statements.get(statements.write, False, ended.state is not None, creates), values)

    def _limits(self) -> dict[str, str]:
        rest = max(1, int(left(self._deadline) * 1000))
        return {
            "statement_timeout": f"{rest}ms",
            "lock_timeout": f"{max(1, min(rest, int(self._around.lock * 1000)))}ms",
            "idle_in_transaction_session_timeout": f"{rest + 1000}ms",
        }


def refused(call: Call, error: Any, schema: str) -> AkterError:
    """What it means that PostgreSQL refused a statement of the commit."""
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


def _said(problem: Exception) -> str:
    try:
        return f"{type(problem).__name__}: {problem}"[:2000]
    except Exception:  # noqa: BLE001 - a message that cannot be made must not hide the failure it belongs to
        return type(problem).__name__
