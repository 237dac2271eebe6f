"""Durable actors on the PostgreSQL you already have.

A class made from `Actor`, with `@command` and `@query`, is given to an `Akter` and called: `app.actor(Order, "o-1").place(...)`. A `Runner`
carries out what committed commands asked for. Beside what is here, `akter.errors` has every error, `akter.testing` what tests need,
`akter.operating` what operators do, and `akter.embedded` a PostgreSQL of one's own.
"""

from __future__ import annotations

from akter.actor import Actor
from akter.app import Akter
from akter.caller import Access, Anonymous, System, User
from akter.command import command, query
from akter.cron import cron
from akter.errors import (
    AkterError,
    CommandConflict,
    CommandExpired,
    Defect,
    DeploymentMismatch,
    InsideTurn,
    InvalidCommandId,
    NotCreated,
    OutcomeUnknown,
    PayloadInvalid,
    PayloadTooNew,
    RetentionGap,
    SchemaMissing,
    SchemaOutdated,
    Unauthorized,
    Unavailable,
    UnknownCursor,
)
from akter.event import Entry
from akter.identity import CommandId
from akter.job import Attempt, Cancellation, DeadLetter, Job, NotApplied, Retry
from akter.payload import Event, Payload, field
from akter.rejection import Rejection
from akter.runner import Runner
from akter.subscription import CursorRejected, Delivered, Gap, subscription

__version__ = "0.1.0"

__all__ = [
    # declaring
    "Actor",
    "command",
    "query",
    "cron",
    "subscription",
    "Delivered",
    "Gap",
    "CursorRejected",
    "field",
    "Payload",
    "Event",
    "Entry",
    "Rejection",
    "Job",
    "Retry",
    "NotApplied",
    "Attempt",
    "DeadLetter",
    "Cancellation",
    # running
    "Akter",
    "Runner",
    "CommandId",
    "Access",
    "User",
    "Anonymous",
    "System",
    # what can go wrong
    "AkterError",
    "CommandConflict",
    "CommandExpired",
    "Defect",
    "DeploymentMismatch",
    "InsideTurn",
    "InvalidCommandId",
    "NotCreated",
    "OutcomeUnknown",
    "PayloadInvalid",
    "PayloadTooNew",
    "RetentionGap",
    "SchemaMissing",
    "SchemaOutdated",
    "Unauthorized",
    "Unavailable",
    "UnknownCursor",
]
