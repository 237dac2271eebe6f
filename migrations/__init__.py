"""The history of the akter schema, as an Alembic script directory."""
