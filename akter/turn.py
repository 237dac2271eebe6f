"""The turn: one command, one transaction, from the lock to the commit.

A turn without SQL of its own costs two network round trips. Admission: begin, limits, lock, read. Commit: state, receipt, commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from akter import outcome
from akter.actor import Actor
from akter.call import Call
from akter.context import running
from akter.errors import AkterError, Defect, InsideTurn, OutcomeUnknown, PayloadInvalid, TurnEnded, Unavailable
from akter.fault import Crashed, Faults
from akter.intent import Request
from akter.rejection import Rejection
from akter.sql import BACK_TO_SAVEPOINT, OwnSql
from akter.store import failure, turn as statements
from akter.store.flight import Line, Lost, StatementFailed, raw
from akter.store.turn import FENCE, Admitted
from akter.store.wire import Statements, Wire

logger = logging.getLogger("akter.turn")

_BEGIN = Line(raw("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"), {})
_COMMIT = Line(raw("COMMIT"), {})
_GRACE = 5.0
"""Seconds beyond the server's own limit after which a server that says nothing is taken for dead."""
_NEAR_EXPIRY_MS = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: a handler's execution, a call with its retries, one wait for the actor's lock."""

    execution: float = 10.0
    delivery: float = 30.0
    lock: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a handler ended, in stored form and for its caller."""

    outcome: str
    state: bytes | None = None
    result: Any = None
    rejection: Rejection | None = None


class Turn:
    """One command inside its transaction: what the actor's verbs talk to while the handler runs."""

    __slots__ = ("_open", "_poison", "_sql", "_thread", "call", "deadline", "found", "requests", "wire")

    def __init__(self, call: Call, wire: Wire, found: Admitted, deadline: float) -> None:
        self.call, self.wire, self.found, self.deadline = call, wire, found, deadline
        self.requests: list[Request] = []
        self._thread, self._open = threading.get_ident(), False
        self._poison: BaseException | None = None
        self._sql: OwnSql | None = None

    def check(self) -> None:
        """Raise `TurnEnded` unless this thread is in the turn; either way of misuse spoils the turns concerned."""
        if self._open and threading.get_ident() == self._thread:
            return
        problem = TurnEnded(f"{self.call.address} was used outside its turn of {self.call.command.where}, or from another thread")
        if self._open:
            self.poison(problem)
        poison_running(problem)
        raise problem

    def poison(self, problem: BaseException) -> None:
        """Make the turn a defect, even if the handler swallows the problem."""
        if self._poison is None:
            self._poison = problem

    def record(self, request: Request) -> str:
        """Keep a request until the commit."""
        self.check()
        problem = InsideTurn("messages, jobs and events need the relay, which this version does not have yet")
        self.poison(problem)
        raise problem

    def connection(self) -> Any:
        """The turn's SQLAlchemy connection."""
        return self._own_sql().connection

    def session(self) -> Any:
        """The turn's ORM session."""
        return self._own_sql().session()

    def _own_sql(self) -> OwnSql:
        self.check()
        if self._sql is None:
            self._sql = OwnSql(self.wire, left(self.deadline) + _GRACE, self.poison, savepoint=True)
        return self._sql

    def handle(self) -> Ended:
        """Run the handler on the state that was read; raises `Defect` or `Unavailable` when nothing may be committed."""
        actor, loaded = self._load()
        token = running.set(self)
        self._open = True
        try:
            ended = self._ended(actor, loaded)
        except Exception as problem:
            raise self._failed(problem) from problem
        finally:
            self._open = False
            running.reset(token)
            if self._sql is not None:
                self._sql.end()
        if self._poison is not None:
            raise self._failed(self._poison) from self._poison
        return ended

    def _load(self) -> tuple[Actor, bytes | None]:
        call, found = self.call, self.found
        definition = call.definition
        try:
            fields = definition.fresh() if found.value is None else definition.load(found.value, found.payload_version or 0)
        except PayloadInvalid as problem:
            raise self._failed(problem) from problem
        current = found.value is not None and found.payload_version == len(definition.options.migrations)
        loaded = found.value if current else None if found.value is not None else definition.dump(fields)
        actor: Actor = definition.kind.__new__(definition.kind)
        actor._enter(call.address, self, fields)
        return actor, loaded

    def _ended(self, actor: Actor, loaded: bytes | None) -> Ended:
        call = self.call
        try:
            value = call.command.call(actor, call.arguments)
        except Rejection as refused:
            return Ended(outcome=outcome.refusal(refused), rejection=refused)
        if self._sql is not None:
            self._sql.keep()
        raw_result, result = call.command.result.round_trip(value)
        state = call.definition.dump(actor.__dict__)
        if state == loaded:
            return Ended(outcome=outcome.success(raw_result), result=result)
        call.definition.codec.decode(state)
        return Ended(outcome=outcome.success(raw_result), state=state, result=result)

    def _failed(self, problem: BaseException) -> AkterError:
        call = self.call
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
        said = f"{type(problem).__name__}: {_text(problem)}"
        return Defect(f"{call.command.where} of {call.address} failed and nothing was saved: {said}", command_id=call.id)

    @property
    def used_sql(self) -> bool:
        """Whether the handler asked for the connection."""
        return self._sql is not None


