"""Who swept what, and when: a row for each actor type, whose lock lets one batch of a type be pruned at a time."""

from __future__ import annotations

from alembic import op

revision = "akter_0002"
down_revision = "akter_0001"
branch_labels = None
depends_on = None


def _schema() -> str:
    context = op.get_context()
    return context.dialect.identifier_preparer.quote_schema(context.opts.get("akter_schema", "akter"))


def upgrade() -> None:
    """Create the table."""
    schema = _schema()
    op.execute(
        f"""CREATE TABLE {schema}.actor_coordination (
        resource text NOT NULL,
        taken_at_ms bigint NOT NULL,
        CONSTRAINT actor_coordination_pkey PRIMARY KEY (resource)
    )"""
    )
    op.execute(f"COMMENT ON TABLE {schema}.actor_coordination IS 'akter: maintenance that one process does at a time, and when it began'")


def downgrade() -> None:
    """Drop it; what it holds is made again."""
    op.execute(f"DROP TABLE {_schema()}.actor_coordination")
