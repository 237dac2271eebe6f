"""One attempt of a job on its way through this runner, and what it may end as."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from akter.definition import Definition
from akter.identity import Address, address
from akter.job import Attempt, Job
from akter.store.attempt import Claimed
from akter.store.queue import Group

Over: TypeAlias = Literal["", "time", "lease", "lost", "cancelled"]
"""Why an attempt was given up while its function ran: its time limit, a lease that could not be renewed or that another runner took, or
a cancellation it did not heed."""

LARGEST_FRAME = 4096
"""Bytes of a progress frame as JSON; a larger one is dropped."""

STARTING = 60.0
"""Seconds that a process for a function may take to start."""


class Known(NamedTuple):
    """A job that this runner may run."""

    definition: Definition
    job: Job[..., Any]


@dataclass(slots=True, eq=False)
class Run:
    """A claimed job here. `until` and `deadline` are `time.monotonic()` values: the local end of its lease, and of the attempt's time.

    `over` says why it was given up before its function returned, `called` whether that was called at all: a process of its own has to start
    first.
    """

    row: Claimed
    known: Known
    until: float
    renew_at: float
    deadline: float = float("inf")
    attempt: Attempt | None = None
    begun_at: float = 0.0
    begun: bool = False
    given_back: bool = False
    cancelled: bool = False
    over: Over = ""
    returned: bool = False
    called: bool = False
    kill: Callable[[], None] | None = None
    frame: Any = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """The job's id."""
        return self.row.intent_id

    @property
    def address(self) -> Address:
        """The actor that asked for the job."""
        definition = self.known.definition
        return address(definition.options.placement, self.row.tenant_id, definition.name, self.row.actor_id)

    @property
    def lease(self) -> float:
        """Seconds from one renewal to the end of the lease."""
        return self.known.job.lease

    @property
    def group(self) -> Group | None:
        """The group whose limit it counts for; None without a limit."""
        if self.known.job.concurrency is None:
            return None
        return Group(*self.address, self.row.command)

    @property
    def is_last(self) -> bool:
        """Whether no attempt is left after this one."""
        return self.row.attempts >= self.known.job.retry.attempts

    @property
    def suspect(self) -> bool:
        """Whether it may be what ended the process that ran its last attempt: that one left no word."""
        return self.row.was_running and self.row.running and self.known.job.isolation == "thread"

    @property
    def starting(self) -> float:
        """Seconds that it may take, beside the function's own, until a process for it has started."""
        return STARTING if self.known.job.isolation == "process" else 0.0

    def about(self) -> dict[str, Any]:
        """It, for a line of the log."""
        return {
            "akter_actor": f"{self.row.actor_type}/{self.row.actor_id}",
            "akter_tenant": self.row.tenant_id,
            "akter_job": self.row.command,
            "akter_job_id": self.row.intent_id,
            "akter_attempts": self.row.attempts,
        }

    def report(self, value: Any) -> None:
        """Keep the newest frame of a running attempt; what cannot be shown is dropped."""
        if self.returned or self.over:
            return
        try:
            frame = msgspec.json.encode(value)
        except Exception:  # noqa: BLE001 - progress never fails a job, whatever its value makes of being looked at
            return
        if len(frame) <= LARGEST_FRAME:
            self.frame = msgspec.json.decode(frame)

    def seconds(self) -> float:
        """How long its function has run."""
        return time.monotonic() - self.begun_at


def run_of(row: Claimed, known: Known, sent: float, check: float) -> Run:
    """A claimed row here; `sent` is when the claim was sent, `check` the longest time between two looks for a cancellation."""
    lease = known.job.lease
    return Run(row, known, sent + lease, sent + min(lease / 3, check))


@dataclass(slots=True, eq=False)
class Success:
    """The function returned: what to tell, and what instead when the job was cancelled meanwhile."""

    run: Run
    command: str | None = None
    payload: str | None = None
    cancel_command: str | None = None
    cancel_payload: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The attempt failed. `ambiguous`: the outside world may have acted. `final`: no other attempt follows."""

    run: Run
    cause: str
    ambiguous: bool
    final: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The job gave up or was cancelled, and nothing runs: what is known of its last attempt."""

    run: Run
    cancelled: bool
    cause: str
    ambiguous: bool
    maybe_applied: bool


Verdict: TypeAlias = Success | Failure | End
