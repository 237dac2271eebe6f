"""Who follows whose events: followers of a source, what its turns look at, what each subscriber applied, and what is routed."""

from __future__ import annotations

from alembic import op

revision = "akter_0004"
down_revision = "akter_0003"
branch_labels = None
depends_on = None

SOURCE = """
        bucket integer NOT NULL,
        routing_key bigint NOT NULL,
        tenant_id text NOT NULL,
        source_type text NOT NULL,
        source_id text NOT NULL,"""
KEY = "bucket, routing_key, tenant_id, source_type, source_id"

TABLES = {
    "actor_subscriptions": f"""({SOURCE}
        subscriber_type text NOT NULL,
        subscription text NOT NULL,
        subscriber_id text NOT NULL,
        events text[] NOT NULL,
        epoch bigint NOT NULL DEFAULT 0,
        active boolean NOT NULL DEFAULT true,
        delivered bigint NOT NULL,
        marked bigint NOT NULL DEFAULT 0,
        due_at_ms bigint,
        attempts integer NOT NULL DEFAULT 0,
        last_error text,
        gaps bigint NOT NULL DEFAULT 0,
        gap_through bigint,
        gap_at_ms bigint,
        CONSTRAINT actor_subscriptions_pkey PRIMARY KEY ({KEY}, subscriber_type, subscription, subscriber_id),
        CONSTRAINT actor_subscriptions_bucket CHECK (bucket = (routing_key >> 56)),
        CONSTRAINT actor_subscriptions_delivered CHECK (delivered >= 0),
        CONSTRAINT actor_subscriptions_attempts CHECK (attempts >= 0),
        CONSTRAINT actor_subscriptions_gap CHECK ((gap_through IS NULL) = (gap_at_ms IS NULL))
    ) WITH (fillfactor = 80)""",
    "actor_subscription_tags": f"""({SOURCE}
        event text NOT NULL,
        followers integer NOT NULL,
        CONSTRAINT actor_subscription_tags_pkey PRIMARY KEY ({KEY}, event),
        CONSTRAINT actor_subscription_tags_bucket CHECK (bucket = (routing_key >> 56)),
        CONSTRAINT actor_subscription_tags_followers CHECK (followers > 0)
    ) WITH (fillfactor = 80)""",
    "actor_subscription_cursors": """(
        bucket integer NOT NULL,
        routing_key bigint NOT NULL,
        tenant_id text NOT NULL,
        actor_type text NOT NULL,
        actor_id text NOT NULL,
        subscription text NOT NULL,
        source_type text NOT NULL,
        source_id text NOT NULL,
        epoch bigint NOT NULL DEFAULT 0,
        active boolean NOT NULL DEFAULT true,
        applied bigint NOT NULL DEFAULT 0,
        CONSTRAINT actor_subscription_cursors_pkey
            PRIMARY KEY (bucket, routing_key, tenant_id, actor_type, actor_id, subscription, source_type, source_id),
        CONSTRAINT actor_subscription_cursors_bucket CHECK (bucket = (routing_key >> 56))
    ) WITH (fillfactor = 80)""",
    "actor_routed_subscriptions": """(
        source_type text NOT NULL,
        subscriber_type text NOT NULL,
        subscription text NOT NULL,
        events text[] NOT NULL,
        CONSTRAINT actor_routed_subscriptions_pkey PRIMARY KEY (source_type, subscriber_type, subscription)
    )""",
}

DUE = """
    CREATE INDEX actor_subscriptions_due ON {schema}.actor_subscriptions (bucket, subscriber_type, subscription, due_at_ms)
    WHERE due_at_ms IS NOT NULL"""

COMMENTS = {
    "actor_subscriptions": "who follows an actor, and up to which of its events it was told",
    "actor_subscription_tags": "how many follow an event of an actor; what its turns look at, whose cost no number of followers changes",
    "actor_subscription_cursors": "the last event a subscriber applied of each actor it follows; kept when its receipts are pruned",
    "actor_routed_subscriptions": "the routed subscriptions of the deployment, which every process of their source has to know",
}


def _schema() -> str:
    context = op.get_context()
    return context.dialect.identifier_preparer.quote_schema(context.opts.get("akter_schema", "akter"))


def upgrade() -> None:
    """Create the tables."""
    schema = _schema()
    for table, body in TABLES.items():
        op.execute(f"CREATE TABLE {schema}.{table} {body}")
    op.execute(DUE.format(schema=schema))
    for table, comment in COMMENTS.items():
        op.execute(f"COMMENT ON TABLE {schema}.{table} IS 'akter: {comment}'")


def downgrade() -> None:
    """Drop them; whoever follows an actor forgets it."""
    schema = _schema()
    for table in reversed(TABLES):
        op.execute(f"DROP TABLE {schema}.{table}")
