"""Lines that break and servers that fall silent, before, in and after each flight: answered once, in time, or honestly not."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from akter import Actor, Akter, Defect, OutcomeUnknown, Unavailable, command, query
from akter.engine import engine_for
from akter.runner import Runner
from akter.testing import inspect, receipts

inside: dict[str, Callable[[], object]] = {}


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int) -> int:
        if "add" in inside:
            inside["add"]()
        self.balance += amount
        return self.balance

    @command(sql=True)
    def note(self, word: str) -> int:
        self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        self.balance += 1
        return self.balance

    @query
    def total(self) -> int:
        return self.balance


@pytest.fixture(autouse=True)
def nothing_inside() -> Iterator[None]:
    inside.clear()
    yield
    inside.clear()


@pytest.fixture
def app(through: Callable[..., Any]) -> Any:
    app = through(Account)
    app.actor(Account, "a").add(1)
    return app


def counted_once(app: Any, balance: int, commands: int) -> None:
    app.engine.dispose()  # what inspects has no retries
    found = inspect(app, app.actor(Account, "a"))
    assert found.state == {"balance": balance}
    assert len(found.receipts) == len({receipt.command_id for receipt in found.receipts}) == commands


ADMISSION, COMMIT = "BEGIN", "COMMIT"


@pytest.mark.conformance("PIPE-07")
@pytest.mark.parametrize("action", ["cut", "cut in the middle", "drop"])
def test_an_admission_whose_line_breaks_is_sent_again(app: Any, proxy: Any, action: str) -> None:
    fault = proxy.next(ADMISSION, action)
    assert app.actor(Account, "a").add(10) == 11
    assert fault.hits == 1
    counted_once(app, 11, 2)


@pytest.mark.conformance("PIPE-07")
@pytest.mark.parametrize("action", ["cut", "cut in the middle"])
def test_a_commit_that_never_arrived_is_done_by_the_retry(app: Any, proxy: Any, action: str) -> None:
    fault = proxy.next(COMMIT, action)
    assert app.actor(Account, "a").add(10) == 11
    assert fault.hits == 1
    counted_once(app, 11, 2)


@pytest.mark.conformance("PIPE-13")
def test_a_commit_whose_answer_is_lost_is_answered_from_its_receipt(app: Any, proxy: Any) -> None:
    ran: list[str] = []
    inside["add"] = lambda: ran.append("handler")
    fault = proxy.next(COMMIT, "drop")
    assert app.actor(Account, "a").add(10) == 11
    assert (fault.hits, ran) == (1, ["handler"])
    counted_once(app, 11, 2)


@pytest.mark.conformance("PIPE-13")
def test_a_commit_whose_answer_never_comes_is_answered_from_its_receipt_in_time(
    impatient: None, through: Callable[..., Any], proxy: Any
) -> None:
    app = through(Account, execution=0.5, lock=0.2)
    app.actor(Account, "a").add(1)
    fault = proxy.next(COMMIT, "swallow")
    began = time.monotonic()
    assert app.actor(Account, "a").add(10) == 11
    assert time.monotonic() - began < 10
    assert fault.hits == 1
    counted_once(app, 11, 2)


def test_commits_whose_answers_are_always_lost_end_as_outcome_unknown_and_the_id_finds_out(through: Callable[..., Any], proxy: Any) -> None:
    app = through(Account, delivery=1.0, execution=0.5, lock=0.2)
    account = app.actor(Account, "a")
    account.add(1)

    def vanish(line: Any) -> None:
        proxy.refusing = True
        line.close()

    proxy.next(COMMIT, vanish, after=True)
    with app.command_id("payment"), pytest.raises(OutcomeUnknown) as unknown:
        account.add(10)
    assert unknown.value.command_id.endswith("payment")
    assert unknown.value.retryable
    proxy.refusing = False
    with app.command_id("payment"):
        assert account.add(10) == 11
    counted_once(app, 11, 2)


@pytest.mark.parametrize("needle", [ADMISSION, COMMIT])
@pytest.mark.parametrize("action", ["ignore", "swallow"])
def test_a_black_hole_ends_as_unavailable_within_the_time_limits(
    impatient: None, through: Callable[..., Any], proxy: Any, eventually: Callable[..., Any], needle: str, action: str
) -> None:
    hurried = through(Account, execution=0.3, delivery=0.6, lock=0.1)
    account = hurried.actor(Account, "a")

    def first() -> bool:
        with suppress(Unavailable), hurried.command_id("first"):
            return account.add(1) == 1
        return False

    eventually(first)  # however busy the machine is
    proxy.next(needle, action, times=1000)
    began = time.monotonic()
    with hurried.command_id("hole"), pytest.raises(Unavailable):
        account.add(10)
    # The delivery time, the last flight's patience, and what a loaded machine adds.
    assert time.monotonic() - began < 8
    proxy.clear()
    app = through(Account)
    with app.command_id("hole"):
        assert app.actor(Account, "a").add(10) == 11
    counted_once(app, 11, 2)


@pytest.mark.parametrize("action", ["cut", "drop"])
def test_a_runner_whose_line_breaks_while_it_starts_is_unavailable_and_can_be_started_again(app: Any, proxy: Any, action: str) -> None:
    runner = Runner(app, listen=False)
    # The first thing that a runner asks on a connection of its own, about subscriptions that left the code.
    fault = proxy.next("SELECT set_config", action)
    with pytest.raises(Unavailable):
        runner.start()
    assert fault.hits == 1
    assert runner.start() is runner
    app.send(app.actor(Account, "a").add, 10)
    runner.drain()
    assert runner.stop().clean
    counted_once(app, 11, 2)


@pytest.mark.parametrize("action", ["cut", "drop"])
def test_a_query_whose_line_breaks_runs_again(app: Any, proxy: Any, action: str) -> None:
    account = app.actor(Account, "a")
    account.total()
    fault = proxy.next(f"SELECT CAST({app.schema}.actor_state.value", action)
    assert account.total() == 1
    assert fault.hits == 1


@pytest.mark.conformance("PIPE-07")
@pytest.mark.parametrize("needle", [ADMISSION, COMMIT])
def test_a_backend_that_is_terminated_before_a_flight_costs_a_retry(app: Any, proxy: Any, observer: Any, needle: str) -> None:
    fault = proxy.next(needle, lambda line: observer.terminate(line.backend))
    assert app.actor(Account, "a").add(10) == 11
    assert fault.hits == 1
    counted_once(app, 11, 2)


@pytest.mark.conformance("PIPE-08")
@pytest.mark.parametrize("needle", [ADMISSION, COMMIT])
def test_a_backend_that_is_terminated_after_a_flight_costs_a_retry(app: Any, proxy: Any, observer: Any, needle: str) -> None:
    fault = proxy.next(needle, lambda line: observer.terminate(line.backend), after=True)
    assert app.actor(Account, "a").add(10) == 11
    assert fault.hits == 1
    counted_once(app, 11, 2)


@pytest.mark.conformance("PIPE-11")
@pytest.mark.parametrize("flight", ["admission", "commit"])
def test_a_backend_that_is_terminated_in_a_flight_costs_a_retry_and_commits_once(
    app: Any, observer: Any, observe: Any, akter_database: str, aside: Any, eventually: Any, flight: str
) -> None:
    rival = observe(akter_database)
    if flight == "admission":
        rival.rows("BEGIN")
        rival.rows("SELECT FROM actor_generations FOR UPDATE")
    else:
        # The trigger makes the COMMIT itself wait for the rival.
        rival.rows(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;"
            "CREATE CONSTRAINT TRIGGER hold AFTER INSERT ON actor_receipts DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION hold()"
        )
        rival.rows("SELECT pg_advisory_lock(7)")
    turn = aside(lambda: app.actor(Account, "a").add(10))
    (backend,) = eventually(observer.waiting)
    observer.terminate(backend)
    rival.rows("ROLLBACK" if flight == "admission" else "SELECT pg_advisory_unlock(7)")
    assert turn.answer() == 11
    counted_once(app, 11, 2)


def test_a_backend_that_is_terminated_while_the_handler_runs_costs_a_retry(app: Any, observer: Any) -> None:
    tries: list[int] = []

    def terminate() -> None:
        tries.append(1)
        if len(tries) == 1:
            observer.terminate(*observer.sessions("state = 'idle in transaction'"))

    inside["add"] = terminate
    assert app.actor(Account, "a").add(10) == 11
    assert len(tries) == 2
    counted_once(app, 11, 2)


def test_a_handlers_own_statement_that_loses_its_connection_costs_a_retry(app: Any, proxy: Any, observer: Any) -> None:
    observer.rows("CREATE TABLE notes (word text)")
    for action in ("cut", "drop"):
        assert proxy.next("INSERT INTO notes", action).hits == 0
        app.actor(Account, "a").note(action)
    assert observer.rows("SELECT word FROM notes") == [("cut",), ("drop",)]
    counted_once(app, 3, 3)


def test_after_a_night_in_which_all_idle_connections_died_the_first_call_just_works(
    akter_app: Callable[..., Akter], make_engine: Callable[..., Any], akter_database: str, observer: Any
) -> None:
    app = akter_app(Account, engine=make_engine(akter_database, pool_size=12, max_overflow=0), delivery=3.0, execution=1.0)
    for kind in ("turn", "query"):
        # Each was used by a turn or query before.
        wires = [app._wire() for _ in range(12)]
        for wire in wires:
            wire.__exit__(None, None, None)
        app.actor(Account, "a").add(1)
        assert observer.terminate() == 12
        if kind == "turn":
            app.actor(Account, "a").add(10)
        else:
            assert app.actor(Account, "a").total() == 12


def test_dead_connections_that_only_the_application_used_do_not_reach_a_call(
    akter_app: Callable[..., Akter], make_engine: Callable[..., Any], akter_database: str, observer: Any
) -> None:
    engine = make_engine(akter_database, pool_size=12, max_overflow=0)
    app = akter_app(Account, engine=engine, delivery=1.0, execution=0.5, lock=0.1)
    used = [engine.connect() for _ in range(12)]
    for connection in used:
        connection.close()
    assert observer.terminate() == 12
    assert app.actor(Account, "a").add(1) == 1
    assert app.actor(Account, "a").total() == 1


def test_a_frozen_backend_does_not_hold_a_call_past_its_time_nor_a_retry_from_working(
    impatient: None, private_database: str, akter_app: Callable[..., Akter], make_engine: Callable[..., Any], observe: Any
) -> None:
    """A stopped backend cannot run its own timers; only the client's patience ends the wait."""
    app = akter_app(Account, engine=make_engine(private_database, pool_size=4), execution=0.5, delivery=5.0, lock=0.2)
    app.actor(Account, "a").add(1)
    observer = observe(private_database)
    (backend,) = observer.sessions()
    os.kill(backend, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert app.actor(Account, "a").add(10) == 11
        assert time.monotonic() - began < 10
    finally:
        os.kill(backend, signal.SIGCONT)
    counted_once(app, 11, 2)


def test_a_backend_frozen_with_the_actors_lock_makes_calls_unavailable_in_time_and_frees_the_actor_later(
    impatient: None, private_database: str, akter_app: Callable[..., Akter], make_engine: Callable[..., Any], observe: Any
) -> None:
    app = akter_app(Account, engine=make_engine(private_database, pool_size=4), execution=0.4, delivery=0.9, lock=0.2)
    app.actor(Account, "a").add(1)
    observer = observe(private_database)
    frozen: list[int] = []

    def freeze() -> None:
        if not frozen:
            frozen.extend(observer.sessions("state = 'idle in transaction'"))
            os.kill(frozen[0], signal.SIGSTOP)

    inside["add"] = freeze
    try:
        began = time.monotonic()
        with app.command_id("mine"), pytest.raises(Unavailable):
            app.actor(Account, "a").add(10)
        assert time.monotonic() - began < 10
    finally:
        os.kill(frozen[0], signal.SIGCONT)
    with app.command_id("mine"):
        assert app.actor(Account, "a").add(10) == 11
    counted_once(app, 11, 2)


@pytest.mark.conformance("PIPE-13")
@pytest.mark.conformance("PIPE-11")
def test_a_commit_that_is_durable_but_never_acknowledged_is_answered_from_its_receipt(
    private_database: str, akter_app: Callable[..., Akter], make_engine: Callable[..., Any], observe: Any, aside: Any, eventually: Any
) -> None:
    """The commit waits for a standby that does not exist, and its backend is ended there: an error, and the rows are there."""
    app = akter_app(Account, engine=make_engine(private_database, pool_size=4))
    app.actor(Account, "a").add(1)
    observer = observe(private_database)
    observer.rows("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    observer.rows("SELECT pg_reload_conf()")
    commands, waiting = 1, list[int]()
    while not waiting:
        # The server takes the setting in its own time, and a turn before that just commits.
        turn = aside(lambda: app.actor(Account, "a").add(10))
        commands += 1
        waiting = eventually(lambda turn=turn: observer.sessions("wait_event = 'SyncRep'") or ([] if turn.is_alive() else [0]))
        waiting = [backend for backend in waiting if backend]
    observer.terminate(*waiting)
    balance = 1 + 10 * (commands - 1)
    assert turn.answer() == balance
    observer.rows("ALTER SYSTEM RESET synchronous_standby_names")
    observer.rows("SELECT pg_reload_conf()")
    counted_once(app, balance, commands)


@pytest.mark.conformance("PIPE-12")
def test_an_unreachable_database_fails_minting_and_calling_as_unavailable(
    akter_app: Callable[..., Akter], make_engine: Callable[..., Any]
) -> None:
    app = akter_app(Account, engine=make_engine("postgresql+psycopg://u:marker-of-a-password@127.0.0.1:1/db"))
    for attempt in (app.mint_command_id, lambda: app.actor(Account, "a").add(1), lambda: app.actor(Account, "a").total(), app.verify):
        with pytest.raises(Unavailable, match="cannot be reached") as refused:
            attempt()
        assert refused.value.retryable
        assert "marker" not in str(refused.value)


@pytest.mark.conformance("PIPE-12")
def test_once_known_a_database_may_be_away_for_a_while(app: Any, proxy: Any) -> None:
    proxy.refusing = True
    for line in proxy.lines:
        line.close()
    assert app.mint_command_id() is not None
    began = time.monotonic()
    app._turns._limits = type(app._turns._limits)(execution=0.3, delivery=0.6, lock=0.1)
    with app.command_id("later"), pytest.raises(Unavailable, match="cannot be reached"):
        app.actor(Account, "a").add(10)
    with pytest.raises(Unavailable, match="cannot be reached"):
        app.actor(Account, "a").total()
    assert time.monotonic() - began < 8
    proxy.refusing = False
    with app.command_id("later"):
        assert app.actor(Account, "a").add(10) == 11
    counted_once(app, 11, 2)


def test_a_host_that_accepts_and_says_nothing_is_given_up(akter_app: Callable[..., Akter], proxy: Any, impatient: None) -> None:
    """Without a limit of its own, connecting to a black hole would take minutes."""
    silent = socket.create_server(("127.0.0.1", 0))
    url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/db?connect_timeout=2"
    engine, _ = engine_for(url)
    app = akter_app(Account, engine=engine, execution=0.3, delivery=0.5)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be reached"):
        app.actor(Account, "a").add(1)
    assert time.monotonic() - began < 10
    engine.dispose()
    silent.close()


def test_an_error_that_the_caller_was_handling_does_not_make_a_defect_look_retryable(app: Any, observer: Any) -> None:
    class Once(Exception):
        pass

    def bug() -> None:
        raise Once("a bug")

    inside["add"] = bug
    try:
        raise psycopg.OperationalError("another database is away")
    except psycopg.OperationalError:
        with pytest.raises(Defect):
            app.actor(Account, "a").add(1)


def test_a_defect_after_a_lost_connection_is_still_a_defect(app: Any, proxy: Any) -> None:
    tries: list[int] = []

    def bug() -> None:
        tries.append(1)
        raise ValueError("a bug")

    inside["add"] = bug
    proxy.next(ADMISSION, "drop")
    with pytest.raises(Defect):
        app.actor(Account, "a").add(1)
    assert len(tries) == 1
    assert len(receipts(app, app.actor(Account, "a"))) == 1
