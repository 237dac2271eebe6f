"""Every table of the schema: columns, keys, indexes and the reason for each.

`bucket` is the first column of every per-actor key, so the tables can be split by bucket range later. Receipts, outbox and events
carry no foreign key to the generation row: the check would take a row lock that stops the actor's own turns.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.types import UserDefinedType

SCHEMA = "akter"
"""The placeholder schema of every statement; each `Akter` compiles it to the schema of its own."""

IDENTITY = ("bucket", "routing_key", "tenant_id", "actor_type", "actor_id")
"""The columns that name one actor, in the order every per-actor key starts with."""


class Json(UserDefinedType[str]):
    """JSON text in a `json` column, passed both ways untouched by the engine's own JSON hooks."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Name the column type."""
        return "JSON"

    def column_expression(self, colexpr: Any) -> Any:
        """Read the stored text, not a parsed value."""
        return colexpr.cast(Text)

    def bind_expression(self, bindvalue: Any) -> Any:
        """Send text, and let PostgreSQL check that it is JSON."""
        from sqlalchemy import cast, type_coerce

        return cast(type_coerce(bindvalue, Text), self)


metadata = MetaData(schema=SCHEMA)


def _identity() -> list[Column[Any]]:
    return [
        Column("bucket", Integer, nullable=False),
        Column("routing_key", BigInteger, nullable=False),
        Column("tenant_id", Text, nullable=False),
        Column("actor_type", Text, nullable=False),
        Column("actor_id", Text, nullable=False),
    ]


def _bucket(table: str) -> CheckConstraint:
    return CheckConstraint("bucket = (routing_key >> 56)", name=f"{table}_bucket")


def _key(table: str, *columns: str) -> PrimaryKeyConstraint:
    return PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


deployment = Table(
    "actor_deployment",
    metadata,
    Column("singleton", Boolean, nullable=False, server_default=text("true")),
    Column("protocol", Integer, nullable=False, server_default=text("1")),
    Column("retry_window_ms", BigInteger),
    Column("deployment_id", Text, nullable=False, server_default=text("gen_random_uuid()::text")),
    Column("clock_offset_ms", BigInteger, nullable=False, server_default=text("0")),
    Column("min_library", Text),
    _key("actor_deployment", "singleton"),
    CheckConstraint("singleton", name="actor_deployment_singleton"),
    CheckConstraint("retry_window_ms > 0", name="actor_deployment_retry_window"),
    comment="akter: the one row that processes of other settings are refused by",
)

placements = Table(
    "actor_placements",
    metadata,
    Column("actor_type", Text, nullable=False),
    Column("placement", Text, nullable=False),
    Column("encoding", Integer, nullable=False),
    Column("state_version", Integer, nullable=False, server_default=text("0")),
    _key("actor_placements", "actor_type"),
    CheckConstraint("placement IN ('actor', 'tenant')", name="actor_placements_placement"),
    comment="akter: how each actor type is routed, so that no process ever routes it otherwise",
)

generations = Table(
    "actor_generations",
    metadata,
    *_identity(),
    Column("generation", BigInteger, nullable=False, server_default=text("0")),
    Column("created", Boolean, nullable=False, server_default=text("false")),
    Column("event_sequence", BigInteger, nullable=False, server_default=text("0")),
    _key("actor_generations", *IDENTITY),
    _bucket("actor_generations"),
    # Actors of one type, by their ids, a page at a time.
    Index("actor_generations_type", "actor_type", "tenant_id", "actor_id"),
    comment="akter: the row whose lock lets one turn of an actor run at a time",
)

