"""${message}.

Plain DDL: no imports from akter, no reflection, no reading of rows, no CONCURRENTLY, new columns with constant defaults.
A change that older libraries cannot live with also sets `min_library` in `actor_deployment`.
"""

from __future__ import annotations

from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def _schema() -> str:
    context = op.get_context()
    return context.dialect.identifier_preparer.quote_schema(context.opts.get("akter_schema", "akter"))


def upgrade() -> None:
    """Go one revision forward."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Go one revision back."""
    ${downgrades if downgrades else "pass"}
