"""Views for people and reports, in a schema of their own, and an index to list actors by.

Each view joins the placements, so PostgreSQL writes through none of them, whoever asks. It reads with its owner's rights, so a role that
may read the views needs no right on the tables. Columns are only ever added, at the end.
"""

from __future__ import annotations

from alembic import op

from akter.schema_state import views_schema

revision = "akter_0003"
down_revision = "akter_0002"
branch_labels = None
depends_on = None

NEWEST_MS = 253402300800000
"""The year 10000: programs that read the views may know no later date."""

NOW = """floor(extract(epoch FROM statement_timestamp()) * 1000)
    + coalesce((SELECT d.clock_offset_ms FROM {schema}.actor_deployment d), 0)"""


def at(name: str) -> str:
    """A time in milliseconds, and beside it the same as a timestamp."""
    return f"t.{name}, CASE WHEN t.{name} < {NEWEST_MS} THEN to_timestamp(t.{name} / 1000.0) END AS {name.removesuffix('_ms')}"


def view(table: str, columns: str, more: str = "", key: str = "t.routing_key") -> str:
    """A view of a table's rows `t`, whose actor stands in front."""
    return f"""SELECT t.tenant_id AS tenant, t.actor_type AS type, t.actor_id AS id, {key} AS routing_key, p.placement, {columns}
    FROM {{schema}}.{table} t LEFT JOIN {{schema}}.actor_placements p ON p.actor_type = t.actor_type {more}""".rstrip()


WAITS = f"""t.target_type, t.target_id, t.command, t.timer_key AS key, t.attempts, t.last_error, t.due_at_ms >= 9007199254740991 AS parked,
    {at("due_at_ms")}, {at("scheduled_at_ms")}"""

VIEWS = {
    "actors": (
        "every actor that a command ever came to",
        view(
            "actor_generations",
            "t.generation, t.created, t.event_sequence, s.version AS state_version",
            """LEFT JOIN {schema}.actor_state s ON s.bucket = t.bucket AND s.routing_key = t.routing_key AND s.tenant_id = t.tenant_id
    AND s.actor_type = t.actor_type AND s.actor_id = t.actor_id""",
        ),
    ),
    "state": ("the fields of actors", view("actor_state", "t.version, t.payload_version, t.value")),
    "receipts": (
        "the commands that ran, without what they answered",
        view(
            "actor_receipts",
            f"""t.command_id, t.command, t.caller_key, starts_with(t.outcome, '{{"rejected"') AS rejected,
    {at("started_at_ms")}, {at("committed_at_ms")}, {at("expires_at_ms")}""",
        ),
    ),
    "outcomes": ("what commands answered", view("actor_receipts", "t.command_id, t.command, CAST(t.outcome AS json) AS outcome")),
    "events": (
        "what happened to actors",
        view("actor_events", f"t.sequence, t.event, t.command_id, {at('emitted_at_ms')}, t.payload_version, t.value"),
    ),
    "outbox": (
        "everything that waits, by who asked for it; due_at of what a runner holds is the end of its lease",
        view("actor_outbox", f"t.intent_id, t.kind, {WAITS}, t.running, t.caller, t.payload_version, t.payload"),
    ),
    "timers": (
        "messages that wait for their time, or that a key can replace",
        view(
            "actor_outbox",
            f"t.intent_id, {WAITS}, t.payload_version, t.payload",
            f"WHERE t.kind = 'intent' AND (t.timer_key IS NOT NULL OR (t.attempts = 0 AND t.due_at_ms > {NOW}))",
        ),
    ),
    "jobs": (
        "jobs that wait or run",
        view(
            "actor_outbox",
            f"""t.intent_id AS job_id, t.command AS job, t.timer_key AS key, t.attempts, t.last_error, t.running, t.waiting, t.ambiguous,
    t.maybe_applied, t.final_failure, {at("due_at_ms")}, {at("ready_at_ms")}, {at("cancelled_at_ms")}, t.payload_version, t.payload""",
            "WHERE t.kind = 'job'",
        ),
    ),
    "dead_letters": (
        "jobs that gave up",
        view("actor_dead_letters", f"t.job_id, t.job, t.cause, t.attempts, t.ambiguous, {at('dead_at_ms')}, t.payload_version, t.payload"),
    ),
    "operator_audit": (
        "what operators did",
        view(
            "actor_operator_audit",
            f"t.audit_id, t.operator, t.action, t.target, t.reason, {at('at_ms')}, t.outcome",
            """LEFT JOIN {schema}.actor_generations g
    ON g.actor_type COLLATE "C" = t.actor_type AND g.tenant_id COLLATE "C" = t.tenant_id AND g.actor_id COLLATE "C" = t.actor_id""",
            "g.routing_key",
        ),
    ),
}

PLACE = """DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{name}') THEN
    IF NOT has_database_privilege(current_database(), 'CREATE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'the views need the schema {name}, which this role may not create: '
            'let the owner of the database run CREATE SCHEMA "{name}" AUTHORIZATION ' || quote_ident(current_user);
    END IF;
    CREATE SCHEMA "{name}";
END IF; END $$"""


def _schemas() -> tuple[str, str]:
    context = op.get_context()
    name = context.opts.get("akter_schema", "akter")
    return context.dialect.identifier_preparer.quote_schema(name), views_schema(name)


def upgrade() -> None:
    """Create the schema, if need be, and the views; the last one says which there are."""
    schema, views = _schemas()
    # Only listings and the audit's view ask in this collation; a turn's statements, which do not, keep to the primary key.
    columns = ", ".join(f'{column} COLLATE "C"' for column in ("actor_type", "tenant_id", "actor_id"))
    op.execute(f"CREATE INDEX actor_generations_type ON {schema}.actor_generations ({columns})")
    op.execute(PLACE.replace("{name}", views))
    for name, (says, query) in VIEWS.items():
        op.execute(f'CREATE VIEW "{views}".{name} AS {query.replace("{schema}", schema)}')
        op.execute(f"COMMENT ON VIEW \"{views}\".{name} IS 'akter: {says}'")
    listed = ", ".join(f"('{name}', 1, '{says}')" for name, (says, _) in VIEWS.items())
    # It reads no table, so it is still there when somebody dropped the tables' schema by hand.
    op.execute(f'CREATE OR REPLACE VIEW "{views}".views AS SELECT * FROM (VALUES {listed}) AS listed (name, version, says)')
    op.execute(f"COMMENT ON VIEW \"{views}\".views IS 'akter: which views there are'")


def downgrade() -> None:
    """Drop the views; their schema stays, empty."""
    schema, views = _schemas()
    for name in ("views", *reversed(VIEWS)):
        op.execute(f'DROP VIEW "{views}".{name}')
    op.execute(f"DROP INDEX {schema}.actor_generations_type")