state = Table(
    "actor_state",
    metadata,
    *_identity(),
    Column("value", Json, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("payload_version", Integer, nullable=False, server_default=text("0")),
    _key("actor_state", *IDENTITY),
    _bucket("actor_state"),
    CheckConstraint("payload_version >= 0", name="actor_state_payload_version"),
    comment="akter: one actor's fields as JSON, and how often they were written",
)

# Room for the next version of a row on its own page. A table takes `postgresql_with` only from SQLAlchemy 2.1 on.
for _table in (generations, state):
    event.listen(_table, "after_create", DDL("ALTER TABLE %(fullname)s SET (fillfactor = 80)"))  # type: ignore[no-untyped-call]

receipts = Table(
    "actor_receipts",
    metadata,
    *_identity(),
    Column("command_id", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("payload_hash", Text, nullable=False),
    Column("caller_key", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("started_at_ms", BigInteger),
    Column("committed_at_ms", BigInteger, nullable=False),
    _key("actor_receipts", *IDENTITY, "command_id"),
    _bucket("actor_receipts"),
    Index("actor_receipts_expiry", "actor_type", "expires_at_ms"),
    comment="akter: the outcome of every command, by its id",
)

outbox = Table(
    "actor_outbox",
    metadata,
    *_identity(),
    Column("intent_id", Text, nullable=False),
    Column("kind", Text, nullable=False, server_default=text("'intent'")),
    Column("timer_key", Text),
    Column("target_type", Text, nullable=False),
    Column("target_id", Text, nullable=False),
    Column("command", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("payload_version", Integer, nullable=False, server_default=text("0")),
    Column("caller", Text, nullable=False),
    Column("due_at_ms", BigInteger, nullable=False),
    Column("scheduled_at_ms", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    Column("ambiguous", Boolean, nullable=False, server_default=text("false")),
    Column("running", Boolean, nullable=False, server_default=text("false")),
    Column("maybe_applied", Boolean, nullable=False, server_default=text("false")),
    Column("waiting", Boolean, nullable=False, server_default=text("false")),
    Column("final_failure", Boolean, nullable=False, server_default=text("false")),
    Column("cancelled_at_ms", BigInteger),
    Column("ready_at_ms", BigInteger),
    _key("actor_outbox", "bucket", "routing_key", "intent_id"),
    _bucket("actor_outbox"),
    CheckConstraint("kind IN ('intent', 'job', 'feed', 'control')", name="actor_outbox_kind"),
    CheckConstraint("kind <> 'job' OR ready_at_ms IS NOT NULL", name="actor_outbox_ready"),
    CheckConstraint("payload_version >= 0", name="actor_outbox_payload_version"),
    CheckConstraint("attempts >= 0", name="actor_outbox_attempts"),
    # The claim probe: `kind` after `bucket`, so a scan for intents never touches jobs that wait for an executor.
    Index("actor_outbox_due_kind", "bucket", "kind", "due_at_ms"),
    # One pending row per key of a sender makes replacing and cancelling idempotent.
    Index("actor_outbox_timer", *IDENTITY, "timer_key", unique=True, postgresql_where=text("timer_key IS NOT NULL")),
    # Retention asks whether a row with this id is still pending.
    Index("actor_outbox_intent", "intent_id"),
    # The live leases of one capped group.
    Index("actor_outbox_running", *IDENTITY, "command", postgresql_where=text("kind = 'job' AND running")),
    # The oldest waiting row of one capped group.
    Index(
        "actor_outbox_job_queue",
        *IDENTITY,
        "command",
        "ready_at_ms",
        "intent_id",
        postgresql_where=text("kind = 'job' AND NOT running"),
    ),
    comment="akter: what committed turns asked for and nobody has carried out yet",
)

dead_letters = Table(
    "actor_dead_letters",
    metadata,
    *_identity(),
    Column("job_id", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("payload_version", Integer, nullable=False, server_default=text("0")),
    Column("cause", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("ambiguous", Boolean, nullable=False),
    Column("dead_at_ms", BigInteger, nullable=False),
    _key("actor_dead_letters", "bucket", "routing_key", "job_id"),
    _bucket("actor_dead_letters"),
    comment="akter: jobs that gave up, and whether the outside world may have acted",
)

events = Table(
    "actor_events",
    metadata,
    *_identity(),
    Column("sequence", BigInteger, nullable=False),
    Column("event", Text, nullable=False),
    Column("command_id", Text, nullable=False),
    Column("value", Json, nullable=False),
    Column("payload_version", Integer, nullable=False, server_default=text("0")),
    Column("emitted_at_ms", BigInteger, nullable=False),
    _key("actor_events", *IDENTITY, "sequence"),
    _bucket("actor_events"),
    CheckConstraint("sequence > 0", name="actor_events_sequence"),
    Index("actor_events_emitted", "actor_type", "emitted_at_ms"),
    comment="akter: committed facts of each actor, numbered without gaps",
)

runners = Table(
    "actor_runners",
    metadata,
    Column("incarnation_id", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("library", Text, nullable=False),
    Column("types", ARRAY(Text), nullable=False),
    Column("lanes", Json, nullable=False),
    Column("started_at_ms", BigInteger, nullable=False),
    Column("heartbeat_at_ms", BigInteger, nullable=False),
    Column("passed_at_ms", BigInteger),
    Column("stopping", Boolean, nullable=False, server_default=text("false")),
    _key("actor_runners", "incarnation_id"),
    comment="akter: who runs a Runner; an id is random per start, labels are labels",
)

pauses = Table(
    "actor_pauses",
    metadata,
    Column("family", Text, nullable=False),
    Column("target", Text, nullable=False, server_default=text("''")),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("paused_at_ms", BigInteger, nullable=False),
    _key("actor_pauses", "family", "target"),
    CheckConstraint("family IN ('intents', 'jobs', 'feed', 'control', 'subscription')", name="actor_pauses_family"),
    comment="akter: families of work, or types within one, that no runner claims now; an empty target is the whole family",
)

operator_audit = Table(
    "actor_operator_audit",
    metadata,
    Column("bucket", Integer, nullable=False),
    Column("audit_id", Text, nullable=False, server_default=text("gen_random_uuid()::text")),
    Column("at_ms", BigInteger, nullable=False),
    Column("operator", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("tenant_id", Text),
    Column("actor_type", Text),
    Column("actor_id", Text),
    Column("target", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("outcome", Json, nullable=False),
    _key("actor_operator_audit", "bucket", "audit_id"),
    Index("actor_operator_audit_at", "at_ms"),
    comment="akter: what operators did, written with what they did; never pruned",
)

coordination = Table(
    "actor_coordination",
    metadata,
    Column("resource", Text, nullable=False),
    Column("taken_at_ms", BigInteger, nullable=False),
    _key("actor_coordination", "resource"),
    comment="akter: maintenance that one process does at a time, and when it began",
)
