"""How an actor is followed: the rows of its followers and, always in step with them, how many follow each of its events.

Whoever changes either holds the lock of the actor's generation row, so two changes never meet, and no turn publishes between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, false, func, literal, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from akter.identity import Address
from akter.store.clock import now_ms
from akter.store.rows import belongs
from akter.tables import IDENTITY, SOURCE, events, generations, subscription_tags, subscriptions

PAGE = 1000
"""Followers that are marked in one transaction."""

Applied: TypeAlias = Literal["applied", "known", "rejected"]
"""known: it was applied before, or a newer one was. rejected: the source has no such cursor."""


class Name(NamedTuple):
    """A follower of a source; `subscriber_id` is empty for a routed subscription."""

    subscriber_type: str
    subscription: str
    subscriber_id: str


def mark(connection: Connection, source: Address, after: Name | None, page: int = PAGE) -> tuple[Name | None, int]:
    """Mark the next page of followers for what was published: those that are caught up become due when it concerns them, the others are
    looked at again when they settle. Returns where the page ended, None for the last one, and how many became due.
    """
    of = belongs(subscriptions, source, SOURCE)
    wanted = select(*(subscriptions.c[name] for name in Name._fields)).where(of, subscriptions.c.active).order_by(*_names())
    if after is not None:
        wanted = wanted.where(tuple_(*_names()) > tuple_(*map(literal, after)))
    found = [Name(*row) for row in connection.execute(wanted.limit(page).with_for_update())]
    if not found:
        return None, 0
    head = connection.execute(select(generations.c.event_sequence).where(_owner(source))).scalar_one()
    concerned = exists().where(
        _emitted_by(source), events.c.sequence > subscriptions.c.delivered, events.c.event == func.any(subscriptions.c.events)
    )
    here = and_(of, subscriptions.c.active, tuple_(*_names()).between(tuple_(*map(literal, found[0])), tuple_(*map(literal, found[-1]))))
    # A row that is claimed, or waits for its next try, keeps its due time.
    connection.execute(update(subscriptions).where(here, subscriptions.c.due_at_ms.is_not(None)).values(marked=head))
    due = connection.execute(
        update(subscriptions).where(here, subscriptions.c.due_at_ms.is_(None), concerned).values(marked=head, due_at_ms=now_ms())
    )
    return (found[-1] if len(found) == page else None), due.rowcount


def begin(connection: Connection, source: Address, name: Name, names: Iterable[str], epoch: int, since: str) -> Applied:
    """Start to follow a source since "now", "start" or a cursor, unless a newer request was applied."""
    head = lock(connection, source)
    found = _row(connection, source, name)
    if found is not None and found[0] >= epoch:
        return "rejected" if found[0] == epoch and not found[1] else "known"
    delivered = head if since == "now" else 0 if since == "start" else int(since)
    rejected = delivered > head
    wanted = sorted(set(names))
    _write(connection, source, name, wanted, epoch, not rejected, min(delivered, head), head)
    _count(connection, source, _difference(found, [] if rejected else wanted))
    return "rejected" if rejected else "applied"


def end(connection: Connection, source: Address, name: Name, epoch: int) -> Applied:
    """Stop to follow a source, unless a newer request was applied; what is left is its epoch, so that no older one starts it again."""
    head = lock(connection, source)
    found = _row(connection, source, name)
    if found is not None and (found[0] > epoch or (found[0] == epoch and not found[1])):
        return "known"
    _write(connection, source, name, [] if found is None else found[2], epoch, False, head, head)
    _count(connection, source, _difference(found, []))
    return "applied"


def widen(connection: Connection, source: Address, name: Name, names: Iterable[str]) -> None:
    """Let a follower be told of more events, from the last one on that it was told of."""
    lock(connection, source)
    found = _row(connection, source, name)
    if found is None or not found[1]:
        return
    wanted = sorted({*found[2], *names})
    here = and_(belongs(subscriptions, source, SOURCE), _named(name))
    connection.execute(update(subscriptions).where(here).values(events=wanted))
    connection.execute(update(subscriptions).where(here, subscriptions.c.due_at_ms.is_(None)).values(due_at_ms=now_ms()))
    _count(connection, source, _difference(found, wanted))


def lock(connection: Connection, source: Address) -> int:
    """Lock the source as its turns do, which makes its row if it has none; returns the sequence of its newest event."""
    made = insert(generations).values(**source._asdict())
    connection.execute(
        made.on_conflict_do_update(index_elements=list(IDENTITY), set_={"generation": generations.c.generation}, where=false())
    )
    return int(connection.execute(select(generations.c.event_sequence).where(_owner(source))).scalar_one())


def _row(connection: Connection, source: Address, name: Name) -> tuple[int, bool, list[str]] | None:
    mine = belongs(subscriptions, source, SOURCE)
    wanted = select(subscriptions.c.epoch, subscriptions.c.active, subscriptions.c.events).where(mine, _named(name))
    found = connection.execute(wanted.with_for_update()).one_or_none()
    return None if found is None else (found[0], found[1], list(found[2]))


def _write(
    connection: Connection, source: Address, name: Name, names: list[str], epoch: int, active: bool, delivered: int, head: int
) -> None:
    concerned = exists().where(_emitted_by(source), events.c.sequence > delivered, events.c.event.in_(names))
    # What comes next was pruned: that, too, is to be told.
    missing = and_(literal(delivered < head), ~exists().where(_emitted_by(source), events.c.sequence == delivered + 1))
    there = active and connection.execute(select(or_(concerned, missing))).scalar_one()
    values: dict[str, Any] = {
        "events": names,
        "epoch": epoch,
        "active": active,
        "delivered": delivered,
        "marked": 0,
        "due_at_ms": now_ms() if there else None,
        "attempts": 0,
        "last_error": None,
        "gap_through": None,
        "gap_at_ms": None,
    }
    key = dict(zip(SOURCE, source, strict=True)) | name._asdict()
    made = insert(subscriptions).values(**key, **values)
    connection.execute(made.on_conflict_do_update(index_elements=list(key), set_={column: made.excluded[column] for column in values}))


def _difference(before: tuple[int, bool, list[str]] | None, after: Iterable[str]) -> Counter[str]:
    change = Counter(after)
    change.subtract(before[2] if before is not None and before[1] else ())
    return change


def _count(connection: Connection, source: Address, change: Counter[str]) -> None:
    of = belongs(subscription_tags, source, SOURCE)
    for event, by in sorted(change.items()):
        mine = and_(of, subscription_tags.c.event == event)
        if by > 0:
            made = insert(subscription_tags).values(**dict(zip(SOURCE, source, strict=True)), event=event, followers=by)
            connection.execute(
                made.on_conflict_do_update(
                    index_elements=[*SOURCE, "event"], set_={"followers": subscription_tags.c.followers + made.excluded.followers}
                )
            )
        elif by < 0 and connection.execute(delete(subscription_tags).where(mine, subscription_tags.c.followers <= -by)).rowcount == 0:
            connection.execute(update(subscription_tags).where(mine).values(followers=subscription_tags.c.followers + by))


def _names() -> list[ColumnElement[str]]:
    return [subscriptions.c[name] for name in Name._fields]


def _named(name: Name) -> ColumnElement[bool]:
    return and_(*(subscriptions.c[column] == value for column, value in name._asdict().items()))


def _owner(source: Address) -> ColumnElement[bool]:
    return and_(*(generations.c[name] == value for name, value in source._asdict().items()))


def _emitted_by(source: Address) -> ColumnElement[bool]:
    return and_(*(events.c[name] == value for name, value in source._asdict().items()))
