"""The deployment's routed subscriptions: what a source's process has to know before its first turn."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, delete, select
from sqlalchemy.dialects.postgresql import insert

from akter.errors import DeploymentMismatch
from akter.followers import Routed
from akter.tables import routed_subscriptions

_KEY = ("source_type", "subscriber_type", "subscription")


def join(connection: Connection, declared: Sequence[Routed], types: Sequence[str]) -> list[Routed]:
    """Record what this process declares, and return what others do; what its own types do not declare any more is forgotten.

    Raises `DeploymentMismatch` when one of its types is followed by a type that it does not register.
    """
    known = read(connection)
    mine = {routed[:3] for routed in declared}
    for routed in declared:
        if routed not in known:
            fresh = insert(routed_subscriptions).values(routed._asdict() | {"events": list(routed.events)})
            connection.execute(fresh.on_conflict_do_update(index_elements=list(_KEY), set_={"events": fresh.excluded.events}))
    for routed in known:
        if routed.subscriber_type in types and routed[:3] not in mine:
            forget(connection, *routed[:3])
        elif routed.source_type in types and routed.subscriber_type not in types:
            raise DeploymentMismatch(
                f"{routed.source_type} is followed by {routed.subscriber_type}.{routed.subscription}, and this process does not register "
                f"{routed.subscriber_type}, so it would publish without telling it: add it to actors=[...], or, when it is gone for good: "
                f"akter subscriptions forget {routed.subscriber_type} {routed.subscription}"
            )
    return [routed for routed in known if routed.subscriber_type not in types]


def read(connection: Connection) -> list[Routed]:
    """All of them."""
    rows = connection.execute(select(routed_subscriptions)).mappings()
    return [Routed(row["source_type"], row["subscriber_type"], row["subscription"], tuple(row["events"])) for row in rows]


def forget(connection: Connection, source_type: str, subscriber_type: str, subscription: str) -> None:
    """Let processes of the source start without it."""
    named = dict(zip(_KEY, (source_type, subscriber_type, subscription), strict=True))
    connection.execute(delete(routed_subscriptions).where(and_(*(routed_subscriptions.c[name] == value for name, value in named.items()))))
