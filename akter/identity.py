"""Names of things: where an actor lives, and the ids that make a command happen once."""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import msgspec

from akter.errors import InvalidCommandId, PayloadInvalid

Placement = Literal["actor", "tenant"]

ENCODING = 1
"""Version of the text that routing keys are hashed from; changing it would move every stored actor."""

MAX_NAME_BYTES = 512
"""The longest actor id, tenant or type name in UTF-8 bytes: they are parts of index keys."""

SINGLETON_ID = "singleton"
DEFAULT_TENANT = "default"


class Address(NamedTuple):
    """One actor, as every statement names it."""

    bucket: int
    routing_key: int
    tenant_id: str
    actor_type: str
    actor_id: str

    def __str__(self) -> str:
        tenant = "" if self.tenant_id == DEFAULT_TENANT else f"{self.tenant_id}:"
        return f"{tenant}{self.actor_type}/{self.actor_id}"


def routing_key(placement: Placement, tenant: str, kind: str, id: str) -> int:
    """Hash an actor to a signed 64-bit number that never changes between processes and versions."""
    parts: list[object] = [ENCODING, placement, tenant] if placement == "tenant" else [ENCODING, placement, tenant, kind, id]
    text = msgspec.json.encode(parts)
    return int.from_bytes(hashlib.blake2b(text).digest()[:8], "big", signed=True)


def address(placement: Placement, tenant: str, kind: str, id: str) -> Address:
    """Where the actor `kind`/`id` of a tenant lives."""
    key = routing_key(placement, tenant, kind, id)
    return Address(key >> 56, key, tenant, kind, id)


def check_name(value: object, what: str, limit: int = MAX_NAME_BYTES) -> str:
    """Return `value` when it can be stored as a name of `what`, else raise `PayloadInvalid`."""
    if not isinstance(value, str):
        raise PayloadInvalid(f"{what} must be text, not {type(value).__name__}: pass str(...)")
    if not value:
        raise PayloadInvalid(f"{what} must not be empty")
    if "\0" in value:
        raise PayloadInvalid(f"{what} must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise PayloadInvalid(f"{what} must not contain a lone surrogate") from None
    if size > limit:
        raise PayloadInvalid(f"{what} is {size} bytes long; the limit is {limit}")
    # Members of a str enum, and other subclasses, are stored as the plain text they are.
    return value if type(value) is str else str.__str__(value)


_COMMAND_ID = re.compile(r"v1\.(0|[1-9][0-9]{0,14})\.(0|[1-9][0-9]{0,14})\.([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class CommandId:
    """An id minted by akter. It carries its issue and expiry time, so it stays refused after its receipt was pruned.

    Times are epoch milliseconds of the database's clock. `str(id)` is what is stored; `CommandId.parse` reads it back.
    """

    issued_at_ms: int
    expires_at_ms: int
    unique: uuid.UUID

    def __str__(self) -> str:
        return f"v1.{self.issued_at_ms}.{self.expires_at_ms}.{self.unique}"

    @staticmethod
    def mint(now_ms: int, window_ms: int) -> CommandId:
        """Make a new id, valid for `window_ms` from `now_ms`."""
        return CommandId(now_ms, now_ms + window_ms, uuid.uuid4())

    @staticmethod
    def parse(text: str) -> CommandId:
        """Read an id from its text; raises `InvalidCommandId` with code `version` or `malformed`."""
        if not isinstance(cast(object, text), str):
            raise InvalidCommandId(f"a command id is text, not {type(text).__name__}")
        if match := _COMMAND_ID.fullmatch(text):
            unique = uuid.UUID(match[3])
            if unique.version == 4 and unique.variant == uuid.RFC_4122:
                return CommandId(int(match[1]), int(match[2]), unique)
        if re.match(r"v(?!1\.)[0-9]+\.", text):
            raise InvalidCommandId("this command id is of another version of akter", code="version", command_id=text)
        raise InvalidCommandId("this is not a command id minted by akter", code="malformed", command_id=text)


def is_minted(text: str) -> bool:
    """Whether a text is the text of a minted id."""
    try:
        return bool(CommandId.parse(text))
    except InvalidCommandId:
        return False


def own_id(scope: str, id: object) -> str:
    """The stored form of a caller's own id, `u:<scope>:<id>`: no text can make it equal another scope's or a minted id.

    `id` is text of 1 to 255 characters without NUL or lone surrogates; raises `InvalidCommandId` for any other.
    """
    if not isinstance(id, str) or not 1 <= len(id) <= 255:
        raise InvalidCommandId("a command id of your own is text of 1 to 255 characters")
    try:
        id, scope = check_name(id, "a command id", 4 * 255), scope and check_name(scope, "a command id's scope", 4096)
    except PayloadInvalid as problem:
        raise InvalidCommandId(str(problem)) from None
    safe = scope.replace("%", "%25").replace(":", "%3A").replace("~", "%7E")
    if len(safe.encode()) > 200:
        safe = "~" + hashlib.blake2b(scope.encode(), digest_size=16).hexdigest()
    return f"u:{safe}:{id}"


def shown_id(id: str) -> str:
    """A stored command id as logs and spans show it: without its scope, which may name the caller."""
    return id.split(":", 2)[2] if id.startswith("u:") and id.count(":") > 1 else id


def check_admissible(id: CommandId, window_ms: int, now_ms: int) -> None:
    """Refuse an id that another retry window or a clock of the future made; raises `InvalidCommandId`."""
    if id.expires_at_ms - id.issued_at_ms != window_ms:
        raise InvalidCommandId("this command id was made for another retry window", code="window", command_id=str(id))
    if id.issued_at_ms > now_ms:
        raise InvalidCommandId("this command id was issued in the future", code="future", command_id=str(id))


_CHILD = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def child_id(parent: Address, command_id: str, ordinal: int, kind: str) -> str:
    """The id of the child that a command of `parent` mints, `ordinal` counting from 0: a version 8 UUID, the same in every run of it.

    Its last four bytes are a check of the others and the child's type, which tells a minted id from a name that looks like one.
    """
    # The text of a singleton's id is akter's own, and none that an application gave.
    named = "" if parent.actor_id == SINGLETON_ID else parent.actor_id
    raw = bytearray(_digest("akter.mint.1", parent.tenant_id, parent.actor_type, named, command_id, str(ordinal), kind)[:12])
    raw[6], raw[8] = raw[6] & 0x0F | 0x80, raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw) + _check(raw.hex(), kind)))


def is_child_id(id: str, kind: str) -> bool:
    """Whether an actor id of this type is a minted child's, and no name that an application gave."""
    return _CHILD.fullmatch(id) is not None and id.replace("-", "")[24:] == _check(id.replace("-", "")[:24], kind).hex()


def _check(start: str, kind: str) -> bytes:
    return _digest("akter.mint.1.check", start, kind)[:4]


def _digest(*fields: str) -> bytes:
    encoded = [text.encode() for text in fields]
    return hashlib.sha256(b"".join(len(text).to_bytes(4, "big") + text for text in encoded)).digest()


def new_id() -> str:
    """A random actor id that sorts by time, a version 7 UUID."""
    now = int(time.time() * 1000)
    rest = uuid.uuid4().int & ((1 << 74) - 1)
    return str(uuid.UUID(int=now << 80 | 0x7 << 76 | (rest >> 62) << 64 | 0b10 << 62 | rest & ((1 << 62) - 1)))
