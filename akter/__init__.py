"""Durable actors on the PostgreSQL you already have."""

__version__ = "0.1.0"
