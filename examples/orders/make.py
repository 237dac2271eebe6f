"""Write orders.csv: 1 200 orders of 150 customers, one to three lines each.

    python examples/orders/make.py

The file is a function of the seed. Only `Random.random()` is drawn from, because its sequence alone is promised to stay the same from one
Python to the next.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from random import Random

SEED = 1200
ORDERS = 1_200
CUSTOMERS = 150

FILE = Path(__file__).with_name("orders.csv")

ITEMS = (
    ("Kettle", 3_900),
    ("Teapot »Ostfriesland«", 4_250),
    ("Tasse, 2 dl", 890),
    ('Mug "World\'s best"', 1_290),
    ("急須", 6_800),
    ("Café filter, 40 pcs", 349),
    ("Whisk", 1_150),
    ("Tin; airtight", 1_590),
    ("Théière", 5_200),
    ("Tea 🍵 100 g", 760),
)

NAMES = ("ada", "björn", "chloé", "dvořák", "łukasz", "mary-ann", "o'neill", "søren", "yuki", "σοφία")


def rows() -> list[tuple[str, str, str, int, int]]:
    """Every row, in the order of the file."""
    random = Random(SEED)
    made: list[tuple[str, str, str, int, int]] = []
    for number in range(1, ORDERS + 1):
        # The smaller of two draws: the first customers order often, the last ones rarely.
        who = min(_below(random, CUSTOMERS), _below(random, CUSTOMERS))
        customer = f"{NAMES[who % len(NAMES)]}-{who // len(NAMES) + 1}"
        for _ in range(1 + _below(random, 3)):
            item, price = ITEMS[_below(random, len(ITEMS))]
            made.append((f"o-{number:04}", customer, item, 1 + _below(random, 4), price))
    return made


def text() -> str:
    """The file as one string."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("order", "customer", "item", "quantity", "price"))
    writer.writerows(rows())
    return out.getvalue()


def _below(random: Random, limit: int) -> int:
    return int(random.random() * limit)


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="")
