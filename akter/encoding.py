"""Only a UTF8 database holds whatever actors say; any other is refused before something is written into it."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, PoolProxiedConnection

from akter.errors import ConfigurationError

_REMEDY = "akter needs a UTF8 database, createdb --encoding=UTF8 --template=template0"


def refuse(server: str) -> None:
    """Raise `ConfigurationError` for a database of another encoding than UTF8."""
    if server != "UTF8":
        raise ConfigurationError(f"the database is encoded in {server}: {_REMEDY}")


def opened(engine: Engine) -> Connection:
    """A connection of the engine; raises `ConfigurationError` for a database without an encoding, whose texts come back as bytes."""
    try:
        return engine.connect()
    except TypeError as problem:
        _explain(problem)
        raise


def pooled(engine: Engine) -> PoolProxiedConnection:
    """A connection of the engine's pool, without the engine's options and listeners; raises as `opened` does."""
    try:
        return engine.raw_connection()
    except TypeError as problem:
        _explain(problem)
        raise


def _explain(problem: TypeError) -> None:
    # SQLAlchemy reads the server's version as text before anybody can ask for the encoding.
    if "bytes-like" in str(problem):
        raise ConfigurationError(f"the database answers in bytes, as one encoded in SQL_ASCII does: {_REMEDY}") from problem
