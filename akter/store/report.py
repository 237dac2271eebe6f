"""How jobs end. Each ends in exactly one way: its row becomes the message that tells its actor, or goes.

The first success of any attempt wins. A failure is recorded first and by itself; only then does a job that gave up become a dead letter,
in one statement with the message that says so, so a dead letter that cannot be written never costs another attempt.
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import (
    JSON,
    Boolean,
    Integer,
    and_,
    case,
    delete,
    exists,
    false,
    func,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy import cast as cast_sql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.selectable import ExecutableReturnsRows, Select

from akter.store.attempt import ATTEMPT, held
from akter.store.clock import now_ms
from akter.store.rows import source
from akter.tables import IDENTITY, dead_letters, outbox, receipts

_JOB = ("bucket", "routing_key", "intent_id")
_LETTER = ("tenant_id", "actor_type", "actor_id", "payload", "payload_version")

SUCCESS = (*ATTEMPT, "command", "payload", "cancel_command", "cancel_payload", "caller", "capped")
"""A success: the command that hears of it, or None, and the one to tell instead when the job was cancelled meanwhile."""

FAILURE = (*ATTEMPT, "last_error", "ambiguous", "final", "delay_ms")
"""A failure: whether the outside world may have acted, whether no other attempt may follow, and the wait before it."""

END = (*ATTEMPT, "cancelled", "command", "payload", "caller", "letter", "cause", "ambiguous")
"""The end of a job that did not succeed: the command that hears of it, or None, and whether a dead letter is kept."""

LATE = (*_JOB, *IDENTITY[2:], "attempts", "command", "payload", "payload_version", "cancel_command", "succeeded", "cause")
"""A success that found its job settled already; `command` is the job. `succeeded`: a JSON list of the payloads, and their hashes, by which
`cancel_command` hears that an attempt succeeded, whichever it was."""


def success(capped: bool, tells: bool) -> Select[Any]:
    """Turn jobs that succeeded into messages; returns those that were still jobs, and whether they wait. `tells`: one of them has a route.

    Where attempts per actor are limited (`capped`: some of them are), a success of an attempt that was taken for dead waits while a newer
    one runs: its place must not be given to a third.
    """
    rows = source("success_", SUCCESS, True)
    named = and_(*(outbox.c[name] == rows.c[name] for name in _JOB), outbox.c.kind == literal_column("'job'"))
    newer = (
        and_(rows.c.capped, outbox.c.running, outbox.c.attempts != rows.c.attempts, outbox.c.due_at_ms > now_ms()) if capped else false()
    )
    told = and_(outbox.c.cancelled_at_ms.is_not(None), rows.c.cancel_command.is_not(None))
    command = case((told, rows.c.cancel_command), else_=rows.c.command)
    payload = case((told, rows.c.cancel_payload), else_=rows.c.payload)
    routed = _told(update(outbox), command, payload, rows.c.caller).where(named, ~newer, command.is_not(None))
    gone = delete(outbox).where(named, ~newer, command.is_(None))
    ended = _ids(gone, *([routed] if tells else [])).add_columns(literal_column("false", Boolean()).label("waits"))
    if not capped:
        return ended
    waits = select(*(outbox.c[name] for name in _JOB), true().label("waits")).select_from(outbox.join(rows, and_(named, newer)))
    both = union_all(ended, waits).subquery("found")
    return select(*both.c)


def failure() -> ExecutableReturnsRows:
    """Record failures of attempts that are still the last ones; returns those, and whether each job was cancelled or may have applied."""
    rows = source("failure_", FAILURE, True)
    moved = (
        update(outbox)
        .values(
            last_error=rows.c.last_error,
            ambiguous=rows.c.ambiguous,
            running=false(),
            final_failure=or_(outbox.c.final_failure, rows.c.final),
            due_at_ms=now_ms() + rows.c.delay_ms,
        )
        .where(held(rows), outbox.c.running)
        .returning(*(outbox.c[name] for name in _JOB), outbox.c.cancelled_at_ms.is_not(None).label("cancelled"), outbox.c.maybe_applied)
        .cte("failed")
    )
    return select(*moved.c)


def end() -> ExecutableReturnsRows:
    """End jobs that gave up or were cancelled, with their dead letters, all or nothing; returns those that ended now."""
    rows = source("end_", END, True)
    locked = (
        select(*(outbox.c[name] for name in (*_JOB, *_LETTER, "attempts")), outbox.c.command.label("job"))
        .add_columns(*(rows.c[name].label(f"end_{name}") for name in ("command", "payload", "caller", "letter", "cause", "ambiguous")))
        .select_from(outbox.join(rows, held(rows)))
        .where(~outbox.c.running, outbox.c.cancelled_at_ms.is_not(None) == rows.c.cancelled)
        .with_for_update(of=outbox)
        .cte("ending")
    )
    chosen = select(
        *(locked.c[name] for name in (*_JOB, *_LETTER)),
        *(locked.c[name] for name in ("job", "end_cause", "attempts", "end_ambiguous")),
        now_ms(),
    ).where(locked.c.end_letter)
    kept = _keep(chosen).cte("kept")
    mine = and_(*(outbox.c[name] == locked.c[name] for name in _JOB))
    routed = _told(update(outbox), locked.c.end_command, locked.c.end_payload, locked.c.end_caller)
    ids = _ids(delete(outbox).where(mine, locked.c.end_command.is_(None)), routed.where(mine, locked.c.end_command.is_not(None)))
    ended: ExecutableReturnsRows = ids.add_cte(kept)
    return ended


def late() -> ExecutableReturnsRows:
    """A success came after the job's end was told. Its dead letter says from now on that the outside world has acted.

    A cancellation that was told as something else gets such a letter; one that was told as a success had this one, or another that is as
    good. Returns the jobs whose letter changed; a job that had succeeded before has none.
    """
    rows = source("late_", LATE, True)
    mine = and_(*(dead_letters.c[name] == rows.c[name] for name in _JOB[:2]), dead_letters.c.job_id == rows.c.intent_id)
    marked = update(dead_letters).values(ambiguous=true()).where(mine, ~dead_letters.c.ambiguous).returning(dead_letters.c.job_id)
    owner = and_(*(receipts.c[name] == rows.c[name] for name in IDENTITY), receipts.c.command_id == rows.c.intent_id)
    waiting = and_(*(outbox.c[name] == rows.c[name] for name in _JOB), outbox.c.command == rows.c.cancel_command)
    known = func.json_array_elements_text(cast_sql(rows.c.succeeded, JSON)).table_valued("value")
    succeeded = select(known.c.value)
    told = or_(
        exists().where(owner, receipts.c.command == rows.c.cancel_command, receipts.c.payload_hash.not_in(succeeded)),
        exists().where(waiting, outbox.c.kind == literal_column("'intent'"), outbox.c.payload.not_in(succeeded)),
    )
    chosen = select(*(rows.c[name] for name in (*_JOB, *_LETTER)), rows.c.command, rows.c.cause, rows.c.attempts, true(), now_ms()).where(
        told
    )
    made = _keep(chosen).cte("made")
    changed = marked.cte("marked")
    return select(union_all(select(changed.c.job_id), select(made.c.job_id)).subquery("late").c.job_id)


def _keep(chosen: Any) -> Any:
    columns = [*_JOB[:2], "job_id", *_LETTER, "job", "cause", "attempts", "ambiguous", "dead_at_ms"]
    made = insert(dead_letters).from_select(columns, chosen)
    keys = ["bucket", "routing_key", "job_id"]
    return made.on_conflict_do_update(
        index_elements=keys, set_={"ambiguous": or_(dead_letters.c.ambiguous, made.excluded.ambiguous)}
    ).returning(dead_letters.c.job_id)


def _told(made: Any, command: Any, payload: Any, caller: Any) -> Any:
    """The row as the message that tells how the job ended; its id, and so the command's, is the job's."""
    nothing: Any = literal_column("0", Integer())
    return made.values(
        kind=literal_column("'intent'"),
        timer_key=null(),
        command=command,
        payload=payload,
        payload_version=nothing,
        caller=caller,
        due_at_ms=now_ms(),
        scheduled_at_ms=now_ms(),
        attempts=nothing,
        last_error=null(),
        ambiguous=false(),
        running=false(),
        maybe_applied=false(),
        waiting=false(),
        final_failure=false(),
        cancelled_at_ms=null(),
        ready_at_ms=null(),
    )


def _ids(*changes: Any) -> Select[Any]:
    made = [one.returning(*(outbox.c[name] for name in _JOB)).cte(name) for one, name in zip(changes, ("gone", "routed"), strict=False)]
    rows = union_all(*(select(*one.c) for one in made)).subquery("ended")
    chosen: Select[Any] = cast(Any, select)(*rows.c)
    return chosen
