"""Actors, their state, receipts, outbox, dead letters and events; who runs them, what is paused, what operators did.

SQL text rather than `op.create_table`: a naming convention of the application whose own history runs this would rename constraints.
"""

from __future__ import annotations

from alembic import op

revision = "akter_0001"
down_revision = None
branch_labels = ("akter",)
depends_on = None

IDENTITY = """
        bucket integer NOT NULL,
        routing_key bigint NOT NULL,
        tenant_id text NOT NULL,
        actor_type text NOT NULL,
        actor_id text NOT NULL,"""
KEY = "bucket, routing_key, tenant_id, actor_type, actor_id"

TABLES = {
    "actor_deployment": """(
        singleton boolean NOT NULL DEFAULT true,
        protocol integer NOT NULL DEFAULT 1,
        retry_window_ms bigint,
        deployment_id text NOT NULL DEFAULT gen_random_uuid()::text,
        clock_offset_ms bigint NOT NULL DEFAULT 0,
        min_library text,
        CONSTRAINT actor_deployment_pkey PRIMARY KEY (singleton),
        CONSTRAINT actor_deployment_singleton CHECK (singleton),
        CONSTRAINT actor_deployment_retry_window CHECK (retry_window_ms > 0)
    )""",
    "actor_placements": """(
        actor_type text NOT NULL,
        placement text NOT NULL,
        encoding integer NOT NULL,
        state_version integer NOT NULL DEFAULT 0,
        CONSTRAINT actor_placements_pkey PRIMARY KEY (actor_type),
        CONSTRAINT actor_placements_placement CHECK (placement IN ('actor', 'tenant'))
    )""",
    "actor_generations": f"""({IDENTITY}
        generation bigint NOT NULL DEFAULT 0,
        created boolean NOT NULL DEFAULT false,
        event_sequence bigint NOT NULL DEFAULT 0,
        CONSTRAINT actor_generations_pkey PRIMARY KEY ({KEY}),
        CONSTRAINT actor_generations_bucket CHECK (bucket = (routing_key >> 56))
    ) WITH (fillfactor = 80)""",
    "actor_state": f"""({IDENTITY}
        value json NOT NULL,
        version bigint NOT NULL,
        payload_version integer NOT NULL DEFAULT 0,
        CONSTRAINT actor_state_pkey PRIMARY KEY ({KEY}),
        CONSTRAINT actor_state_bucket CHECK (bucket = (routing_key >> 56)),
        CONSTRAINT actor_state_payload_version CHECK (payload_version >= 0)
    ) WITH (fillfactor = 80)""",
    "actor_receipts": f"""({IDENTITY}
        command_id text NOT NULL,
        command text NOT NULL,
        payload_hash text NOT NULL,
        caller_key text NOT NULL,
        outcome text NOT NULL,
        expires_at_ms bigint NOT NULL,
        started_at_ms bigint,
        committed_at_ms bigint NOT NULL,
        CONSTRAINT actor_receipts_pkey PRIMARY KEY ({KEY}, command_id),
        CONSTRAINT actor_receipts_bucket CHECK (bucket = (routing_key >> 56))
    )""",
    "actor_outbox": f"""({IDENTITY}
        intent_id text NOT NULL,
        kind text NOT NULL DEFAULT 'intent',
        timer_key text,
        target_type text NOT NULL,
        target_id text NOT NULL,
        command text NOT NULL,
        payload text NOT NULL,
        payload_version integer NOT NULL DEFAULT 0,
        caller text NOT NULL,
        due_at_ms bigint NOT NULL,
        scheduled_at_ms bigint NOT NULL,
        attempts integer NOT NULL DEFAULT 0,
        last_error text,
        ambiguous boolean NOT NULL DEFAULT false,
        running boolean NOT NULL DEFAULT false,
        maybe_applied boolean NOT NULL DEFAULT false,
        waiting boolean NOT NULL DEFAULT false,
        final_failure boolean NOT NULL DEFAULT false,
        cancelled_at_ms bigint,
        ready_at_ms bigint,
        CONSTRAINT actor_outbox_pkey PRIMARY KEY (bucket, routing_key, intent_id),
        CONSTRAINT actor_outbox_bucket CHECK (bucket = (routing_key >> 56)),
        CONSTRAINT actor_outbox_kind CHECK (kind IN ('intent', 'job', 'feed', 'control')),
        CONSTRAINT actor_outbox_ready CHECK (kind <> 'job' OR ready_at_ms IS NOT NULL),
        CONSTRAINT actor_outbox_payload_version CHECK (payload_version >= 0),
        CONSTRAINT actor_outbox_attempts CHECK (attempts >= 0)
    )""",
    "actor_dead_letters": f"""({IDENTITY}
        job_id text NOT NULL,
        job text NOT NULL,
        payload text NOT NULL,
        payload_version integer NOT NULL DEFAULT 0,
        cause text NOT NULL,
        attempts integer NOT NULL,
        ambiguous boolean NOT NULL,
        dead_at_ms bigint NOT NULL,
        CONSTRAINT actor_dead_letters_pkey PRIMARY KEY (bucket, routing_key, job_id),
        CONSTRAINT actor_dead_letters_bucket CHECK (bucket = (routing_key >> 56))
    )""",
    "actor_events": f"""({IDENTITY}
        sequence bigint NOT NULL,
        event text NOT NULL,
        command_id text NOT NULL,
        value json NOT NULL,
        payload_version integer NOT NULL DEFAULT 0,
        emitted_at_ms bigint NOT NULL,
        CONSTRAINT actor_events_pkey PRIMARY KEY ({KEY}, sequence),
        CONSTRAINT actor_events_bucket CHECK (bucket = (routing_key >> 56)),
        CONSTRAINT actor_events_sequence CHECK (sequence > 0)
    )""",
    "actor_runners": """(
        incarnation_id text NOT NULL,
        label text NOT NULL,
        library text NOT NULL,
        types text[] NOT NULL,
        lanes json NOT NULL,
        started_at_ms bigint NOT NULL,
        heartbeat_at_ms bigint NOT NULL,
        passed_at_ms bigint,
        stopping boolean NOT NULL DEFAULT false,
        CONSTRAINT actor_runners_pkey PRIMARY KEY (incarnation_id)
    )""",
    "actor_pauses": """(
        family text NOT NULL,
        target text NOT NULL DEFAULT '',
        reason text NOT NULL DEFAULT '',
        paused_at_ms bigint NOT NULL,
        CONSTRAINT actor_pauses_pkey PRIMARY KEY (family, target),
        CONSTRAINT actor_pauses_family CHECK (family IN ('intents', 'jobs', 'feed', 'control', 'subscription'))
    )""",
    "actor_operator_audit": """(
        bucket integer NOT NULL,
        audit_id text NOT NULL DEFAULT gen_random_uuid()::text,
        at_ms bigint NOT NULL,
        operator text NOT NULL,
        action text NOT NULL,
        tenant_id text,
        actor_type text,
        actor_id text,
        target text NOT NULL,
        reason text NOT NULL DEFAULT '',
        outcome json NOT NULL,
        CONSTRAINT actor_operator_audit_pkey PRIMARY KEY (bucket, audit_id)
    )""",
}

