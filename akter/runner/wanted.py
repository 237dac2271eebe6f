"""What a runner claims of jobs: those without a limit per actor together, the others group by group, in the order of their requests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from akter.member import Surroundings
from akter.runner.attempt import Known
from akter.runner.family import Probe, Taken, taken_as
from akter.store import attempt, failure, plans, queue
from akter.store.attempt import Claimed
from akter.store.flight import Line, Row, StatementFailed
from akter.store.queue import Group
from akter.store.rows import parameters
from akter.store.wire import Wire

logger = logging.getLogger("akter.job")

_SECONDS = 30.0


class Wanted:
    """The jobs that are `known` here, by actor type and name."""

    def __init__(self, around: Surroundings, known: Mapping[tuple[str, str], Known]) -> None:
        self._around, self._known = around, known
        self._plain = _arrays({key: known for key, known in known.items() if known.job.concurrency is None})
        self._capped = _arrays({key: known for key, known in known.items() if known.job.concurrency is not None})
        self._suspects = False

    @property
    def at_once(self) -> bool:
        """Whether the first statements claim something; jobs with a limit per actor are claimed in a transaction of their own."""
        return self._plain is not None

    def claim(self, probe: Probe, suspects: bool) -> Sequence[Line]:
        """The statements that claim attempts, and that look for groups with something due; `suspects`: whether one may be among them."""
        lines: list[Line] = []
        self._suspects = suspects
        if self._plain is not None:
            # In every other pass, half of the seats are left to jobs with a limit per actor.
            limit = probe.limit if self._capped is None or probe.number % 2 else probe.limit // 2
            lines.append(self._line(attempt.claim, {**probe._asdict(), **self._plain, "limit": limit, "suspects": suspects}))
        if self._capped is not None:
            values = {**probe._asdict(), **self._capped, "suspects": suspects}
            del values["limit"]
            lines.append(self._line(queue.due, values))
        return lines

    def taken(self, answers: Sequence[Sequence[Row]], probe: Probe, wire: Wire) -> Taken:
        """What was claimed, with what can be had from the groups that have something due."""
        rows: list[Claimed] = []
        found, deepest, oldest_ms, at = 0, 0, 0, 0
        if self._plain is not None:
            plain = taken_as(Claimed, answers[0])
            rows += plain.rows
            found, deepest, oldest_ms, at = plain.found, plain.deepest, plain.oldest_ms, 1
        if self._capped is not None:
            due = taken_as(Group, answers[at], 3)
            taken = self._claim_groups(due.rows, probe.limit - len(rows), wire)
            # What a full group has left waits for one of its own, not for a seat.
            found += due.found if len(rows) + len(taken) >= probe.limit else len(taken)
            deepest = max(deepest, due.deepest if taken else 0)
            oldest_ms = max(oldest_ms, due.oldest_ms)
            rows += taken
        return Taken(rows, found, deepest, oldest_ms)

    def _claim_groups(self, groups: Sequence[Group], limit: int, wire: Wire) -> list[Claimed]:
        if not groups or limit <= 0:
            return []
        rows = [{**group._asdict(), **self._limits(group), "ord": place} for place, group in enumerate(groups)]
        locks = [group.lock(self._around.statements.schema) for group in groups]
        claim = self._line(queue.claim, {**parameters("group_", rows, True), "limit": limit, "suspects": self._suspects})
        try:
            lines = [self._line(plans.generic, {}), self._line(queue.lock, {"locks": locks}), claim]
            answer = wire.transact(lines, _SECONDS)[2].rows
        except StatementFailed as failed:
            wire.roll_back()
            # The rows that were claimed before stand; these come again.
            problem = failure.of_statement(failed.error, "", self._around.statements.schema)
            logger.warning("job.claim_failed", extra={"akter_rows": len(groups), "akter_reason": str(problem)[:500]})
            return []
        return list(taken_as(Claimed, answer).rows)

    def _limits(self, group: Group) -> dict[str, int]:
        job = self._known[group.actor_type, group.command].job
        lease_ms, shared = round(job.lease * 1000), job.isolation == "thread"
        return {"cap": job.concurrency or 1, "most": job.retry.attempts, "lease_ms": lease_ms, "shared": shared}

    def _line(self, statement: Any, values: dict[str, Any]) -> Line:
        return Line(self._around.statements.get(statement), values)


def _arrays(jobs: Mapping[tuple[str, str], Known]) -> dict[str, Any] | None:
    if not jobs:
        return None
    return {
        "job_types": [name for name, _ in jobs],
        "job_names": [name for _, name in jobs],
        "job_attempts": [known.job.retry.attempts for known in jobs.values()],
        "job_leases": [round(known.job.lease * 1000) for known in jobs.values()],
        "job_shared": [known.job.isolation == "thread" for known in jobs.values()],
    }
