"""Those who follow the soak's senders: listeners, to whom the event says whose it is, and followers, who ask for it and take it back."""

from __future__ import annotations

from random import Random

from akter import Actor, CursorRejected, Delivered, Event, Gap, command, subscription
from soaking.journal import ran

LISTENERS = 20
FOLLOWERS = 6


class Noted(Event):
    """A turn happened."""

    tag: str
    number: int


def is_noted(tag: str) -> bool:
    """Whether the turn of this message is published."""
    return Random(f"noted {tag}").random() < 0.5


def listener_of(tag: str) -> str:
    """Whose an event is."""
    return f"l{Random(f'listener {tag}').randrange(LISTENERS)}"


class Listener(Actor, max_state_bytes=8_000_000):
    """`kept` has a line for every event, in the order in which it was told: the source, the cursor and the tag."""

    kept: list[tuple[str, int, str]] = []  # noqa: RUF012 - a state field's default is copied

    @subscription(Noted, to=lambda noted: listener_of(noted.tag))
    def noted(self, noted: Noted, of: Delivered) -> None:
        """Keep it."""
        ran(f"told {of.source} {of.cursor}")
        self.kept.append((of.source, int(of.cursor), noted.tag))


class Follower(Actor, max_state_bytes=8_000_000):
    """`seen` has all in its order: where it begins to follow a source and where it ends, and what it is told between."""

    seen: list[tuple[str, str, int]] = []  # noqa: RUF012

    @subscription(Noted)
    def told(self, noted: Noted | Gap | CursorRejected, of: Delivered) -> None:
        """Keep it."""
        self.seen.append(("told" if isinstance(noted, Noted) else type(noted).__name__, of.source, int(of.cursor)))

    @command
    def follow(self, source: str, since: str) -> None:
        """Follow it from here on, whether it did or not."""
        self.subscribe(self.told, self.actor(self._kind(), source), since=since)
        self.seen.append((since, source, 0))

    @command
    def forget(self, source: str) -> None:
        """Follow it no more."""
        self.unsubscribe(self.told, self.actor(self._kind(), source))
        self.seen.append(("end", source, 0))

    def _kind(self) -> type[Actor]:
        # It publishes, and is defined after what it publishes.
        from soaking.actors import Node

        return Node
