"""Every table of the schema: columns, keys, indexes and the reason for each.

`bucket` is the first column of every per-actor key, so the tables can be split by bucket range later. Receipts, outbox and events
carry no foreign key to the generation row: the check would take a row lock that stops the actor's own turns.
"""

from __future__ import annotations

from sqlalchemy import ARRAY, DDL, BigInteger, Boolean, CheckConstraint, Column, Index, Integer, Table, Text, event, text

from akter.columns import IDENTITY, SCHEMA, SOURCE, Json, metadata
from akter.columns import bucket as _bucket
from akter.columns import identity as _identity
from akter.columns import key as _key
from akter.columns import source as _source

__all__ = [
    "IDENTITY",
    "SCHEMA",
    "SOURCE",
    "Json",
    "metadata",
    "deployment",
    "placements",
    "generations",
    "state",
    "receipts",
    "outbox",
    "dead_letters",
    "events",
    "runners",
    "pauses",
    "operator_audit",
    "coordination",
    "subscriptions",
    "subscription_tags",
    "subscription_cursors",
    "routed_subscriptions",
]

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

_LISTED = ("actor_type", "tenant_id", "actor_id")

# How a column stands in an index that no statement of a turn may use: in another collation than its own. A plan made while a table is
# small, or knows nothing of a rare actor type, takes such an index for as good as the key, and goes on to read all actors of the type.
# Written as an operator class, which stands in the same place, so that Alembic finds columns when it compares, not expressions.
_ASIDE = 'COLLATE "C"'

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
    Index("actor_generations_type", *_LISTED, postgresql_ops=dict.fromkeys(_LISTED, _ASIDE)),
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
    # Whether older code that starts could read what is there; payloads that were never migrated are not in it.
    Index("actor_state_versions", "actor_type", "payload_version", postgresql_where=text("payload_version > 0")),
    comment="akter: one actor's fields as JSON, and how often they were written",
)

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
    # The oldest of a type, for retention.
    Index("actor_receipts_expiry", "actor_type", "expires_at_ms", postgresql_ops={"actor_type": _ASIDE}),
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
    # Whether attempts of the job are limited per actor: other jobs are in none of the two indexes for those, which each claim would write
    # to. What older processes write is true, and found either way.
    Column("capped", Boolean, nullable=False, server_default=text("true")),
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
    # Retention asks whether a row with this id is still pending. A job, which alone has `ready_at_ms`, has no receipt yet.
    Index("actor_outbox_intent", "intent_id", postgresql_where=text("ready_at_ms IS NULL")),
    Index("actor_outbox_versions", "target_type", "kind", "command", "payload_version", postgresql_where=text("payload_version > 0")),
    # The live leases of one capped group.
    Index("actor_outbox_running", *IDENTITY, "command", postgresql_where=text("kind = 'job' AND running AND capped")),
    # The oldest waiting row of one capped group.
    Index(
        "actor_outbox_job_queue",
        *IDENTITY,
        "command",
        "ready_at_ms",
        "intent_id",
        postgresql_where=text("kind = 'job' AND NOT running AND capped"),
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
    Index("actor_events_emitted", "actor_type", "emitted_at_ms", postgresql_ops={"actor_type": _ASIDE}),
    Index("actor_events_versions", "actor_type", "event", "payload_version", postgresql_where=text("payload_version > 0")),
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

subscriptions = Table(
    "actor_subscriptions",
    metadata,
    *_source(),
    Column("subscriber_type", Text, nullable=False),
    Column("subscription", Text, nullable=False),
    # Empty for a routed subscription: which actor gets an event is decided when it is delivered.
    Column("subscriber_id", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("active", Boolean, nullable=False, server_default=text("true")),
    Column("delivered", BigInteger, nullable=False),
    Column("marked", BigInteger, nullable=False, server_default=text("0")),
    Column("due_at_ms", BigInteger),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    Column("gaps", BigInteger, nullable=False, server_default=text("0")),
    Column("gap_through", BigInteger),
    Column("gap_at_ms", BigInteger),
    _key("actor_subscriptions", *SOURCE, "subscriber_type", "subscription", "subscriber_id"),
    _bucket("actor_subscriptions"),
    CheckConstraint("delivered >= 0", name="actor_subscriptions_delivered"),
    CheckConstraint("attempts >= 0", name="actor_subscriptions_attempts"),
    CheckConstraint("(gap_through IS NULL) = (gap_at_ms IS NULL)", name="actor_subscriptions_gap"),
    # The claim probe: followers that are caught up are not in it, nor are types that a runner does not serve in its way.
    Index(
        "actor_subscriptions_due",
        "bucket",
        "subscriber_type",
        "subscription",
        "due_at_ms",
        postgresql_where=text("due_at_ms IS NOT NULL"),
    ),
    comment="akter: who follows an actor, and up to which of its events it was told",
)

subscription_tags = Table(
    "actor_subscription_tags",
    metadata,
    *_source(),
    Column("event", Text, nullable=False),
    Column("followers", Integer, nullable=False),
    _key("actor_subscription_tags", *SOURCE, "event"),
    _bucket("actor_subscription_tags"),
    CheckConstraint("followers > 0", name="actor_subscription_tags_followers"),
    comment="akter: how many follow an event of an actor; what its turns look at, whose cost no number of followers changes",
)

subscription_cursors = Table(
    "actor_subscription_cursors",
    metadata,
    *_identity(),
    Column("subscription", Text, nullable=False),
    Column("source_type", Text, nullable=False),
    Column("source_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("active", Boolean, nullable=False, server_default=text("true")),
    Column("applied", BigInteger, nullable=False, server_default=text("0")),
    _key("actor_subscription_cursors", *IDENTITY, "subscription", "source_type", "source_id"),
    _bucket("actor_subscription_cursors"),
    comment="akter: the last event a subscriber applied of each actor it follows; kept when its receipts are pruned",
)

routed_subscriptions = Table(
    "actor_routed_subscriptions",
    metadata,
    # Empty for one that follows every actor that emits its events.
    Column("source_type", Text, nullable=False),
    Column("subscriber_type", Text, nullable=False),
    Column("subscription", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    _key("actor_routed_subscriptions", "source_type", "subscriber_type", "subscription"),
    comment="akter: the routed subscriptions of the deployment, which every process of their source has to know",
)

# Room for the next version of a row on its own page. A table takes `postgresql_with` only from SQLAlchemy 2.1 on.
for _table in (generations, state, subscriptions, subscription_tags, subscription_cursors):
    event.listen(_table, "after_create", DDL("ALTER TABLE %(fullname)s SET (fillfactor = 80)"))  # type: ignore[no-untyped-call]
