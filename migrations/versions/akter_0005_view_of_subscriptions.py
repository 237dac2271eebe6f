"""A view of who follows whom, and how far behind."""

from __future__ import annotations

from alembic import op

from akter.schema_state import views_schema

revision = "akter_0005"
down_revision = "akter_0004"
branch_labels = None
depends_on = None

NEWEST_MS = 253402300800000
"""As in akter_0003."""

QUERY = f"""SELECT t.tenant_id AS tenant, t.source_type AS type, t.source_id AS id, t.routing_key, p.placement,
    t.subscriber_type, t.subscription, t.subscriber_id, t.events, t.active, t.delivered, g.event_sequence - t.delivered AS behind,
    t.attempts, t.last_error, t.gaps,
    t.due_at_ms, CASE WHEN t.due_at_ms < {NEWEST_MS} THEN to_timestamp(t.due_at_ms / 1000.0) END AS due_at
    FROM {{schema}}.actor_subscriptions t LEFT JOIN {{schema}}.actor_placements p ON p.actor_type = t.source_type
    LEFT JOIN {{schema}}.actor_generations g ON g.bucket = t.bucket AND g.routing_key = t.routing_key AND g.tenant_id = t.tenant_id
    AND g.actor_type = t.source_type AND g.actor_id = t.source_id"""

SAYS = "who follows an actor, and up to which of its events it was told"

BEFORE = """('actors', 1, 'every actor that a command ever came to'), ('state', 1, 'the fields of actors'),
    ('receipts', 1, 'the commands that ran, without what they answered'), ('outcomes', 1, 'what commands answered'),
    ('events', 1, 'what happened to actors'),
    ('outbox', 1, 'everything that waits, by who asked for it; due_at of what a runner holds is the end of its lease'),
    ('timers', 1, 'messages that wait for their time, or that a key can replace'), ('jobs', 1, 'jobs that wait or run'),
    ('dead_letters', 1, 'jobs that gave up'), ('operator_audit', 1, 'what operators did')"""
"""What akter_0003 lists."""


def _schemas() -> tuple[str, str]:
    context = op.get_context()
    name = context.opts.get("akter_schema", "akter")
    return context.dialect.identifier_preparer.quote_schema(name), views_schema(name)


def upgrade() -> None:
    """Create the view, and list it."""
    schema, views = _schemas()
    op.execute(f'CREATE VIEW "{views}".subscriptions AS {QUERY.replace("{schema}", schema)}')
    op.execute(f"COMMENT ON VIEW \"{views}\".subscriptions IS 'akter: {SAYS}'")
    op.execute(_listed(views, f"{BEFORE}, ('subscriptions', 1, '{SAYS}')"))


def downgrade() -> None:
    """Drop it again."""
    _, views = _schemas()
    op.execute(_listed(views, BEFORE))
    op.execute(f'DROP VIEW "{views}".subscriptions')


def _listed(views: str, rows: str) -> str:
    return f'CREATE OR REPLACE VIEW "{views}".views AS SELECT * FROM (VALUES {rows}) AS listed (name, version, says)'
