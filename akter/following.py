"""What a delivery to a subscriber is of, and when it is acknowledged instead of delivered."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from akter.errors import AkterError
from akter.identity import Address, CommandId

Kind: TypeAlias = Literal["event", "gap", "rejected"]
Reason: TypeAlias = Literal["stale", "unsubscribed", "applied", "not created"]


class Acknowledged(AkterError):
    """There is nothing to do for this delivery, which its source may count as made."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Cursor(NamedTuple):
    """What a subscriber knows of one source: the subscription's epoch, whether it goes on, and the last position applied."""

    epoch: int
    active: bool
    applied: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """One thing to deliver: the event at a `position` of the source, the gap that ends there, or that the cursor is none.

    `issued_at_ms` is when that came about, the same in every try, so the delivery's command id is the same, too.
    """

    subscription: str
    source: Address
    epoch: int
    kind: Kind
    position: int
    issued_at_ms: int
    dynamic: bool

    def command_id(self, subscriber: Address, window_ms: int) -> str:
        """The command id of this delivery, whoever makes it and how often. No caller can have it: callers' ids are of another version."""
        digest = bytearray(hashlib.sha256(self._text(subscriber)).digest()[:16])
        digest[6], digest[8] = digest[6] & 0x0F | 0x80, digest[8] & 0x3F | 0x80
        return str(CommandId(self.issued_at_ms, self.issued_at_ms + window_ms, uuid.UUID(bytes=bytes(digest))))

    def identity(self, subscriber: Address) -> str:
        """What its receipt is bound to: which delivery it is, not how the event is written today."""
        return hashlib.sha256(self._text(subscriber)).hexdigest()

    def check(self, cursor: Cursor | None) -> None:
        """Raise `Acknowledged` when the subscriber has had it, or does not want it any more."""
        if cursor is None:
            if self.dynamic:
                raise Acknowledged("stale")
            return
        if cursor.epoch != self.epoch:
            raise Acknowledged("stale")
        if not cursor.active:
            raise Acknowledged("unsubscribed")
        if self.kind != "rejected" and self.position <= cursor.applied:
            raise Acknowledged("applied")

    def _text(self, subscriber: Address) -> bytes:
        parts = [
            "akter subscription 1",
            *subscriber[2:],
            self.subscription,
            *self.source[2:],
            str(self.epoch),
            self.kind,
            str(self.position),
        ]
        raw = [part.encode() for part in parts]
        return b"".join(len(part).to_bytes(4, "big") + part for part in raw)
