"""Every exception akter raises by itself; the docstring is the default message and says what to do."""

from __future__ import annotations

from typing import ClassVar


class AkterError(Exception):
    """Something went wrong in akter."""

    retryable: ClassVar[bool] = False
    """Whether the same command, under the same id, may succeed later."""

    def __init__(self, message: str = "", *, command_id: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())
        self.command_id = command_id


class DeclarationError(AkterError, TypeError):
    """A declaration is wrong; the message names the class, the member and the remedy."""


class ConfigurationError(AkterError, ValueError):
    """A setting, an engine or a database cannot be used; the message says what to change."""


class PayloadInvalid(AkterError, ValueError):
    """A value does not fit its declared type, cannot be stored, or is larger than its limit. Nothing was written."""


class UnknownActor(AkterError, LookupError):
    """The actor class is not registered with this Akter: add it to `actors=[...]`."""


class InsideTurn(AkterError, RuntimeError):
    """This may not be done inside a turn. To reach another actor use `self.send(...)`; the turn was rolled back."""


class TurnEnded(AkterError, RuntimeError):
    """An actor was used outside the turn, or the thread, it belongs to. Nothing of that use is kept."""


class Defect(AkterError):
    """A handler, or an access policy, failed with an exception that is not a Rejection. Nothing of it was saved; the cause is chained."""


class NotCreated(AkterError):
    """The actor does not exist yet: call one of its commands declared with `creates=True` first."""


class CommandConflict(AkterError):
    """This command id was already used for another command or other arguments: use a new id."""


class CommandExpired(AkterError):
    """This command id is past its expiry. It says nothing about whether the command ran before."""


class InvalidCommandId(AkterError, ValueError):
    """The command id cannot be used; `code` is malformed, version, window or future."""

    def __init__(self, message: str = "", *, code: str = "malformed", command_id: str | None = None) -> None:
        super().__init__(message, command_id=command_id)
        self.code = code


class Unauthorized(AkterError, PermissionError):
    """The caller may not do this; `code` is access_denied or receipt_access_denied."""

    def __init__(self, message: str = "", *, code: str = "access_denied", command_id: str | None = None) -> None:
        super().__init__(message, command_id=command_id)
        self.code = code


class Unavailable(AkterError):
    """The command could not run now. Nothing is lost: call again with the same command id."""

    retryable: ClassVar[bool] = True


class OutcomeUnknown(Unavailable):
    """The database was lost while it committed, so the command may or may not have run. Ask again under the same command id."""


class UnknownCursor(AkterError, ValueError):
    """This cursor is none of this actor's events: it is malformed, or ahead of the newest one."""


class RetentionGap(AkterError, LookupError):
    """Events after this cursor were pruned. What is left starts after `resume_after`; the gap is from `after` to there."""

    def __init__(self, message: str = "", *, after: str, resume_after: str) -> None:
        super().__init__(
            message
            or f"events after cursor {after} were pruned: what is left starts after cursor {resume_after}, so read on from there, "
            "and take what is missing from somewhere else"
        )
        self.after, self.resume_after = after, resume_after


class SchemaError(AkterError):
    """The database's akter schema cannot be used by this library."""


class SchemaMissing(SchemaError):
    """The database has no akter schema: run `akter migrate`."""


class SchemaOutdated(SchemaError):
    """The database's akter schema is older than this library: run `akter migrate`."""


class SchemaTooNew(SchemaError):
    """The database's akter schema needs a newer akter library: upgrade the package."""


class PayloadTooNew(SchemaError):
    """The database holds payloads that newer code wrote and this code cannot read: deploy that code again."""


class DeploymentMismatch(SchemaError):
    """This process is configured differently from the others that share the database; the message names the setting."""
