"""The history of akter's schema, as Alembic revisions."""
