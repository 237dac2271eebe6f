"""Processes killed with SIGKILL before and after a commit, and the same command in a new process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import column, insert, table

from akter import Actor, Akter, Rejection, command, query
from akter.testing import child

WAITS_FOR_LOCK = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

sales = table("sales", column("till"), column("amount"))


class NothingLeft(Rejection):
    """There is nothing left to sell."""

    wanted: int


class Till(Actor):
    """Takes money. Every run of a command leaves a line in `journal`, a file that knows nothing of transactions."""

    cash: int = 0

    @command
    def take(self, amount: int, journal: str) -> int:
        note(journal)
        self.cash += amount
        return self.cash

    @command(sql=True)
    def sell(self, amount: int, journal: str) -> int:
        note(journal)
        self.cash += amount
        self.connection.execute(insert(sales).values(till=self.id, amount=amount))
        return self.cash

    @command(sql=True)
    def oversell(self, amount: int, journal: str) -> int:
        note(journal)
        self.cash += amount
        self.connection.execute(insert(sales).values(till=self.id, amount=amount))
        raise NothingLeft(wanted=amount)

    @query
    def counted(self) -> int:
        return self.cash


def note(journal: str) -> None:
    with open(journal, "a", encoding="utf-8") as file:
        file.write("ran\n")


def serve(url: str, schema: str, id: str, member: str, journal: str) -> Any:
    """Run one command, worth 5; what a process of these tests does."""
    with Akter(url, actors=[Till], schema=schema) as app, app.command_id(id):
        try:
            return getattr(app.actor(Till, "front"), member)(5, journal)
        except NothingLeft as refused:
            return f"refused: {refused.wanted}"


class Shop:
    """The database, the children that serve in it, and what they left."""

    def __init__(self, url: str, schema: str, rows: Callable[..., list[Any]], journal: Path) -> None:
        self._where, self._rows, self._journal = (url, schema), rows, journal
        journal.touch()
        rows("CREATE TABLE public.sales (till text, amount integer)")

    def child(self, id: str, member: str, **stop: Any) -> child:
        return child(serve, *self._where, id, member, str(self._journal), **stop)

    def serve(self, id: str, member: str) -> Any:
        with self.child(id, member) as process:
            return process.wait()

    def killed(self, id: str, member: str, at: Any) -> None:
        with self.child(id, member, stop_at=at) as process:
            assert process.wait_reached().endswith(f":{id}")
            process.kill()

    @property
    def runs(self) -> int:
        return len(self._journal.read_text().split())

    @property
    def cash(self) -> list[int]:
        return self._rows("SELECT (value->>'cash')::int FROM actor_state")

    @property
    def receipts(self) -> list[str]:
        return self._rows("SELECT outcome FROM actor_receipts ORDER BY committed_at_ms")

    @property
    def sales(self) -> list[int]:
        return self._rows("SELECT amount FROM public.sales")


@pytest.fixture
def shop(akter_database: str, akter_schema: str, rows: Callable[..., list[Any]], tmp_path: Path) -> Shop:
    return Shop(akter_database, akter_schema, rows, tmp_path / "journal")


@pytest.mark.conformance("KILL-02")
@pytest.mark.parametrize("point", ["before_handler", "before_commit"])
def test_a_command_killed_before_its_commit_runs_in_a_new_process(shop: Shop, point: str) -> None:
    shop.killed("first", "take", point)
    assert (shop.cash, shop.receipts) == ([], [])
    assert shop.serve("first", "take") == 5
    assert (shop.cash, shop.receipts) == ([5], ['{"ok":5}'])


@pytest.mark.conformance("KILL-03")
def test_a_command_killed_after_its_commit_is_answered_in_a_new_process(shop: Shop) -> None:
    shop.killed("first", "take", "after_commit")
    assert (shop.cash, shop.receipts, shop.runs) == ([5], ['{"ok":5}'], 1)
    assert shop.serve("first", "take") == 5
    assert (shop.cash, shop.receipts, shop.runs) == ([5], ['{"ok":5}'], 1)
    assert shop.serve("second", "take") == 10


@pytest.mark.conformance("KILL-08")
def test_an_own_row_goes_with_the_turn_that_was_killed_before_its_commit(shop: Shop) -> None:
    shop.killed("first", "sell", "before_commit")
    assert (shop.cash, shop.receipts, shop.sales, shop.runs) == ([], [], [], 1)
    assert shop.serve("first", "sell") == 5
    assert (shop.cash, shop.receipts, shop.sales, shop.runs) == ([5], ['{"ok":5}'], [5], 2)


@pytest.mark.conformance("KILL-09")
def test_an_own_row_stays_with_the_turn_that_was_killed_after_its_commit(shop: Shop) -> None:
    shop.killed("first", "sell", "after_commit")
    assert (shop.cash, shop.receipts, shop.sales) == ([5], ['{"ok":5}'], [5])
    assert shop.serve("first", "sell") == 5
    assert (shop.cash, shop.receipts, shop.sales, shop.runs) == ([5], ['{"ok":5}'], [5], 1)


# Of the next two, what a refused turn wanted to send is proved where messages are.


@pytest.mark.conformance("KILL-10")
def test_a_refusal_killed_before_its_commit_is_made_again_and_keeps_no_own_row(shop: Shop) -> None:
    shop.serve("earlier", "sell")
    shop.killed("first", "oversell", "before_commit")
    assert (shop.cash, shop.receipts, shop.sales, shop.runs) == ([5], ['{"ok":5}'], [5], 2)
    assert shop.serve("first", "oversell") == "refused: 5"
    assert (shop.cash, shop.sales, shop.runs) == ([5], [5], 3)
    assert len(shop.receipts) == 2
    assert '"NothingLeft"' in shop.receipts[1]


@pytest.mark.conformance("KILL-11")
def test_a_refusal_killed_after_its_commit_is_answered_and_keeps_no_own_row(shop: Shop) -> None:
    shop.serve("earlier", "sell")
    shop.killed("first", "oversell", "after_commit")
    kept = shop.receipts
    assert (shop.cash, shop.sales, shop.runs, len(kept)) == ([5], [5], 2, 2)
    assert shop.serve("first", "oversell") == "refused: 5"
    assert (shop.cash, shop.sales, shop.runs, shop.receipts) == ([5], [5], 2, kept)


@pytest.mark.conformance("KILL-02")
def test_a_process_killed_while_it_waits_for_the_lock_leaves_nothing(
    shop: Shop, rows: Callable[..., list[Any]], until: Callable[..., None]
) -> None:
    with shop.child("first", "take", stop_at="before_commit") as holder:
        holder.wait_reached()
        with shop.child("second", "take") as waiter:
            until(WAITS_FOR_LOCK)
            waiter.kill()
        holder.release()
        assert holder.wait() == 5
    until(OTHERS, some=False)
    assert (shop.cash, shop.receipts, shop.runs) == ([5], ['{"ok":5}'], 1)
    assert shop.serve("second", "take") == 10
    assert shop.serve("first", "take") == 5
    assert (shop.cash, shop.receipts, shop.runs) == ([10], ['{"ok":5}', '{"ok":10}'], 2)


def test_a_process_killed_while_it_holds_the_lock_lets_the_waiter_in(shop: Shop, until: Callable[..., None]) -> None:
    with shop.child("first", "take", stop_at="before_commit") as holder:
        holder.wait_reached()
        with shop.child("second", "take") as waiter:
            until(WAITS_FOR_LOCK)
            holder.kill()
            assert waiter.wait() == 5
    assert (shop.cash, shop.receipts) == ([5], ['{"ok":5}'])
