"""The actor classes of one Akter, by every name that is stored of them."""

from __future__ import annotations

from collections.abc import Iterable

from akter.actor import Actor
from akter.definition import Definition
from akter.errors import DeclarationError, UnknownActor
from akter.limits import kept_ms
from akter.payload import Event
from akter.store.deployment import Placed
from akter.store.versions import Readable


def register(actors: Iterable[type[Actor]]) -> dict[str, Definition]:
    """The definitions by name and alias; raises `DeclarationError` for two classes of one name."""
    found: dict[str, Definition] = {}
    if not isinstance(actors, Iterable) or isinstance(actors, str):
        raise DeclarationError("actors=[...] takes a list of Actor subclasses")
    for kind in actors:
        definition = getattr(kind, "__akter__", None)
        if not isinstance(definition, Definition):
            raise DeclarationError(f"actors=[...] takes Actor subclasses, and {kind!r} is none")
        for name in (definition.name, *definition.aliases):
            if found.setdefault(name, definition) is not definition:
                other = found[name].kind
                raise DeclarationError(
                    f"{kind.__module__}.{kind.__name__} and {other.__module__}.{other.__name__} are both called {name!r}: "
                    "give one of them another name= in its class statement"
                )
    return found


def known(actors: dict[str, Definition], kind: type[Actor], takes: str = "actor(...) takes an Actor subclass and an id") -> Definition:
    """The definition of a registered class; raises `TypeError` for no actor and `UnknownActor` for one that is not registered."""
    definition = getattr(kind, "__akter__", None)
    if not isinstance(definition, Definition):
        raise TypeError(takes)
    if actors.get(definition.name) is not definition:
        raise UnknownActor(f"{kind.__name__} is not registered with this Akter: add it to actors=[...]")
    return definition


def placed(actors: dict[str, Definition]) -> list[Placed]:
    """How the registered types are routed."""
    return [
        Placed(definition.name, definition.aliases, definition.options.placement)
        for name, definition in actors.items()
        if name == definition.name
    ]


def events_kept(actors: dict[str, Definition], usually_ms: int) -> dict[str, int]:
    """How long the events of the registered types are kept, in milliseconds."""
    given = {name: kept_ms(definition.options.keep_events) for name, definition in actors.items() if name == definition.name}
    return {name: usually_ms if kept is None else kept for name, kept in given.items()}


def readable(actors: dict[str, Definition]) -> list[Readable]:
    """What this process's code can read of what is stored for the registered types, as of now.

    An event class belongs to no type before it is emitted, so every class that was imported counts for every type.
    """
    found: list[Readable] = []
    newest = _event_versions()
    for name, definition in actors.items():
        found += [Readable("intent", name, stored, member.version) for stored, member in definition.names.items()]
        if name == definition.name:
            found.append(Readable("state", name, "", len(definition.options.migrations)))
            found += [Readable("event", name, event, version) for event, version in newest.items()]
            found += [Readable("job", name, job.name, job.call.version) for job in definition.jobs.values()]
    return found


def _event_versions() -> dict[str, int]:
    found: dict[str, int] = {}
    waiting: list[type[Event]] = Event.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        for name in (kind.event_name, *kind.event_aliases):
            found[name] = max(found.get(name, 0), len(kind.event_migrations))
    return found
