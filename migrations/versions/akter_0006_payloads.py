"""Where payloads of a later version than the first are: a process that starts asks whether it can read them."""

from __future__ import annotations

from alembic import op

revision = "akter_0006"
down_revision = "akter_0005"
branch_labels = None
depends_on = None

# Partial: what was never migrated, which is nearly everything, is in none of them and costs nothing.
INDEXES = {
    "actor_state_versions": "actor_state (actor_type, payload_version)",
    "actor_events_versions": "actor_events (actor_type, event, payload_version)",
    "actor_outbox_versions": "actor_outbox (target_type, kind, command, payload_version)",
}


def _schema() -> str:
    context = op.get_context()
    return context.dialect.identifier_preparer.quote_schema(context.opts.get("akter_schema", "akter"))


def upgrade() -> None:
    """Create the indexes."""
    schema = _schema()
    for name, columns in INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON {schema}.{columns} WHERE payload_version > 0")


def downgrade() -> None:
    """Drop them."""
    schema = _schema()
    for name in INDEXES:
        op.execute(f"DROP INDEX {schema}.{name}")
