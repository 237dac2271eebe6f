"""Is the database what the file says? Told by SQL on the stored rows and plain arithmetic, without asking a single actor.

A receipt is what a command answered, and a balance is what an account says it has. Both are compared with the file, and with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, text

from .transfers import Book, Transfer
from .work import SCOPE

BALANCES = text("SELECT actor_id, (value->>'balance')::bigint FROM akter.actor_state WHERE actor_type = 'Account'")
RECEIPTS = text(
    "SELECT command_id, command, actor_id, outcome::json->'ok' IS NOT NULL FROM akter.actor_receipts WHERE actor_type = 'Account'"
)

HALF = "was neither refused nor done to its end"
COUNT = text("SELECT count(*) FROM akter.actor_receipts")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was compared."""

    what: str
    file: int
    database: int
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The transfers whose outcome does not depend on their order, which threads do not keep."""

    refused: set[str]
    done: set[str]


def audit(engine: Engine, book: Book) -> list[Line]:
    """Compare, and say of each thing what is wrong with it: nothing, if the list is empty."""
    with engine.connect() as connection:
        balances: dict[str, int] = {row[0]: row[1] for row in connection.execute(BALANCES)}
        answers: dict[tuple[str, str], list[Any]] = {}
        for id, command, account, accepted in connection.execute(RECEIPTS):
            answers.setdefault((id.removeprefix(f"u:{SCOPE}:"), command), []).append((account, accepted))
    expected = dict(_expected(book, answers))
    accepted = {key for key, found in answers.items() if found[0][1]}
    asked = {transfer.id: transfer for transfer in book.transfers}
    debited = {id for id in asked if (f"{id}:debit", "debit") in accepted}
    credited = {id for id in asked if (f"{id}:credit", "credit") in accepted}
    refused = {id for id in asked.keys() - debited if (f"{id}:debit", "debit") in answers}
    done = debited & credited
    right = Counter({opening.id: opening.balance for opening in book.openings})
    for id in debited:
        right[asked[id].debit] -= asked[id].amount
    for id in credited:
        right[asked[id].credit] += asked[id].amount
    settled = forecast(book)
    open_ended = asked.keys() - settled.done - settled.refused
    return [
        Line("accounts", len(book.openings), len(balances), _sets("account", {opening.id for opening in book.openings}, set(balances))),
        Line("receipts, one per command", len(expected), sum(map(len, answers.values())), _receipts(expected, answers)),
        Line("transfers done, in whatever order", len(settled.done), len(settled.done & done), _told("was not done", settled.done - done)),
        Line(
            "transfers refused, in whatever order",
            len(settled.refused),
            len(settled.refused & refused),
            _told("was not refused", settled.refused - refused),
        ),
        Line(
            "transfers that the order decides",
            len(open_ended),
            len(open_ended & (done | refused)),
            _told(HALF, open_ended - done - refused),
        ),
        Line(
            "balances as the transfers leave them",
            len(right),
            sum(balances.get(id) == balance for id, balance in right.items()),
            [f"{id} has {balances.get(id)} instead of {balance}" for id, balance in right.items() if balances.get(id) != balance],
        ),
        Line("accounts below zero", 0, len(overdrawn := sorted(id for id, balance in balances.items() if balance < 0)), overdrawn),
        _money(book, balances),
    ]


def receipts(engine: Engine) -> int:
    """How many commands were ever answered."""
    with engine.connect() as connection:
        return int(connection.execute(COUNT).scalar_one())


def forecast(book: Book) -> Forecast:
    """What must happen in any order: refused is what asks for more than can ever be there, done is what is covered from the beginning."""
    opening = Counter({opening.id: opening.balance for opening in book.openings})
    possible = [transfer for transfer in book.transfers if transfer.amount <= book.money]
    most = opening + _sum((transfer.credit, transfer) for transfer in possible)
    possible = [transfer for transfer in possible if transfer.amount <= most[transfer.debit]]
    wanted = _sum((transfer.debit, transfer) for transfer in possible)
    done = {transfer.id for transfer in possible if wanted[transfer.debit] <= opening[transfer.debit]}
    return Forecast({transfer.id for transfer in book.transfers} - {transfer.id for transfer in possible}, done)


def _sum(transfers: Iterable[tuple[str, Transfer]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for account, transfer in transfers:
        sums[account] += transfer.amount
    return sums


def _expected(book: Book, answers: dict[tuple[str, str], list[Any]]) -> Iterable[tuple[tuple[str, str], str]]:
    for opening in book.openings:
        yield (f"{opening.id}:open", "open"), opening.id
    for transfer in book.transfers:
        debit = f"{transfer.id}:debit", "debit"
        yield debit, transfer.debit
        if any(accepted for _, accepted in answers.get(debit, [])):
            yield (f"{transfer.id}:credit", "credit"), transfer.credit


def _receipts(expected: dict[tuple[str, str], str], answers: dict[tuple[str, str], list[Any]]) -> list[str]:
    wrong = _sets("receipt", {key[0] for key in expected}, {key[0] for key in answers})
    for key, found in answers.items():
        if len(found) > 1:
            wrong.append(f"the command {key[0]} has {len(found)} receipts")
        elif key in expected and found[0][0] != expected[key]:
            wrong.append(f"the command {key[0]} ran in {found[0][0]} instead of {expected[key]}")
        if not found[0][1] and key[1] != "debit":
            wrong.append(f"the command {key[0]} was refused")
    return wrong


def _sets(what: str, expected: set[str], found: set[str]) -> list[str]:
    return [*_told(f"has no {what}", expected - found), *_told(f"has a {what} and is not in the file", found - expected)]


def _told(what: str, ids: set[str]) -> list[str]:
    return [f"{id} {what}" for id in sorted(ids)]


def _money(book: Book, balances: dict[str, int]) -> Line:
    there = sum(balances.values())
    wrong = [] if there == book.money else [f"there are {abs(there - book.money)} cents too {'many' if there > book.money else 'few'}"]
    return Line("money, in cents", book.money, there, wrong)
