"""Write transfers.csv: 240 accounts that are opened, then 2 400 transfers between them.

    python examples/ledger/make_transfers.py

Columns: kind, id, debit, credit, amount, reference. An `open` row names the account in `id` and `credit`, its opening balance in cents in
`amount` and its holder in `reference`; a `transfer` row moves `amount` cents from `debit` to `credit`.

Whoever works through the file may do so with many threads, in any order, and must come to the same end. So only two kinds of transfers
are in it, and neither can tell the order:

- 2 376 that always succeed: an account opens with at least the sum of everything it will be asked for in these.
- 24 that are always refused: each asks for more than all accounts together open with, which is all the money there ever is.

The file is a function of the seed. Only `Random.random()` is drawn from, because its sequence alone is promised to stay the same from one
Python to the next.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

SEED = 2400
ACCOUNTS = 240
TRANSFERS = 2_400

FILE = Path(__file__).with_name("transfers.csv")


class Row(NamedTuple):
    """One line of the file."""

    kind: str
    id: str
    debit: str
    credit: str
    amount: int
    reference: str


HOLDERS = (
    "Ada Okafor",
    "Bäckerei Grünwald, Inh. J. Weiß",
    "Chloé D'Almeida",
    "Dvořák & synové, s.r.o.",
    'Éditions "Le Canard"',
    "Fatima Al-Sayed",
    "Großmarkt Süd; Stand 14",
    "株式会社 波",
    "Íris Jónsdóttir",
    "Łukasz Żak",
    "O'Neill, Byrne & Co.",
    "Σοφία Παππά",
)

REFERENCES = (
    "Rent, {month}",
    "Invoice {number}",
    'Invoice {number} ("second notice")',
    "Miete {month}, Wohnung 3½",
    "Café »Zur Post«, 2 × Frühstück",
    "Thanks for dinner 🍜",
    "Loyer {month}; charges comprises",
    'He said "keep the change"',
    "お歳暮 {number}",
    "Savings",
    "",
)

MONTHS = ("January", "März", "avril", "June", "août", "October", "Dezember")

PRICES = ((100, 2_500), (2_500, 20_000), (20_000, 150_000))
"""Small, middling and large amounts; the first kind is drawn most often."""


def rows() -> list[Row]:
    """Every line, in the order of the file."""
    random = Random(SEED)
    transfers = [_transfer(random, number) for number in range(1, TRANSFERS + 1)]
    refused = {row.id for row in transfers if row.id.endswith("37")}
    asked: Counter[str] = Counter()
    for row in transfers:
        if row.id not in refused:
            asked[row.debit] += row.amount
    opening = {_account(number): _opening(random, asked[_account(number)]) for number in range(ACCOUNTS)}
    accounts = [Row("open", account, "", account, amount, _pick(random, HOLDERS)) for account, amount in opening.items()]
    money = sum(opening.values())
    return accounts + [row._replace(amount=money + row.amount) if row.id in refused else row for row in transfers]


def text() -> str:
    """The file as one string."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows())
    return out.getvalue()


def _transfer(random: Random, number: int) -> Row:
    debit = _busy(random)
    credit = _busy(random)
    while credit == debit:
        credit = _busy(random)
    reference = _pick(random, REFERENCES).format(
        month=_pick(random, MONTHS), number=f"{2024 + _below(random, 2)}-{_below(random, 10_000):04}"
    )
    return Row("transfer", f"t-{number:05}", _account(debit), _account(credit), _amount(random), reference)


def _opening(random: Random, asked: int) -> int:
    return asked + 100 * _below(random, 5_000)


def _amount(random: Random) -> int:
    low, high = PRICES[min(_below(random, len(PRICES)), _below(random, len(PRICES)))]
    return low + _below(random, high - low)


def _busy(random: Random) -> int:
    # The smaller of two draws: the first accounts of the file meet in many transfers, the last ones in few.
    return min(_below(random, ACCOUNTS), _below(random, ACCOUNTS))


def _account(number: int) -> str:
    return f"a-{number + 1:03}"


def _pick(random: Random, choices: tuple[str, ...]) -> str:
    return choices[_below(random, len(choices))]


def _below(random: Random, limit: int) -> int:
    return int(random.random() * limit)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="")
