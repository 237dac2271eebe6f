"""The deployment's one row and its actor types' placements: what every process that shares the database must agree on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, literal, select, update
from sqlalchemy.dialects.postgresql import insert

from akter.errors import DeploymentMismatch
from akter.identity import ENCODING
from akter.store.clock import now_ms
from akter.tables import deployment, placements


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a process reads when it joins: the database's identity, the retry window and the clock, in milliseconds."""

    id: str
    retry_window_ms: int
    now_ms: int
    clock_offset_ms: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """An actor type, its earlier names, and how it is routed."""

    name: str
    aliases: tuple[str, ...]
    placement: str


def join(connection: Connection, retry_window_ms: int, types: Iterable[Placed]) -> Deployment:
    """Record this process's settings where nobody did before, and refuse them where they differ.

    Raises `DeploymentMismatch` naming the setting.
    """
    chosen = connection.execute(select(deployment.c.retry_window_ms)).scalar_one_or_none()
    if chosen is None:
        fresh = insert(deployment).values(singleton=True, retry_window_ms=retry_window_ms)
        connection.execute(
            fresh.on_conflict_do_update(
                index_elements=["singleton"], set_={"retry_window_ms": retry_window_ms}, where=deployment.c.retry_window_ms.is_(None)
            )
        )
    row = connection.execute(select(deployment.c.deployment_id, deployment.c.retry_window_ms, now_ms(), deployment.c.clock_offset_ms)).one()
    if row[1] != retry_window_ms:
        raise DeploymentMismatch(
            f"this deployment's retry window is {row[1]} ms and this process asks for {retry_window_ms} ms: "
            "all processes of one database use the same Akter(retry_window=...), because command ids depend on it"
        )
    _place(connection, sorted(types, key=lambda placed: placed.name))
    return Deployment(row[0], row[1], row[2], row[3])


def _place(connection: Connection, types: list[Placed]) -> None:
    known = {
        name: (placement, encoding)
        for name, placement, encoding in connection.execute(select(placements.c.actor_type, placements.c.placement, placements.c.encoding))
    }
    for placed in types:
        for alias in placed.aliases:
            if alias in known:
                raise DeploymentMismatch(
                    f"actors are stored under the name {alias!r}, which {placed.name!r} has as an alias: "
                    f"keep the stored name with `name={alias!r}` on the class"
                )
    missing = [
        {"actor_type": placed.name, "placement": placed.placement, "encoding": ENCODING} for placed in types if placed.name not in known
    ]
    if missing:
        connection.execute(insert(placements).on_conflict_do_nothing(), missing)
        return _place(connection, types)
    for placed in types:
        if known[placed.name] != (placed.placement, ENCODING):
            raise DeploymentMismatch(
                f"{placed.name} is stored with placement {known[placed.name][0]!r} and declared with {placed.placement!r}: "
                "the placement of a type cannot change, because it decides where its actors are found"
            )


def move_clock(connection: Connection, by_ms: int) -> None:
    """Move the deployment's clock forward; only tests do."""
    connection.execute(update(deployment).values(clock_offset_ms=deployment.c.clock_offset_ms + literal(by_ms)))
