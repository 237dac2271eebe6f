"""The ledger's transfers have one outcome, whatever the order they run in."""

from __future__ import annotations

import csv
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

LEDGER = Path(__file__).parent.parent / "examples" / "ledger"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(LEDGER / "make_transfers.py"))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with (LEDGER / "transfers.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def transfers(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row for row in rows if row["kind"] == "transfer"]


def opening(rows: list[dict[str, str]]) -> dict[str, int]:
    return {row["id"]: int(row["amount"]) for row in rows if row["kind"] == "open"}


def test_the_committed_file_is_what_the_script_writes(script: dict[str, Any]) -> None:
    assert (LEDGER / "transfers.csv").read_bytes() == script["text"]().encode()


def test_the_accounts_come_first_and_once(rows: list[dict[str, str]]) -> None:
    assert [row["id"] for row in rows[:240]] == [f"a-{number:03}" for number in range(1, 241)]
    assert all(row["kind"] == "open" and row["credit"] == row["id"] and row["debit"] == "" for row in rows[:240])


def test_the_transfers_are_numbered_and_run_between_two_opened_accounts(rows: list[dict[str, str]]) -> None:
    assert [row["id"] for row in transfers(rows)] == [f"t-{number:05}" for number in range(1, 2401)]
    accounts = opening(rows).keys()
    for row in transfers(rows):
        assert row["debit"] in accounts
        assert row["credit"] in accounts
        assert row["debit"] != row["credit"]
        assert int(row["amount"]) > 0


def test_24_transfers_ask_for_more_than_there_ever_is(rows: list[dict[str, str]]) -> None:
    money = sum(opening(rows).values())
    assert sum(int(row["amount"]) > money for row in transfers(rows)) == 24


def test_every_other_transfer_is_covered_by_what_its_account_opens_with(rows: list[dict[str, str]]) -> None:
    balances = opening(rows)
    money = sum(balances.values())
    asked: Counter[str] = Counter()
    for row in transfers(rows):
        if int(row["amount"]) <= money:
            asked[row["debit"]] += int(row["amount"])
    assert all(balances[account] >= amount for account, amount in asked.items())


def test_the_references_are_as_awkward_as_real_ones(rows: list[dict[str, str]]) -> None:
    references = [row["reference"] for row in rows]
    assert any("," in reference for reference in references)
    assert any('"' in reference for reference in references)
    assert any(not reference.isascii() for reference in references)
    assert any(reference == "" for reference in references)
