"""One command inside a transaction, alone or in a group: what it was admitted with, its handler, and what it leaves to write."""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from akter import outcome, staging
from akter.actor import Actor
from akter.call import Call
from akter.capability import Capability
from akter.context import running
from akter.errors import AkterError, Defect, PayloadInvalid, Unavailable
from akter.event import Asked, Page
from akter.fault import Faults
from akter.followers import Followers
from akter.identity import CommandId, shown_id
from akter.intent import Emit, Enqueue, Follow, Request, Send
from akter.named import MOST, Named
from akter.planting import Planted, Planting
from akter.rejection import Rejection
from akter.sql import OwnSql
from akter.store import failure, log
from akter.store.flight import Line, Row
from akter.store.rows import key
from akter.store.turn import Admitted
from akter.store.wire import Statements
from akter.telemetry import Telemetry

logger = logging.getLogger("akter.turn")


class Surroundings(NamedTuple):
    """What all turns of one Akter share; `lock` is seconds, `keep_ms` how long the receipt of a caller's own id lives,
    `wake` what a commit calls that left something due at once, or in some milliseconds, `cancelled` what it calls with the ids of running
    jobs it cancelled, `planting` what knows whose schedules are written, `owner` the Akter itself."""

    statements: Statements
    faults: Faults
    lock: float
    keep_ms: int
    max_payload_bytes: int
    wake: Callable[..., None]
    cancelled: Callable[[Sequence[str]], None]
    telemetry: Telemetry
    planting: Planting
    followers: Followers
    owner: object = None


class Ended(NamedTuple):
    """How a handler ended: in stored form, and for its caller."""

    outcome: str
    result: Any = None
    rejection: Rejection | None = None
    state: bytes | None = None


