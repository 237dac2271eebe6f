"""What became of an attempt, and what its actor is told of it."""

from __future__ import annotations

import json
from typing import Any, Literal

from akter import caller as callers
from akter.caller import Anonymous, System, User
from akter.errors import PayloadInvalid
from akter.job import Cancellation, Cancelled, DeadLetter, NotApplied
from akter.rejection import Rejection
from akter.runner.attempt import End, Failure, Run, Success
from akter.runner.isolation import ChildFailed
from akter.store import failure

LONGEST = 2000
"""Characters that are kept of why an attempt failed."""


def words(problem: object) -> str:
    """What is kept of a failure; it can always be stored, whatever an exception makes of its own text."""
    try:
        said = problem if isinstance(problem, str) else failure.reason(problem) if isinstance(problem, BaseException) else repr(problem)
    except BaseException:  # noqa: BLE001 - an exception's own text may raise anything, and its attempt must end all the same
        said = type(problem).__name__
    return said.replace("\0", "\\0").encode(errors="replace")[:LONGEST].decode(errors="ignore")


def succeeded(run: Run, value: Any, largest: int) -> Success | Failure:
    """The function returned `value`. One that does not fit its route is a final failure, and ambiguous:
    it was applied, and cannot be told."""
    routes = run.known.job.routes
    if not routes:
        return Success(run)
    try:
        command, payload = told(run, "success", value)
        if payload is not None and len(payload) > largest:
            raise PayloadInvalid(f"it is {len(payload)} bytes long; the limit is {largest}")
    except Exception as problem:  # noqa: BLE001 - whatever a value makes of being encoded, it was applied and cannot be told
        return Failure(run, words(f"its result does not fit {routes['success']}: {words(problem)}"), ambiguous=True, final=True)
    cancellation = Cancellation(job_id=run.id, job=run.row.command, attempts=run.row.attempts, outcome="succeeded")
    return Success(run, command, payload, *told(run, "cancelled", cancellation))


def told_as_succeeded(success: Success) -> str:
    """Every payload, and every hash of one, by which a cancelled job's actor hears of a success, as a JSON list.

    A success whose commit was not answered finds them when it is told again; it may also find that another attempt's was told.
    """
    name = success.run.known.job.routes.get("cancelled")
    if name is None:
        return "[]"
    route, known = success.run.known.definition.members[name], list[str]()
    for number in range(1, max(success.run.row.attempts, success.run.known.job.retry.attempts) + 1):
        told = Cancellation(job_id=success.run.id, job=success.run.row.command, attempts=number, outcome="succeeded")
        payload, arguments = route.bind((told,), {})
        known += [payload.decode(), route.hash(arguments)]
    return json.dumps(known)


def failed(run: Run, problem: BaseException) -> Failure:
    """The function raised. Only `NotApplied` and rejections say that the outside world did not act."""
    if isinstance(problem, NotApplied):
        # A class of the application's own may have left out `super().__init__()`.
        said, final = getattr(problem, "said", None), getattr(problem, "final", False)
        return Failure(run, words(problem if said is None else said), ambiguous=False, final=final is True)
    if isinstance(problem, Cancelled):
        return Failure(run, "it stopped because it was told to", ambiguous=True)
    if isinstance(problem, ChildFailed) and not problem.begun:
        return not_started(run, problem)
    final = isinstance(problem, ChildFailed) and problem.final
    return Failure(run, words(problem), ambiguous=not isinstance(problem, Rejection), final=final)


def not_started(run: Run, problem: BaseException) -> Failure:
    """The function could not be called: what is unknown of earlier attempts stays so."""
    return Failure(run, words(f"it was not started: {words(problem)}"), ambiguous=run.row.maybe_applied)


def given_up(run: Run, why: str) -> Failure:
    """Nobody waits for the function any more. If it was not even called, what is unknown of earlier attempts stays so."""
    return Failure(run, words(why), ambiguous=run.called or run.row.maybe_applied)


def claimed(run: Run) -> End:
    """The claim found nothing to run: the job was cancelled, or has no attempt left."""
    row = run.row
    cause = row.last_error or "no attempt was made"
    return End(run, row.cancelled_at_ms is not None, cause, row.ambiguous, row.maybe_applied)


def after(verdict: Failure, cancelled: bool, maybe_applied: bool) -> End | None:
    """What a recorded failure means for its job; None: another attempt follows."""
    run = verdict.run
    if not (cancelled or verdict.final or run.is_last):
        return None
    return End(run, cancelled, verdict.cause, verdict.ambiguous, maybe_applied)


def ending(end: End) -> dict[str, Any]:
    """The row that ends a job; see `akter.store.report.END`."""
    run, routes = end.run, end.run.known.job.routes
    unknown = end.ambiguous or end.maybe_applied
    if end.cancelled and "cancelled" in routes:
        outcome: Literal["unknown", "failed"] = "unknown" if unknown else "failed"
        telling = Cancellation(
            job_id=run.id, job=run.row.command, attempts=run.row.attempts, outcome=outcome, cause=end.cause, ambiguous=unknown
        )
        command, payload = told(run, "cancelled", telling)
        return _row(end, command, payload, letter=False, ambiguous=unknown)
    if end.cancelled and not unknown:
        return _row(end, None, None, letter=False, ambiguous=False)
    ambiguous = unknown if end.cancelled else end.ambiguous
    letter = DeadLetter(job_id=run.id, job=run.row.command, attempts=run.row.attempts, cause=end.cause, ambiguous=ambiguous)
    command, payload = told(run, "dead_letter", letter)
    return _row(end, command, payload, letter=True, ambiguous=ambiguous)


def _row(end: End, command: str | None, payload: str | None, *, letter: bool, ambiguous: bool) -> dict[str, Any]:
    return {
        **token(end.run),
        "cancelled": end.cancelled,
        "command": command,
        "payload": payload,
        "caller": teller(end.run),
        "letter": letter,
        "cause": end.cause,
        "ambiguous": ambiguous,
    }


def told(run: Run, kind: str, value: Any) -> tuple[str, str] | tuple[None, None]:
    """The command of a route and its arguments; nothing without such a route. Raises `PayloadInvalid` for what does not fit."""
    name = run.known.job.routes.get(kind)
    if name is None:
        return None, None
    payload, _ = run.known.definition.members[name].bind((value,), {})
    return name, payload.decode()


def teller(run: Run) -> str:
    """Who tells it: the job, for whoever asked for it."""
    asked = callers.from_json(run.row.caller)
    behalf = asked if isinstance(asked, User | Anonymous) else asked.on_behalf_of
    return callers.to_json(System("job", run.address, behalf))


def token(run: Run) -> dict[str, Any]:
    """What names the attempt in every write about it."""
    row = run.row
    return {"bucket": row.bucket, "routing_key": row.routing_key, "intent_id": row.intent_id, "attempts": row.attempts}
