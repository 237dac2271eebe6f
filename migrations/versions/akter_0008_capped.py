"""Jobs without a limit per actor leave the indexes that only limited ones are found by: each claim wrote to all of them."""

from __future__ import annotations

from alembic import op

revision = "akter_0008"
down_revision = "akter_0007"
branch_labels = None
depends_on = None

KEY = "bucket, routing_key, tenant_id, actor_type, actor_id"

# Of each index: its columns, the rows in it until now, and from now on.
INDEXES = {
    "actor_outbox_intent": ("intent_id", "", "WHERE ready_at_ms IS NULL"),
    "actor_outbox_running": (f"{KEY}, command", "WHERE kind = 'job' AND running", "WHERE kind = 'job' AND running AND capped"),
    "actor_outbox_job_queue": (
        f"{KEY}, command, ready_at_ms, intent_id",
        "WHERE kind = 'job' AND NOT running",
        "WHERE kind = 'job' AND NOT running AND capped",
    ),
}


def _schema() -> str:
    context = op.get_context()
    return context.dialect.identifier_preparer.quote_schema(context.opts.get("akter_schema", "akter"))


def upgrade() -> None:
    """Add the column, and make the indexes again."""
    # True for what is there, and for what older processes write: they do not say which jobs have a limit.
    op.execute(f"ALTER TABLE {_schema()}.actor_outbox ADD COLUMN capped boolean NOT NULL DEFAULT true")
    _make(2)


def downgrade() -> None:
    """Make the indexes as they were, and drop the column."""
    _make(1)
    op.execute(f"ALTER TABLE {_schema()}.actor_outbox DROP COLUMN capped")


def _make(which: int) -> None:
    schema = _schema()
    for name, index in INDEXES.items():
        op.execute(f"DROP INDEX {schema}.{name}")
        op.execute(f"CREATE INDEX {name} ON {schema}.actor_outbox ({index[0]}) {index[which]}".rstrip())