def poison_running(problem: BaseException) -> None:
    """Spoil the turn that runs in this context, if any."""
    other = running.get()
    if isinstance(other, Turn):
        other.poison(problem)


def left(deadline: float) -> float:
    """Seconds until a deadline, at least one millisecond."""
    return max(0.001, deadline - time.monotonic())


def _text(problem: BaseException) -> str:
    try:
        return str(problem)[:2000]
    except Exception:  # noqa: BLE001 - a message that cannot be made must not hide the failure it belongs to
        return "(its message cannot be shown)"


class Turns:
    """Runs commands as turns, in the thread that calls."""

    def __init__(self, engine: Any, compiled: Statements, faults: Faults, limits: Limits, seats: int, keep_ms: Callable[[], int]) -> None:
        self._engine, self._compiled, self._faults, self.limits = engine, compiled, faults, limits
        self._seats, self._keep_ms = threading.BoundedSemaphore(seats), keep_ms

    def run(self, call: Call) -> Any:
        """Run a command once; its answer is returned or raised. What can be retried is retried under the same id until delivery ends."""
        execution = call.command.mark.timeout or self.limits.execution
        end = time.monotonic() + max(self.limits.delivery, execution + self.limits.lock)
        try:
            return self._once(call, execution, end)
        except Unavailable as problem:
            call.retried = True
            return self._again(call, execution, end, problem)

    def _again(self, call: Call, execution: float, end: float, first: Unavailable) -> Any:
        def is_over(state: RetryCallState) -> bool:
            return time.monotonic() + state.upcoming_sleep >= end

        unknown = isinstance(first, OutcomeUnknown)
        logger.info("turn.retry", extra={"akter_actor": str(call.address), "akter_command_id": call.id, "akter_reason": str(first)})
        wait = wait_exponential(multiplier=0.05, max=2.0) + wait_random(0, 0.05)
        time.sleep(min(0.05, left(end)))
        try:
            for attempt in Retrying(retry=retry_if_exception_type(Unavailable), wait=wait, stop=is_over, reraise=True):
                with attempt:
                    try:
                        return self._once(call, execution, end)
                    except OutcomeUnknown:
                        unknown = True
                        raise
        except Unavailable as problem:
            if unknown and not isinstance(problem, OutcomeUnknown):
                raise OutcomeUnknown(command_id=call.id) from problem
            raise
        raise first

    def _once(self, call: Call, execution: float, end: float) -> Any:
        self._faults.at("before_delivery", call)
        if not self._seats.acquire(timeout=left(end)):
            raise Unavailable("every turn seat of this process is taken: make the engine's pool larger", command_id=call.id)
        try:
            self._faults.at("queued", call)
            with Wire(self._engine, self._compiled, call.id) as wire:
                try:
                    return self._turn(call, wire, min(time.monotonic() + execution, end))
                except Crashed:
                    wire.discard()
                    raise
        finally:
            self._seats.release()

    def _turn(self, call: Call, wire: Wire, deadline: float) -> Any:
        found = self._admit(call, wire, deadline)
        if not call.retried:
            call.check_expiry(found.now_ms)
        if found.outcome is not None:
            call.check_receipt(found)
            wire.roll_back()
            call.check_expiry(found.now_ms)
            return outcome.answer(found.outcome, call.command)
        call.check_admission(found)
        turn = Turn(call, wire, found, deadline)
        self._faults.at("before_handler", call)
        ended = turn.handle()
        if time.monotonic() > deadline:
            raise Unavailable(f"{call.command.where} took longer than its time limit, and nothing was saved", command_id=call.id)
        self._faults.at("before_commit", call)
        now_ms = self._commit(turn, ended)
        self._faults.at("after_commit", call)
        call.check_expiry(now_ms)
        if ended.rejection is not None:
            raise ended.rejection
        return ended.result

    def _admit(self, call: Call, wire: Wire, deadline: float) -> Admitted:
        get, key = self._compiled.get, statements.key(call.address)
        lines = [
            _BEGIN,
            Line(get(statements.settings), self._settings(deadline)),
            Line(get(statements.lock, False), key),
            Line(get(statements.read, False), {**key, "command_id": call.id, "ord": 0}),
        ]
        try:
            answers = wire.fly(lines, left(deadline) + _GRACE)
        except StatementFailed as failed:
            if failed.error.sqlstate == "55P03":
                raise Unavailable(f"{call.address} is busy with another turn", command_id=call.id) from failed.error
            raise failure.of_statement(failed.error, call.id, self._compiled.schema) from failed.error
        except Lost as lost:
            raise Unavailable(f"the database connection was lost: {lost}", command_id=call.id) from lost
        return Admitted(*answers[3].rows[0])

    def _settings(self, deadline: float) -> dict[str, str]:
        rest = max(1, int(left(deadline) * 1000))
        lock = max(1, min(rest, int(self.limits.lock * 1000)))
        return {
            "statement_timeout": f"{rest}ms",
            "lock_timeout": f"{lock}ms",
            "idle_in_transaction_session_timeout": f"{rest + 1000}ms",
        }

    def _commit(self, turn: Turn, ended: Ended) -> int:
        call, found = turn.call, turn.found
        lines = [Line(self._compiled.get(statements.settings), self._settings(turn.deadline))]
        if ended.rejection is not None and turn.used_sql:
            lines.append(BACK_TO_SAVEPOINT)
        lines += [self._writes(call, found, ended), _COMMIT]
        commit = len(lines) - 1
        watched = call.minted is not None and call.minted.expires_at_ms - found.now_ms < _NEAR_EXPIRY_MS
        if watched:
            lines.append(Line(self._compiled.get(statements.clock), {}))
        try:
            answers = turn.wire.fly(lines, left(turn.deadline) + _GRACE)
        except StatementFailed as failed:
            raise self._refused(call, failed.error) from failed.error
        except Lost as lost:
            raise OutcomeUnknown(command_id=call.id) from lost
        if answers[commit].tag != b"COMMIT":
            raise Defect(f"{call.command.where}: PostgreSQL rolled the turn back when it should commit", command_id=call.id)
        return int(answers[-1].rows[0][0]) if watched else found.now_ms

    def _writes(self, call: Call, found: Admitted, ended: Ended) -> Line:
        key = statements.key(call.address)
        receipt = {
            **key,
            "command_id": call.id,
            "command": call.command.name,
            "payload_hash": call.payload_hash,
            "caller_key": call.caller.key,
            "outcome": ended.outcome,
            "expires_at_ms": call.minted.expires_at_ms if call.minted else found.now_ms + self._keep_ms(),
            "started_at_ms": found.now_ms,
        }
        values: dict[str, Any] = {"transaction": found.transaction, "receipts": 1, **statements.parameters("receipt_", [receipt], False)}
        creates = call.command.mark.creates and not found.created and ended.rejection is None
        if ended.state is not None:
            saved = {
                **key,
                "value": ended.state,
                "version": (found.version or 0) + 1,
                "payload_version": len(call.definition.options.migrations),
            }
            values |= {"states": 1, **statements.parameters("state_", [saved], False)}
        if creates:
            values |= {"marks": 1, **statements.parameters("mark_", [key], False)}
        return Line(self._compiled.get(statements.write, False, ended.state is not None, creates), values)

    def _refused(self, call: Call, error: Any) -> AkterError:
        said = str(error)
        if FENCE in said:
            if "another transaction" in said:
                return Defect(
                    f"{call.command.where} ended the turn's transaction with SQL of its own, so nothing of the turn was saved", command_id=call.id
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
        return failure.of_statement(error, call.id, self._compiled.schema)
