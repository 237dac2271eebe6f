"""One command on its way to its turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from akter.caller import Caller
from akter.command import Command
from akter.definition import Definition
from akter.errors import CommandConflict, CommandExpired, InvalidCommandId, NotCreated, Unauthorized
from akter.following import Acknowledged, Following
from akter.identity import Address, CommandId, is_child_id, shown_id
from akter.store.turn import Admitted
from akter.watch import NO_HOP, NO_WATCH, Hop, Watch


@dataclass(slots=True, kw_only=True)
class Call:
    """A command with its arguments, id and caller; it is the same in every retry.

    `trusted`: a committed message. `converted`: older code wrote its arguments. `proved`: it comes from the turn that
    minted the actor.
    `hop` watches the message it came by, `watch` the try it is in. `grace_ms`: how long past its id's expiry a retry may still run,
    because the first try was in time; receipts are kept at least as long.
    `tick`: a schedule sent it, and its code may have changed since. `following` says which event a subscription is told.
    """

    definition: Definition
    command: Command
    address: Address
    id: str
    minted: CommandId | None
    arguments: Any
    payload_hash: str
    caller: Caller
    expires_at_ms: int | None = None
    trusted: bool = False
    converted: bool = False
    proved: bool = False
    retried: bool = False
    grace_ms: int = 0
    tick: bool = False
    following: Following | None = None
    hop: Hop = NO_HOP
    watch: Watch = NO_WATCH

    def check_receipt(self, found: Admitted) -> None:
        """Refuse another use of this id; raises `Unauthorized` or `CommandConflict`."""
        if found.caller_key != self.caller.key:
            raise Unauthorized("this command id belongs to another caller", code="receipt_access_denied", command_id=self.id)
        if self.tick:
            return
        known = self.definition.names.get(found.command or "")
        # The hash of converted arguments is not the one that the code which wrote them made of them; the message's id is enough.
        if known is not self.command or (found.payload_hash != self.payload_hash and not self.converted):
            raise CommandConflict(
                f"the command id {shown_id(self.id)!r} was used for {found.command} "
                f"{'with other arguments' if known is self.command else f'and now for {self.command.name}'}: use a new id",
                command_id=self.id,
            )

    def check_admission(self, found: Admitted) -> None:
        """Refuse a command that may not run now.

        Raises `NotCreated`, `Unauthorized` for a minted child of somebody else's, and `Acknowledged` for what a subscriber does not want.
        """
        if self.following is not None:
            self.following.check(found.cursor)
        if self.definition.creating and not found.created and not self.command.mark.creates:
            if self.following is not None:
                raise Acknowledged("not created")
            creating = ", ".join(sorted(name for name, member in self.definition.members.items() if member.mark.creates))
            raise NotCreated(f"{self.address} does not exist yet: it is created by {creating}", command_id=self.id)
        if self.command.mark.creates and not self.proved and is_child_id(self.address.actor_id, self.address.actor_type):
            raise Unauthorized(
                f"{self.command.where}: {self.address.actor_id} is the id of a minted child, which only the turn that minted it creates: "
                "use app.new(...) for an actor of your own",
                command_id=self.id,
            )

    def check_in_time(self, now_ms: int) -> None:
        """Refuse an id whose time has passed, or has not come, as `check_expiry` does.

        A retry whose first try was in time may come a little later, but not so late that its receipt may have been pruned.
        """
        if not self.retried:
            self.check_expiry(now_ms)
        elif self.minted is not None and now_ms >= self.minted.expires_at_ms + self.grace_ms:
            raise CommandExpired(command_id=self.id)

    def check_expiry(self, now_ms: int) -> None:
        """Refuse an id whose time has passed, or has not come; raises `CommandExpired` or `InvalidCommandId`."""
        if self.minted is None:
            return
        if now_ms >= self.minted.expires_at_ms:
            raise CommandExpired(command_id=self.id)
        if self.minted.issued_at_ms > now_ms:
            raise InvalidCommandId("this command id was issued in the future", code="future", command_id=self.id)
