"""Which routed subscriptions follow an actor's events: those this process declares, and those it read when it joined."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from akter.definition import Definition


class Routed(NamedTuple):
    """A routed subscription; an empty `source_type` follows every actor that emits its events."""

    source_type: str
    subscriber_type: str
    subscription: str
    events: tuple[str, ...]


class Followers:
    """The routed subscriptions that turns of this process start for their actors."""

    def __init__(self, actors: Mapping[str, Definition]) -> None:
        self.declared = declared(actors)
        self._known: dict[tuple[str, str, str], Routed] = {routed[:3]: routed for routed in self.declared}
        self._routes: dict[tuple[str, frozenset[str]], str | None] = {}

    def learn(self, others: Iterable[Routed]) -> None:
        """Take in what other processes declare."""
        for routed in others:
            self._known.setdefault(routed[:3], routed)
        self._routes = {}

    def routes(self, source_type: str, events: frozenset[str]) -> str | None:
        """Those that follow one of these events of a type, as the publishing statement takes them; None when there are none."""
        asked = (source_type, events)
        if asked not in self._routes:
            found = [
                {"subscriber_type": routed.subscriber_type, "subscription": routed.subscription, "events": list(routed.events)}
                for routed in self._known.values()
                if routed.source_type in ("", source_type) and not events.isdisjoint(routed.events)
            ]
            self._routes[asked] = json.dumps(found) if found else None
        return self._routes[asked]


def declared(actors: Mapping[str, Definition]) -> list[Routed]:
    """The routed subscriptions of the registered types."""
    return [
        Routed(follows.source, definition.name, follows.name, follows.events)
        for name, definition in sorted(actors.items())
        if name == definition.name
        for follows in definition.subscriptions.values()
        if not follows.dynamic
    ]
