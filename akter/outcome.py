"""How a command ended, as its receipt keeps it."""

from __future__ import annotations

from typing import Any

import msgspec

from akter import rejection
from akter.command import Command


class _Kept(msgspec.Struct, omit_defaults=True):
    ok: msgspec.Raw = msgspec.Raw(b"")
    rejected: msgspec.Raw = msgspec.Raw(b"")


_read = msgspec.json.Decoder(_Kept).decode


def success(result: bytes) -> str:
    """The stored form of a returned value."""
    return f'{{"ok":{result.decode()}}}'


def refusal(raised: rejection.Rejection) -> str:
    """The stored form of a rejection; raises `PayloadInvalid` when its fields do not fit."""
    return f'{{"rejected":{rejection.encode(raised).decode()}}}'


def answer(outcome: str, command: Command) -> Any:
    """Return what was returned, or raise what was raised, when the command ran."""
    kept = _read(outcome)
    if bytes(kept.rejected):
        raise rejection.decode(bytes(kept.rejected))
    return command.result.decode(bytes(kept.ok))
