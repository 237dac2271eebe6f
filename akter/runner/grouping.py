"""Which claimed messages share a transaction, and which must follow each other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

from akter.identity import Address
from akter.pace import Pace
from akter.runner.message import Delivery

MANY = 3
"""Tries after which a message is doubtful, however they ended."""

Unit: TypeAlias = "list[list[Delivery]]"
"""What one thread does, batch after batch; each batch is a transaction."""


def doubtful(delivery: Delivery) -> bool:
    """Whether it may be what ended the process that tried it last: nothing is known of an earlier try, or there were many."""
    row = delivery.row
    return row.attempts > 1 and (row.last_error is None or row.attempts > MANY)


def plan(ready: Sequence[Delivery], pace: Pace, most: int) -> list[Unit]:
    """The units that deliver these messages, each actor's in their order: its turns would only wait for each other's lock.

    Actors all of whose messages may share come together, up to `most` messages; each of the others is a unit of its own. What is doubtful
    comes one after the other, in no order: beside it, or behind it each time, its neighbours would die with it for ever.
    """
    actors: dict[Address, list[Delivery]] = {}
    for delivery in ready:
        actors.setdefault(delivery.call.address, []).append(delivery)
    units: list[Unit] = []
    batch: list[Delivery] = []
    doubted = {address: deliveries for address, deliveries in actors.items() if any(map(doubtful, deliveries))}
    for address, deliveries in actors.items():
        if address in doubted:
            continue
        if most == 1 or not all(pace.may_share(delivery.call.command) for delivery in deliveries):
            units.append([[delivery] for delivery in deliveries])
        elif len(deliveries) > most:
            units.append([deliveries[start : start + most] for start in range(0, len(deliveries), most)])
        else:
            if not batch or len(batch) + len(deliveries) > most:
                batch = []
                units.append([batch])
            batch += deliveries
    if doubted:
        shuffled = random.sample(list(doubted.values()), len(doubted))
        units.append([[delivery] for deliveries in shuffled for delivery in deliveries])
    return units
