"""Processes that are killed at random for ten seconds while they work, and what is left when they are done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import column, insert, table

from akter import Actor, Akter, Rejection, command
from akter.testing import child

SEED = 23
ACCOUNTS = 5
PROCESSES = 4
SECONDS = 10.0

movements = table("movements", column("account"), column("amount"))


class Overdrawn(Rejection):
    """There is not enough in the account."""

    missing: int


class Purse(Actor):
    """Money, and a line in the application's own table for each movement of it."""

    balance: int = 0

    @command(sql=True)
    def move(self, amount: int) -> int:
        self.connection.execute(insert(movements).values(account=self.id, amount=amount))
        self.balance += amount
        if self.balance < 0:
            raise Overdrawn(missing=-self.balance)
        return self.balance


def hammer(url: str, schema: str, worker: int, log: str, stop: str) -> None:
    """Move money until told to stop. A line of the log is written when the answer is there, so the one that was cut short is repeated."""
    numbers = Random(f"{SEED}-{worker}")
    plan = [(f"{worker}-{n}", f"p{numbers.randrange(ACCOUNTS)}", numbers.randint(-60, 100)) for n in range(20_000)]
    path = Path(log)
    with Akter(url, actors=[Purse], schema=schema) as app, path.open("a", encoding="utf-8") as file:
        done = len(path.read_text(encoding="utf-8").split("\n")) - 1
        # Some that were answered are asked again, as by a client that has forgotten.
        for n in [*range(max(0, done - 5), done), *range(done, len(plan))]:
            id, account, amount = plan[n]
            try:
                with app.command_id(id):
                    answer: Any = app.actor(Purse, account).move(amount)
            except Overdrawn as refused:
                answer = f"missing {refused.missing}"
            if n >= done:
                file.write(json.dumps([id, account, amount, answer]) + "\n")
                file.flush()
            if n >= done and Path(stop).exists():
                return


@pytest.mark.conformance("KILL-02", "KILL-03", "KILL-08", "KILL-09", "KILL-10", "KILL-11")
def test_nothing_is_lost_or_doubled_by_ten_seconds_of_kills(
    akter_database: str, akter_schema: str, rows: Callable[..., list[Any]], tmp_path: Path
) -> None:
    rows("CREATE TABLE public.movements (account text, amount integer)")
    random, end, kills, stop = Random(SEED), 0.0, 0, tmp_path / "stop"
    logs = [tmp_path / str(worker) for worker in range(PROCESSES)]

    def start(worker: int) -> child:
        logs[worker].touch()
        return child(hammer, akter_database, akter_schema, worker, str(logs[worker]), str(stop))

    def is_under_way(worker: int) -> bool:
        return logs[worker].stat().st_size > sizes[worker]

    sizes, processes = [0] * PROCESSES, [start(worker) for worker in range(PROCESSES)]
    try:
        while not end or time.monotonic() < end:
            time.sleep(random.uniform(0.1, 0.5))
            if not end and all(map(is_under_way, range(PROCESSES))):
                end = time.monotonic() + SECONDS
            if end and (busy := [worker for worker in range(PROCESSES) if is_under_way(worker)]):
                one = random.choice(busy)
                processes[one].__exit__(None, None, None)
                kills += 1
                sizes[one], processes[one] = logs[one].stat().st_size, start(one)
        stop.touch()
        for process in processes:
            process.wait()
    finally:
        for process in processes:
            process.__exit__(None, None, None)

    answered = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    kept = {id: (account, json.loads(outcome)) for id, account, outcome in rows(RECEIPTS)}
    print(f"{kills} kills, {len(answered)} commands, {sum(isinstance(answer, str) for *_, answer in answered)} refused")
    assert len(answered) > kills
    assert len(rows(RECEIPTS)) == len(kept) == len(answered)
    for id, account, _, answer in answered:
        where, outcome = kept[id]
        assert where == account
        assert answer == (outcome["ok"] if "ok" in outcome else f"missing {outcome['rejected']['fields']['missing']}")
    moved = [(account, amount) for _, account, amount, answer in answered if isinstance(answer, int)]
    assert sorted(rows("SELECT account, amount FROM public.movements")) == sorted(moved)
    balances = dict(rows("SELECT actor_id, (value->>'balance')::int FROM actor_state"))
    assert balances == {account: sum(amount for one, amount in moved if one == account) for account in balances}
    assert sum(balances.values()) == sum(amount for _, amount in moved)


RECEIPTS = "SELECT regexp_replace(command_id, '.*:', ''), actor_id, outcome FROM actor_receipts"
