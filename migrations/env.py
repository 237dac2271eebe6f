"""Alembic's way to the akter schema, for `akter migrate` and for the `alembic` command alike.

The schema is, in this order: what the caller of `akter.schema` said, `-x schema=NAME`, `schema = NAME` in the ini section, AKTER_SCHEMA.
"""

from __future__ import annotations

import os

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from akter import schema
from akter.engine import engine_for
from akter.errors import AkterError
from akter.schema_lock import WAIT, connected, exclusively

config = context.config
name: str = (
    config.attributes.get("schema")
    or context.get_x_argument(as_dictionary=True).get("schema")
    or config.get_alembic_option("schema")
    or os.environ.get("AKTER_SCHEMA")
    or "akter"
)


def migrate(connection: Connection) -> None:
    """Run the command's revisions while no other migration of this schema runs."""

    def work() -> None:
        context.configure(connection=connection, **schema.options(name))
        changes = not context.get_context().opts.get("dont_mutate")
        if changes:
            config.attributes["before"] = schema.prepare(connection, name)
        with context.begin_transaction():
            context.run_migrations()
        if changes:
            config.attributes["after"] = schema.finish(connection, name)

    exclusively(connection, name, work, wait=config.attributes.get("wait", WAIT))


if context.is_offline_mode():
    context.configure(dialect_name="postgresql", transactional_ddl="schema" not in config.attributes, **schema.options(name))
    with context.begin_transaction():
        if context.get_context().get_current_revision() is None:
            context.execute(schema.creation(name))
        context.run_migrations()
elif (given := config.attributes.get("connection")) is not None:
    migrate(given)
else:
    try:
        engine, _ = engine_for(config.get_alembic_option("sqlalchemy.url"), pool_size=1)
        with connected(engine) as own:
            migrate(own)
        engine.dispose()
    except AkterError as error:
        raise CommandError(str(error)) from error
