"""Attempts of jobs: claimed, renewed, given back. An attempt is recorded before it runs, and as one whose end nobody knows.

`attempts` is its claim token: every later write about it names the number. A job that was cancelled, or has no attempt left, is claimed
only to be settled; then nothing runs.

A row that is due and still `running` has an attempt behind it that left no word: its process may have died of it, or of a neighbour's. A
claim takes at most one of those (a suspect), so that they can be begun one after the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from typing import cast as cast_type

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Integer,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.selectable import ExecutableReturnsRows, Select

from akter.store import plans, probing
from akter.store.clock import now_ms, statement_ms
from akter.store.rows import source
from akter.tables import outbox, pauses

ATTEMPT = ("bucket", "routing_key", "intent_id", "attempts")
"""What names an attempt: the job's row, and the attempt's number."""

BEFORE = ("ambiguous", "last_error", "running")
"""What is kept of a row as it was before its claim, to give it back as if nobody had claimed it."""

_ONE, _ZERO, _UNSAID = literal_column("1", Integer()), literal_column("0", Integer()), literal_column("NULL", Text())


class Claimed(NamedTuple):
    """One claimed job. `running`: an attempt begins; otherwise it is only to be settled. `was_ambiguous`, `was_error`, `was_running`: as
    they were before. `last_error` is of a job that is only to be settled. `found`, `deepest` and `oldest_ms` as in
    `akter.store.claim.Claimed`."""

    found: int
    deepest: int
    oldest_ms: int
    bucket: int
    routing_key: int
    intent_id: str
    attempts: int
    tenant_id: str
    actor_type: str
    actor_id: str
    command: str
    payload: bytes
    payload_version: int
    caller: str
    running: bool
    ambiguous: bool
    maybe_applied: bool
    final_failure: bool
    cancelled_at_ms: int | None
    last_error: str | None
    scheduled_at_ms: int
    was_ambiguous: bool
    was_error: str | None
    was_running: bool


def claim() -> ExecutableReturnsRows:
    """Claim due jobs that have no limit per actor.

    Parameters: those of a probe, and the jobs run here as parallel arrays: `job_types`, `job_names`, `job_attempts` (at most),
    `job_leases` in milliseconds, and `job_shared`, whether their functions run in the runner's own process. `suspects`: whether one may be
    taken.
    """
    here = known()
    found = due(here)
    first = select(found.c.intent_id).where(found.c.suspect).limit(_ONE).scalar_subquery()
    claimed = lease(probing.locked(found, *BEFORE, only=or_(~found.c.suspect, found.c.intent_id == first)), here)
    counted = probing.counted(found)
    chosen: Select[Any] = cast_type(Any, select)(*counted.c, *claimed.c)
    # An attempt must be on disk before its function runs: lost, it would neither count nor be known to have perhaps acted.
    nothing = and_(claimed.c.bucket.is_(None), plans.soon().is_not(None))
    durable = case((claimed.c.bucket.is_not(None), true()), else_=nothing)
    return chosen.select_from(counted.outerjoin(claimed, true())).where(durable)


def due(known: Any, *also: str) -> Any:
    """Candidates among the due rows of the jobs that are known here; `also`: other columns of theirs. Suspects are seen when
    the parameter `suspects` says so."""
    mine = exists().where(known.c.key == key(), known.c.shared, outbox.c.attempts < known.c.most)
    suspect = and_(outbox.c.running, outbox.c.cancelled_at_ms.is_(None), ~outbox.c.final_failure, mine)
    wanted = and_(key() == func.any(probing.texts(known.c.key)), or_(~suspect, bindparam("suspects", type_=Boolean())))
    return probing.candidates("job", wanted, *also, suspect.label("suspect"))


def lease(locked: Any, known: Any) -> Any:
    """Take locked rows: begin the next attempt of each, or hold it to be settled."""
    begins = and_(outbox.c.cancelled_at_ms.is_(None), outbox.c.attempts < known.c.most, ~outbox.c.final_failure)
    number = cast(outbox.c.attempts + _ONE, Text)
    unreported = func.concat(literal_column("'attempt '"), number, literal_column("' ended without reporting how'"))
    lost = and_(begins, outbox.c.attempts > _ZERO, outbox.c.ambiguous)
    return (
        update(outbox)
        .values(
            attempts=case((begins, outbox.c.attempts + _ONE), else_=outbox.c.attempts),
            ambiguous=or_(begins, outbox.c.ambiguous),
            maybe_applied=or_(outbox.c.maybe_applied, lost),
            last_error=case((begins, unreported), else_=outbox.c.last_error),
            running=begins,
            waiting=false(),
            due_at_ms=statement_ms() + known.c.lease_ms,
        )
        .where(probing.same(locked), known.c.key == key())
        .returning(
            # What was written of an attempt that begins here is of no use here.
            *(
                case((outbox.c.running, _UNSAID), else_=outbox.c.last_error).label(name) if name == "last_error" else outbox.c[name]
                for name in Claimed._fields[3 : -len(BEFORE)]
            ),
            *(locked.c[name].label(label) for name, label in zip(BEFORE, Claimed._fields[-len(BEFORE) :], strict=True)),
        )
        .cte("claimed")
    )


def known() -> Any:
    """The jobs of the parameters: those that are run here and whose type nobody paused."""
    arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in _KNOWN]
    columns: list[Any] = [Column(name.removeprefix("job_"), kind) for name, kind in _KNOWN]
    given = func.unnest(*arrays).table_valued(*columns, name="given").render_derived()
    mine = or_(pauses.c.target == literal_column("''"), pauses.c.target == given.c["types"])
    paused = exists().where(pauses.c.family == literal_column("'jobs'"), mine)
    joined = func.concat(given.c["types"], literal_column("'/'"), given.c.names, type_=Text()).label("key")
    chosen = select(joined, given.c.attempts.label("most"), given.c.leases.label("lease_ms"), given.c.shared)
    return chosen.where(~paused).cte("known")


_KNOWN: tuple[tuple[str, Any], ...] = (
    ("job_types", Text()),
    ("job_names", Text()),
    ("job_attempts", Integer()),
    ("job_leases", BigInteger()),
    ("job_shared", Boolean()),
)


def key() -> ColumnElement[str]:
    """What names a row's job among all: its actor's type and its own name."""
    # Said as an expression over the row, so the probe can compare it with one array.
    slash: ColumnElement[str] = literal_column("'/'", Text())
    return outbox.c.actor_type.concat(slash).concat(outbox.c.command)


def renew() -> ExecutableReturnsRows:
    """Lengthen the leases of running attempts; returns those that are still running, and whether each was cancelled."""
    rows = source("renew_", (*ATTEMPT, "lease_ms"), True)
    later = func.greatest(outbox.c.due_at_ms, now_ms() + rows.c.lease_ms, type_=BigInteger())
    moved = (
        update(outbox)
        .values(due_at_ms=later)
        .where(held(rows), outbox.c.running)
        .returning(*(outbox.c[name] for name in ATTEMPT), outbox.c.cancelled_at_ms.is_not(None).label("cancelled"))
        .cte("renewed")
    )
    return select(*moved.c)


def release() -> ExecutableReturnsRows:
    """Take back attempts that were claimed and not begun: due at once, as if nobody had claimed them. Returns how many there were."""
    rows = source("free_", (*ATTEMPT, *BEFORE), True)
    moved = (
        update(outbox)
        .values(
            due_at_ms=now_ms(),
            attempts=outbox.c.attempts - case((outbox.c.running, _ONE), else_=_ZERO),
            **{name: rows.c[name] for name in BEFORE},
        )
        .where(held(rows))
        .returning(outbox.c.bucket)
        .cte("released")
    )
    return select(func.count(type_=Integer())).select_from(moved)


def held(rows: Any) -> Any:
    """Whether a row is still the job, and its attempt the last one, that `rows` name."""
    named = and_(*(outbox.c[name] == rows.c[name] for name in ATTEMPT))
    return and_(named, outbox.c.kind == literal_column("'job'"))
