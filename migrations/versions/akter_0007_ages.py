"""The ages of receipts and events, in another collation than the columns': only retention asks in it, and a turn keeps to the primary key.

A plan that was made while there were few rows of an actor type took such an index for as good as the key, and went on reading all of
the type's receipts for one.
"""

from __future__ import annotations

from alembic import op

revision = "akter_0007"
down_revision = "akter_0006"
branch_labels = None
depends_on = None

INDEXES = {
    "actor_receipts_expiry": ("actor_receipts", "expires_at_ms"),
    "actor_events_emitted": ("actor_events", "emitted_at_ms"),
}


def _schema() -> str:
    context = op.get_context()
    return context.dialect.identifier_preparer.quote_schema(context.opts.get("akter_schema", "akter"))


def upgrade() -> None:
    """Make the indexes anew, in the collation C."""
    _replace('actor_type COLLATE "C"')


def downgrade() -> None:
    """Make them as they were."""
    _replace("actor_type")


def _replace(actor_type: str) -> None:
    schema = _schema()
    for name, (table, age) in INDEXES.items():
        op.execute(f"DROP INDEX {schema}.{name}")
        op.execute(f"CREATE INDEX {name} ON {schema}.{table} ({actor_type}, {age})")