INDEXES = (
    "INDEX actor_receipts_expiry ON {schema}.actor_receipts (actor_type, expires_at_ms)",
    "INDEX actor_outbox_due_kind ON {schema}.actor_outbox (bucket, kind, due_at_ms)",
    f"UNIQUE INDEX actor_outbox_timer ON {{schema}}.actor_outbox ({KEY}, timer_key) WHERE timer_key IS NOT NULL",
    "INDEX actor_outbox_intent ON {schema}.actor_outbox (intent_id)",
    f"INDEX actor_outbox_running ON {{schema}}.actor_outbox ({KEY}, command) WHERE kind = 'job' AND running",
    f"INDEX actor_outbox_job_queue ON {{schema}}.actor_outbox ({KEY}, command, ready_at_ms, intent_id) WHERE kind = 'job' AND NOT running",
    "INDEX actor_events_emitted ON {schema}.actor_events (actor_type, emitted_at_ms)",
    "INDEX actor_operator_audit_at ON {schema}.actor_operator_audit (at_ms)",
)

COMMENTS = {
    "alembic_version": "the revision this schema is at",
    "actor_deployment": "the one row that processes of other settings are refused by",
    "actor_placements": "how each actor type is routed, so that no process ever routes it otherwise",
    "actor_generations": "the row whose lock lets one turn of an actor run at a time",
    "actor_state": "one actor''s fields as JSON, and how often they were written",
    "actor_receipts": "the outcome of every command, by its id",
    "actor_outbox": "what committed turns asked for and nobody has carried out yet",
    "actor_dead_letters": "jobs that gave up, and whether the outside world may have acted",
    "actor_events": "committed facts of each actor, numbered without gaps",
    "actor_runners": "who runs a Runner; an id is random per start, labels are labels",
    "actor_pauses": "families of work, or types within one, that no runner claims now; an empty target is the whole family",
    "actor_operator_audit": "what operators did, written with what they did; never pruned",
}


def _schema() -> str:
    context = op.get_context()
    return context.dialect.identifier_preparer.quote_schema(context.opts.get("akter_schema", "akter"))


def upgrade() -> None:
    """Create every table, and the one row of the deployment."""
    schema = _schema()
    for table, body in TABLES.items():
        op.execute(f"CREATE TABLE {schema}.{table} {body}")
    for index in INDEXES:
        op.execute("CREATE " + index.format(schema=schema))
    for table, comment in COMMENTS.items():
        op.execute(f"COMMENT ON TABLE {schema}.{table} IS 'akter: {comment}'")
    op.execute(f"INSERT INTO {schema}.actor_deployment DEFAULT VALUES")


def downgrade() -> None:
    """Drop every table with everything in it."""
    schema = _schema()
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {schema}.{table}")
