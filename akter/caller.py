"""Who asks: the callers that receipts and access policies tell apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec

from akter.errors import AkterError, Defect
from akter.identity import Address, address, check_name


@dataclass(frozen=True, slots=True)
class User:
    """A person or a client that your application authenticated; `subject` is at most 512 bytes."""

    subject: str

    def __post_init__(self) -> None:
        check_name(self.subject, "a caller's subject")

    @property
    def key(self) -> str:
        """The stable identity that receipts are bound to."""
        return _key("User", self.subject)


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Somebody your application did not authenticate."""

    @property
    def key(self) -> str:
        """The stable identity that receipts are bound to."""
        return _key("Anonymous")


class Minted(NamedTuple):
    """What a minted child's id was made from, beside its parent and its type."""

    command_id: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class System:
    """Code of the deployment itself: a process, or an actor that sent a message."""

    source: Literal["process", "actor", "timer", "job", "cron", "subscription"] = "process"
    ref: Address | None = None
    on_behalf_of: User | Anonymous | None = None
    mint: Minted | None = None
    """Which child of `ref` the message creates; believed only of a committed row that `ref` wrote."""

    @property
    def key(self) -> str:
        """The stable identity that receipts are bound to."""
        if self == _PROCESS:
            return _PROCESS_KEY
        ref = list(self.ref[2:]) if self.ref else None
        behalf = json.loads(self.on_behalf_of.key) if self.on_behalf_of else None
        return _key("System", self.source, ref, behalf)


Caller: TypeAlias = User | Anonymous | System


def _key(*parts: object) -> str:
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


_PROCESS, _PROCESS_KEY = System(), _key("System", "process", None, None)

AccessKind: TypeAlias = Literal["command", "query", "events"]


@dataclass(frozen=True, slots=True)
class Access:
    """What an access policy is asked: may `caller` do this? `member` is the command's or query's name, or that of an event to read."""

    caller: Caller
    tenant: str
    actor: str
    id: str
    member: str
    kind: AccessKind


Policy: TypeAlias = Callable[[Access], bool]


def allowed(access: Access, *policies: Policy | None, ran: bool = False) -> bool:
    """Every given policy must allow; with none, only the deployment's own code may.

    `ran`: the command may have run by now. Raises `Defect` when a policy fails.
    """
    given = [policy for policy in policies if policy is not None]
    if not given:
        return isinstance(access.caller, System)
    try:
        return all(policy(access) is True for policy in given)
    except AkterError:
        raise
    except Exception as problem:
        so = "the answer is withheld, and what the command did stays" if ran else "the call was refused, and nothing was written"
        # The problem's own words may quote what the policy knows of the caller.
        raise Defect(f"the access policy for {access.actor}.{access.member} raised {type(problem).__name__}: {so}") from problem


class _Stored(msgspec.Struct, omit_defaults=True):
    source: str
    ref: tuple[str, str, str] | None = None
    on_behalf_of: tuple[str, ...] | None = None
    mint: tuple[str, int] | None = None


def to_json(caller: System) -> str:
    """The stored form of who sent a message or job."""
    behalf = caller.on_behalf_of
    principal = None if behalf is None else ("User", behalf.subject) if isinstance(behalf, User) else ("Anonymous",)
    ref = None if caller.ref is None else (caller.ref.tenant_id, caller.ref.actor_type, caller.ref.actor_id)
    return msgspec.json.encode(_Stored(caller.source, ref, principal, caller.mint)).decode()


_read = msgspec.json.Decoder(_Stored).decode


def from_json(text: str) -> System:
    """Who sent a message or job, from its stored form; raises `msgspec.DecodeError` when it cannot be read."""
    stored = _read(text)
    behalf: User | Anonymous | None = None
    if stored.on_behalf_of is not None:
        behalf = User(stored.on_behalf_of[1]) if stored.on_behalf_of[0] == "User" else Anonymous()
    ref = None if stored.ref is None else address("actor", *stored.ref)
    return System(cast(Any, stored.source), ref, behalf, None if stored.mint is None else Minted(*stored.mint))


def may_read(caller: Caller, key: str) -> bool:
    """Whether a caller may see the outcome of a command that the caller of this key made."""
    if isinstance(caller, System) or caller.key == key:
        return True
    parts = json.loads(key)
    return bool(parts[0] == "System" and parts[-1] == json.loads(caller.key))
