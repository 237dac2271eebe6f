"""Many threads on few actors, and a database that keeps killing their connections, against a model: the sum."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from akter import Actor, Akter, OutcomeUnknown, Unavailable, command, query
from akter.testing import inspect


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @command(sql=True)
    def note(self, amount: int) -> int:
        self.connection.execute(text("INSERT INTO notes VALUES (:actor, :amount)"), {"actor": self.id, "amount": amount})
        self.balance += amount
        return self.balance

    @query
    def total(self) -> int:
        return self.balance


@pytest.fixture
def crowd(aside: Any) -> Callable[..., list[Any]]:
    """Runs a function in many threads at once and returns what each returned."""

    def run(count: int, work: Callable[[int], Any]) -> list[Any]:
        gate = threading.Barrier(count)

        def begin(number: int) -> Any:
            gate.wait(30)
            return work(number)

        threads = [aside(lambda number=number: begin(number)) for number in range(count)]
        return [thread.answer(90) for thread in threads]

    return run


def test_thirty_two_threads_on_one_actor_get_each_balance_once(akter_app: Callable[..., Akter], crowd: Any) -> None:
    app = akter_app(Account)
    answers = crowd(32, lambda _: [app.actor(Account, "hot").add(1) for _ in range(10)])
    assert sorted(answer for mine in answers for answer in mine) == list(range(1, 321))
    assert all(mine == sorted(mine) for mine in answers)
    found = inspect(app, app.actor(Account, "hot"))
    assert (found.state, len(found.receipts)) == ({"balance": 320}, 320)


def test_thirty_two_threads_on_many_actors_add_up(akter_app: Callable[..., Akter], crowd: Any, observer: Any) -> None:
    app = akter_app(Account)

    def work(number: int) -> list[tuple[str, int]]:
        luck = random.Random(number)
        done: list[tuple[str, int]] = []
        for _ in range(15):
            key, amount = f"k{luck.randrange(20)}", luck.randrange(-100, 100)
            app.actor(Account, key).add(amount)
            done.append((key, amount))
        return done

    sums: dict[str, int] = {}
    for key, amount in (one for mine in crowd(32, work) for one in mine):
        sums[key] = sums.get(key, 0) + amount
    stored = dict(observer.rows("SELECT actor_id, (value ->> 'balance')::int FROM actor_state"))
    assert {key: stored.get(key, 0) for key in sums} == sums
    assert observer.one("SELECT count(*) FROM actor_receipts") == 32 * 15


def test_twenty_threads_with_one_command_id_run_it_once_and_all_get_its_answer(akter_app: Callable[..., Akter], crowd: Any) -> None:
    app = akter_app(Account)

    def work(round: int) -> int:
        with app.command_id(f"round-{round}"):
            return app.actor(Account, "hot").add(1)

    for round in range(1, 6):
        assert crowd(20, lambda _, round=round: work(round)) == [round] * 20
    assert len(inspect(app, app.actor(Account, "hot")).receipts) == 5


def test_two_apps_on_two_engines_share_one_actor(
    akter_app: Callable[..., Akter], make_engine: Callable[..., Any], akter_database: str, crowd: Any
) -> None:
    apps = [akter_app(Account, engine=make_engine(akter_database, pool_size=4, max_overflow=0)) for _ in range(2)]
    answers = crowd(8, lambda number: [apps[number % 2].actor(Account, "hot").add(1) for _ in range(20)])
    assert sorted(answer for mine in answers for answer in mine) == list(range(1, 161))


def test_while_backends_are_killed_every_command_with_a_receipt_counts_once(
    akter_app: Callable[..., Akter], crowd: Any, observer: Any, observe: Any, akter_database: str
) -> None:
    """Five seconds in which a random connection dies every tenth of a second; callers see errors of akter or none."""
    observer.rows("CREATE TABLE notes (actor text, amount int)")
    app = akter_app(Account)
    app.verify()
    end = time.monotonic() + 5.0
    stop = threading.Event()

    def kill() -> int:
        executioner, luck, kills = observe(akter_database), random.Random(1), 0
        mine = observer.connection.info.backend_pid
        while not stop.wait(0.1):
            if victims := [pid for pid in executioner.sessions() if pid != mine]:
                executioner.rows("SELECT pg_terminate_backend(%s)", luck.choice(victims))
                kills += 1
        return kills

    def work(number: int) -> list[tuple[str, str, int, bool]]:
        luck = random.Random(number)
        done: list[tuple[str, str, int, bool]] = []
        while time.monotonic() < end:
            key, amount, id = f"k{luck.randrange(5)}", luck.randrange(1, 100), f"{number}-{len(done)}"
            account = app.actor(Account, key)
            try:
                with app.command_id(id):
                    if luck.random() < 0.3:
                        account.note(amount)
                    else:
                        account.add(amount)
                answered = True
            except (OutcomeUnknown, Unavailable):
                answered = False
            done.append((key, id, amount, answered))
            with contextlib.suppress(Unavailable):
                account.total()
        return done

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        done = [one for mine in crowd(16, work) for one in mine]
    finally:
        stop.set()
        killer.join(10)
    kept = {id.rpartition(":")[2] for (id,) in observer.rows("SELECT command_id FROM actor_receipts")}
    assert len(kept) == observer.one("SELECT count(*) FROM actor_receipts")
    assert {id for _, id, _, answered in done if answered} <= kept
    sums: dict[str, int] = {}
    for key, id, amount, _ in done:
        if id in kept:
            sums[key] = sums.get(key, 0) + amount
    assert dict(observer.rows("SELECT actor_id, (value ->> 'balance')::int FROM actor_state")) == sums
    assert len(done) > 100
