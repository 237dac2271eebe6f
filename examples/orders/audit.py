"""Did every order end well? Told by SQL on the stored rows and on the provider's own ledger, without asking a single actor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, text

from .book import Placed
from .processes import Ledger
from .shop import ENDED

ORDERS = text(
    "SELECT actor_id, value->>'status', (value->>'total')::bigint, value->>'charge_id' FROM akter.actor_state WHERE actor_type = 'Order'"
)
SHIPMENTS = text("SELECT actor_id, value->>'status' FROM akter.actor_state WHERE actor_type = 'Shipment'")
CUSTOMERS = text("SELECT actor_id, value FROM akter.actor_state WHERE actor_type = 'Customer'")
ROUTES = text(
    "SELECT actor_id, count(*) FROM akter.actor_receipts "
    "WHERE actor_type = 'Order' AND command IN ('charged', 'not_charged') GROUP BY actor_id"
)
LETTERS = text("SELECT actor_id, ambiguous, attempts, cause FROM akter.actor_dead_letters ORDER BY actor_id")
LEFT = text("SELECT count(*) FROM akter.actor_outbox")
CHARGES = "SELECT order_id, id, customer, amount FROM charges ORDER BY id"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was compared: what it should be, what it is, and what is wrong with it."""

    what: str
    expected: int
    found: int
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Unknown:
    """An order of which nobody knows whether it was paid, and what the provider's ledger says of it."""

    order: str
    attempts: int
    cause: str
    charged: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What is stored: everything that the audit looks at, by order or customer."""

    status: Mapping[str, str]
    total: Mapping[str, int]
    charge: Mapping[str, str]
    shipments: Mapping[str, str]
    customers: Mapping[str, Mapping[str, int]]
    routes: Mapping[str, int]
    letters: Mapping[str, tuple[bool, int, str]]
    left: int
    charges: Mapping[str, list[tuple[str, str, int]]]

    def which(self, *status: str) -> set[str]:
        """The orders with one of these states."""
        return {order for order, found in self.status.items() if found in status}

    @property
    def charged(self) -> int:
        """All that the provider has charged, in cents."""
        return sum(amount for charges in self.charges.values() for _, _, amount in charges)


def look(engine: Engine, ledger: Ledger) -> Found:
    """Read it all."""
    with engine.connect() as connection:
        orders = [tuple(row) for row in connection.execute(ORDERS)]
        charges: dict[str, list[tuple[str, str, int]]] = {}
        for order, id, customer, amount in ledger.all(CHARGES):
            charges.setdefault(order, []).append((id, customer, amount))
        return Found(
            status={order: status for order, status, _, _ in orders},
            total={order: total for order, _, total, _ in orders},
            charge={order: charge for order, _, _, charge in orders},
            shipments={row[0]: row[1] for row in connection.execute(SHIPMENTS)},
            customers={row[0]: row[1] for row in connection.execute(CUSTOMERS)},
            routes={row[0]: row[1] for row in connection.execute(ROUTES)},
            letters={order: (ambiguous, attempts, cause) for order, ambiguous, attempts, cause in connection.execute(LETTERS)},
            left=connection.execute(LEFT).scalar_one(),
            charges=charges,
        )


def audit(book: list[Placed], found: Found) -> list[Line]:
    """Compare, and say of each thing what is wrong with it: nothing, if the list is empty."""
    asked = {order.id: order for order in book}
    shipped, unpaid, unknown = found.which("shipped"), found.which("unpaid"), found.which("unknown")
    ended = found.which(*ENDED)
    money = sum(order.total for order in book)
    stored = sum(found.total[order] for order in ended)
    paid = sum(asked[order].total for order in shipped & asked.keys())
    unsure = sum(amount for order in unknown for _, _, amount in found.charges.get(order, []))
    twice = {order: charges for order, charges in found.charges.items() if len(charges) > 1}
    ambiguous = {order for order, (is_ambiguous, _, _) in found.letters.items() if is_ambiguous}
    once = {order for order, count in found.routes.items() if count == 1}
    return [
        Line("orders that ended", len(asked), len(ended), _sets("has not ended", asked, ended)),
        Line("… and were told of their payment once", len(asked), len(once), _sets("was not told once", asked, once)),
        Line("orders shipped, and shipments sent", len(shipped), len(found.shipments), _shipments(shipped, found)),
        Line("orders charged more than once", 0, len(twice), [f"{order} was charged {len(twice[order])} times" for order in sorted(twice)]),
        Line(
            "orders shipped, and charged as placed",
            len(shipped),
            len(good := _good(shipped, asked, found)),
            _sets("is wrong", shipped, good),
        ),
        Line("orders unpaid, but charged", 0, len(bad := unpaid & found.charges.keys()), [f"{order} was charged" for order in sorted(bad)]),
        Line("orders unknown, and ambiguous dead letters", len(unknown), len(ambiguous), _sets("does not match", unknown, ambiguous)),
        Line("money ordered, in cents", money, stored, _same(money, stored)),
        Line("money shipped for, and charged for sure", paid, found.charged - unsure, _same(paid, found.charged - unsure)),
        Line("customers' own accounts", len(own := _accounts(asked, found)), len(own) - len(wrong := _customers(own, found)), wrong),
        Line("messages and jobs left behind", 0, found.left, [f"{found.left} rows are left in the outbox"] if found.left else []),
    ]


def unknowns(found: Found) -> list[Unknown]:
    """The orders that somebody has to ask the provider about."""
    letters = [(order, *letter) for order, letter in found.letters.items() if letter[0]]
    return [Unknown(order, attempts, cause, order in found.charges) for order, _, attempts, cause in letters]


def _shipments(shipped: set[str], found: Found) -> list[str]:
    wrong = _sets("has no shipment of its own", shipped, found.shipments)
    return wrong + [f"the shipment of {order} is {status}" for order, status in sorted(found.shipments.items()) if status != "sent"]


def _good(shipped: set[str], asked: Mapping[str, Placed], found: Found) -> set[str]:
    """The orders whose only charge is the one they know of, for what the file says, to whom it says."""
    expected = {order: [(found.charge[order], asked[order].customer, asked[order].total)] for order in shipped & asked.keys()}
    return {order for order, charges in expected.items() if found.charges.get(order) == charges}


def _accounts(asked: Mapping[str, Placed], found: Found) -> dict[str, Counter[str]]:
    """What each customer's account has to say."""
    accounts: dict[str, Counter[str]] = {}
    for order in asked.values():
        account = accounts.setdefault(order.customer, Counter())
        account["ordered"] += order.total
        status = found.status.get(order.id, "")
        account["paid" if status == "shipped" else status] += order.total
    return accounts


def _customers(accounts: Mapping[str, Counter[str]], found: Found) -> list[str]:
    wrong: list[str] = []
    for customer, account in sorted(accounts.items()):
        there: Mapping[str, Any] = found.customers.get(customer, {})
        told = {name: there.get(name, 0) for name in ("ordered", "paid", "unpaid", "unknown")}
        if any(told[name] != account[name] for name in told):
            wrong.append(f"{customer}'s account says {told}")
    return wrong


def _sets(what: str, expected: Iterable[str], found: Iterable[str]) -> list[str]:
    return [f"{order} {what}" for order in sorted(set(expected) ^ set(found))]


def _same(expected: int, found: int) -> list[str]:
    return [] if expected == found else [f"there are {abs(found - expected)} cents too {'many' if found > expected else 'few'}"]