class Member:
    """One command of a turn. `found` is what the read knew of it, `ended` how its handler ended, `error` why nothing is written of it."""

    __slots__ = ("_around", "_open_sql", "_read", "call", "capability", "ended", "error", "found", "replayed")

    found: Admitted
    capability: Capability

    def __init__(self, call: Call, around: Surroundings) -> None:
        self.call, self._around = call, around
        self.ended: Ended | None = None
        self.error: BaseException | None = None
        self.replayed: str | None = None

    def admit(self, found: Admitted) -> None:
        """Decide whether the handler runs; raises what the command is refused with. A receipt is left in `replayed`."""
        self.found = found
        try:
            self._admit(found)
        except AkterError as problem:
            self.call.watch.failed(problem)
            raise

    def _admit(self, found: Admitted) -> None:
        self.call.check_in_time(found.now_ms)
        if found.outcome is not None:
            self.call.check_receipt(found)
            self.call.check_expiry(found.now_ms)
            self.replayed = found.outcome
            self.call.watch.replayed()
        else:
            if (self.call.command.mark.kind == "subscription") != (self.call.following is not None):
                raise Defect(
                    f"{self.call.command.where} follows events and is no command: only akter delivers to it", command_id=self.call.id
                )
            self.call.check_admission(found)

    def answer(self) -> Any:
        """Return the command's result or raise its rejection, now that it is committed."""
        if self.replayed is not None:
            return outcome.answer(self.replayed, self.call.command)
        assert self.ended is not None
        if self.ended.rejection is not None:
            raise self.ended.rejection
        return self.ended.result

    def handle(self, open_sql: Callable[[Member], OwnSql], read: Callable[[Member, Line], list[Row]]) -> None:
        """Run the handler on the state that was read; raises `Defect` or `Unavailable` when nothing of it may be committed."""
        with self.call.watch.handling():
            self._handle(open_sql, read)

    def _handle(self, open_sql: Callable[[Member], OwnSql], read: Callable[[Member, Line], list[Row]]) -> None:
        call, around = self.call, self._around
        self._open_sql, self._read = open_sql, read
        self.capability = Capability(call.command.where, call.id, self, self.found.event_sequence, around.max_payload_bytes, around.owner)
        outer, token = sys.exception(), running.set(self.capability)
        try:
            actor, loaded = self._load()
            ended = self._run(actor, loaded)
            if self.capability.spoilt is not None:
                raise self.capability.spoilt
            self.ended = ended
        except Exception as problem:
            raise self._failed(problem, outer) from problem
        finally:
            running.reset(token)
            self.capability.close()

    def _load(self) -> tuple[Actor, bytes | None]:
        definition, found = self.call.definition, self.found
        if found.value is None:
            fields = definition.fresh()
            loaded: bytes | None = definition.dump(fields)
        else:
            version = found.payload_version or 0
            fields = definition.load(found.value, version)
            loaded = found.value if version == len(definition.options.migrations) else None
        actor: Actor = object.__new__(definition.kind)
        actor._enter(self.call.address, self.capability, fields)
        return actor, loaded

    def _run(self, actor: Actor, loaded: bytes | None) -> Ended:
        call = self.call
        try:
            value = call.command.call(actor, call.arguments)
        except Rejection as refused:
            kept = outcome.refusal(refused)
            self._check_size(f"{type(refused).__name__} of {call.command.where}()", len(kept.encode()))
            return Ended(kept, rejection=refused)
        self.capability.check_children()
        if self.capability.sql is not None:
            self.capability.sql.keep()
        raw, result = call.command.result.round_trip(value)
        self._check_size(call.command.result.where, len(raw))
        state = call.definition.dump(actor.__dict__)
        if state != loaded and self.found.value is not None:
            state = call.definition.rewrite(self.found.value, self.found.payload_version or 0, state)
        if state == loaded:
            return Ended(outcome.success(raw), result)
        return Ended(outcome.success(raw), result, state=state)

    def _check_size(self, what: str, size: int) -> None:
        if size > self._around.max_payload_bytes:
            raise PayloadInvalid(f"{what} is {size} bytes long; the limit is {self._around.max_payload_bytes}")

    def open_sql(self) -> OwnSql:
        """The turn's connection, for SQL of the handler's own."""
        return self._open_sql(self)

    def read_events(self, wanted: Asked) -> Page:
        """A page of the actor's events that were committed before this turn."""
        line = log.reading(self._around.statements, self.call.address, wanted, self.found.event_sequence)
        return log.page(self._read(self, line))

    def mint(self, request: Send | Enqueue) -> CommandId:
        """The id of a message or job that the handler asks for."""
        now, when = self.found.now_ms, request.when
        due = now + when.delay_ms if when.due_at_ms is None else max(now, when.due_at_ms)
        return CommandId(now, due + self._around.keep_ms, uuid.uuid4())

    def _failed(self, problem: Exception, outer: BaseException | None) -> AkterError:
        call = self.call
        if isinstance(problem, Unavailable):
            return problem
        for error in failure.driver_errors(problem, outer):
            if failure.is_retryable(error):
                return Unavailable(f"{call.command.where}: {failure.said(error)}", command_id=call.id)
        self._around.telemetry.defect(call, problem)
        logger.error(
            "turn.defect",
            exc_info=problem,
            extra={"akter_actor": str(call.address), "akter_command": call.command.name, "akter_command_id": shown_id(call.id)},
        )
        return Defect(f"{call.command.where} of {call.address} failed and nothing was saved: {failure.reason(problem)}", command_id=call.id)

    @property
    def used_sql(self) -> bool:
        """Whether the handler used the turn's connection; an interrupt may have come before it began."""
        capability: Capability | None = getattr(self, "capability", None)
        return capability is not None and capability.touched

    @property
    def refused(self) -> bool:
        """Whether the handler ended in a rejection, which keeps its receipt and nothing else."""
        return self.ended is not None and self.ended.rejection is not None

    @property
    def _asked(self) -> Sequence[tuple[str, Request]]:
        """What the handler asked for; a rejection takes it back."""
        return () if self.refused else self.capability.requests

    def receipt(self) -> dict[str, Any]:
        """The receipt's row."""
        call, found = self.call, self.found
        assert self.ended is not None
        return {
            **key(call.address),
            "command_id": call.id,
            "command": call.command.name,
            "payload_hash": call.payload_hash,
            "caller_key": call.caller.key,
            "outcome": self.ended.outcome,
            "expires_at_ms": call.expires_at_ms or found.now_ms + self._around.keep_ms,
            "started_at_ms": found.now_ms,
        }

    def state(self) -> dict[str, Any] | None:
        """The state's row, guarded by the version that was read; None when the handler left the state as it was."""
        call, found = self.call, self.found
        if self.ended is None or self.ended.state is None:
            return None
        version, shape = (found.version or 0) + 1, len(call.definition.options.migrations)
        return {**key(call.address), "value": self.ended.state, "version": version, "payload_version": shape}

    def mark(self) -> dict[str, Any] | None:
        """The creation mark's row, when the command created its actor."""
        creates = self.call.command.mark.creates and not self.found.created and not self.refused
        return key(self.call.address) if creates else None

    @property
    def planted(self) -> Planted | None:
        """Its actor, when the commit may have to write the rows of its schedules: those of a singleton are written by runners."""
        definition, found = self.call.definition, self.found
        if not definition.schedules or definition.options.singleton:
            return None
        if definition.creating and not found.created and self.mark() is None:
            return None
        return Planted(definition, self.call.address, found.generation)

    def requests(self) -> list[Line]:
        """The statements that write what the handler asked for."""
        if not self._asked:
            return []
        return staging.lines(self._around.statements, self._around.followers, self.call, self.capability)

    @property
    def event_sequence(self) -> int:
        """The sequence of the actor's newest event once this is committed."""
        return self.found.event_sequence + sum(isinstance(request, Emit) for _, request in self._asked)

    def committed(self) -> None:
        """Tell whoever watches that it is committed."""
        self.call.watch.committed(self.refused, _counted(self._asked))

    def named(self, now_ms: int) -> list[Named] | None:
        """The messages that are due at once; None when there is something else, too, or more than are worth naming."""
        due = [(id, request) for id, request in self._asked if (ms := _due_in_ms(request, now_ms)) is not None and ms <= 0]
        if len(due) > MOST:
            return None
        where = self.call.address
        sends = [(id, request.target) for id, request in due if isinstance(request, Send)]
        rows = [Named(where.bucket, where.routing_key, id, to.actor_type, to.routing_key) for id, to in sends]
        return rows if len(rows) == len(due) else None

    def due_from(self, now_ms: int) -> int | None:
        """In how many milliseconds the first thing that the handler asked for is due, not positive when at once; None when nothing is."""
        return min((due for _, request in self._asked if (due := _due_in_ms(request, now_ms)) is not None), default=None)


def _counted(requests: Sequence[tuple[str, Request]]) -> dict[str, int]:
    staged: dict[str, int] = {}
    for _, request in requests:
        if isinstance(request, Send | Enqueue):
            kind = "intent" if isinstance(request, Send) else "job"
            staged[kind] = staged.get(kind, 0) + 1
    return staged


def _due_in_ms(request: Request, now_ms: int) -> int | None:
    if isinstance(request, Send | Enqueue):
        return request.when.delay_ms if request.when.due_at_ms is None else request.when.due_at_ms - now_ms
    return 0 if isinstance(request, Follow) else None
