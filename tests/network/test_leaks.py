"""What a turn must not leave behind: open transactions, session settings, signal handlers, secrets in messages."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from akter import Actor, Akter, AkterError, Defect, Rejection, command, query
from akter.testing import inspect

inside: dict[str, Callable[[], object]] = {}


class Refused(Rejection):
    """It was refused."""


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int, secret: str = "") -> int:
        self.balance += amount
        if "add" in inside:
            inside["add"]()
        return self.balance

    @command(sql=True)
    def note(self, word: str) -> int:
        self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        self.balance += 1
        if "note" in inside:
            inside["note"]()
        return self.balance

    @command(sql=True)
    def compute(self, statement: str, secret: str) -> None:
        self.connection.execute(text(statement), {"secret": secret})

    @command(sql=True)
    def forget_session(self, word: str) -> None:
        self.session.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})

    @command
    def refuse(self) -> None:
        raise Refused

    @query
    def total(self) -> int:
        return self.balance

    @query(sql=True)
    def count(self) -> int:
        if "count" in inside:
            inside["count"]()
        return int(self.connection.execute(text("SELECT count(*) FROM notes")).scalar_one())


@pytest.fixture(autouse=True)
def nothing_inside(observer: Any) -> Iterator[None]:
    observer.rows("CREATE TABLE notes (word text UNIQUE CHECK (word <> 'wrong'))")
    inside.clear()
    yield
    inside.clear()


def bug() -> None:
    raise ValueError("a bug")


def every_kind_of_call(app: Akter, number: int) -> None:
    account = app.actor(Account, "a")
    account.add(1)
    account.note(f"n{number}")
    account.forget_session(f"s{number}")
    account.total()
    account.count()
    with pytest.raises(Refused):
        account.refuse()
    with app.command_id("once"):
        account.add(0)
    for way in ("add", "note"):
        inside[way] = bug
        with pytest.raises(Defect):
            account.add(1) if way == "add" else account.note(f"never{number}")
        inside.clear()
    inside["count"] = bug
    with pytest.raises(Defect):
        account.count()
    inside.clear()
    for statement in ("SELECT 1/0", "INSERT INTO notes VALUES ('wrong')", "COMMIT", "ROLLBACK"):
        with pytest.raises(Defect):
            account.compute(statement, "x")


def test_no_session_stays_in_a_transaction_after_calls_of_any_kind(akter_app: Callable[..., Akter], observer: Any) -> None:
    app = akter_app(Account)
    for number in range(3):
        every_kind_of_call(app, number)
        assert observer.sessions("state <> 'idle'") == []


def test_nothing_is_left_on_the_connections_of_the_pool(akter_app: Callable[..., Akter], observer: Any) -> None:
    """No setting, no temporary table, no LISTEN, no advisory lock, no open cursor: the next user gets a clean connection."""
    app = akter_app(Account)
    settings = "SELECT name, setting FROM pg_settings WHERE NOT starts_with(name, 'transaction') ORDER BY name"
    with app.engine.connect() as connection:
        before = connection.exec_driver_sql(settings).all()
    for number in range(3):
        every_kind_of_call(app, number)
    held = [app.engine.connect() for _ in range(app.engine.pool.checkedin())]  # type: ignore[attr-defined]
    assert held
    for connection in held:
        assert connection.exec_driver_sql(settings).all() == before
        assert connection.exec_driver_sql("SELECT * FROM pg_listening_channels()").all() == []
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_class WHERE relpersistence = 't'").scalar() == 0
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_cursors WHERE name <> ''").scalar() == 0
    assert observer.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
    for connection in held:
        connection.close()


def test_no_statement_of_ours_sets_anything_beyond_its_transaction(through: Callable[..., Akter], proxy: Any) -> None:
    app = through(Account)
    for number in range(2):
        every_kind_of_call(app, number)
    ours = [statement.upper() for statement in proxy.statements]
    for word in ("SET SESSION", "SET AKTER", "LISTEN", "UNLISTEN", "CREATE TEMP", "PG_ADVISORY_LOCK(", "DECLARE", "DISCARD", "RESET "):
        assert [statement for statement in ours if statement.startswith(word) or f" {word}" in statement] == []
    assert [statement for statement in ours if statement.startswith("SET ") and not statement.startswith("SET LOCAL ")] == []


@pytest.mark.parametrize("way", ["add", "note"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_a_handler_rolls_back_and_leaves_a_clean_connection(
    akter_app: Callable[..., Akter], make_engine: Any, akter_database: str, observer: Any, way: str, problem: type[BaseException]
) -> None:
    app = akter_app(Account, engine=make_engine(akter_database, pool_size=1, max_overflow=0))
    account = app.actor(Account, "a")
    account.add(1)

    def interrupt() -> None:
        raise problem

    inside[way] = interrupt
    with pytest.raises(problem):
        account.add(1) if way == "add" else account.note("never")
    inside.clear()
    assert observer.sessions("state <> 'idle'") == []
    assert observer.rows("SELECT * FROM notes") == []
    assert account.add(1) == 2
    assert len(inspect(app, account).receipts) == 2


def test_an_interrupt_in_a_query_leaves_a_clean_connection(
    akter_app: Callable[..., Akter], make_engine: Any, akter_database: str, observer: Any
) -> None:
    app = akter_app(Account, engine=make_engine(akter_database, pool_size=1, max_overflow=0))

    def interrupt() -> None:
        raise KeyboardInterrupt

    inside["count"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        app.actor(Account, "a").count()
    inside.clear()
    assert observer.sessions("state <> 'idle'") == []
    assert app.actor(Account, "a").count() == 0


INTERRUPTED = """
import os, signal, sys, threading, psycopg
# A shell that starts this in the background has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from akter import Actor, Akter, command
class Account(Actor):
    "Money."
    balance: int = 0
    @command
    def add(self) -> int:
        self.balance += 1
        return self.balance
url, schema = sys.argv[1:]
app = Akter(url, actors=[Account], schema=schema)
account = app.actor(Account, "a")
account.add()
rival = psycopg.connect(url.replace("+psycopg", ""))
rival.execute(f"SELECT FROM {schema}.actor_generations FOR UPDATE")
def interrupt():
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as observer:
        while not observer.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()").rowcount:
            pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    account.add()
    print("not interrupted")
except KeyboardInterrupt:
    rival.rollback()
    print("interrupted, then", account.add())
app.close()
rival.close()
"""


def test_control_c_while_a_turn_waits_for_the_database_ends_the_turn_and_the_next_one_works(akter_database: str, akter_schema: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, akter_database, akter_schema]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("interrupted, then 2\n", "")


SIGNALS = """
import signal, sys, threading
def handlers():
    return {number: signal.getsignal(number) for number in signal.valid_signals()}
before = handlers()
from akter import Actor, Akter, command
import akter.testing, akter.embedded
assert handlers() == before, "import"
class Account(Actor):
    "Money."
    balance: int = 0
    @command
    def add(self) -> int:
        assert handlers() == before, "in a turn"
        self.balance += 1
        return self.balance
app = Akter(sys.argv[1], actors=[Account], schema=sys.argv[2])
app.actor(Account, "a").add()
thread = threading.Thread(target=app.actor(Account, "a").add)
thread.start()
thread.join()
app.close()
assert handlers() == before, "after use"
print([thread.name for thread in threading.enumerate()])
"""


def test_signal_handlers_are_as_they_were_and_no_thread_is_left(akter_database: str, akter_schema: str) -> None:
    command = [sys.executable, "-c", SIGNALS, akter_database, akter_schema]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("['MainThread']\n", "")


SECRET = "marker-of-an-argument"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[BaseException | None], str]:
    """Everything that was logged, with its extra fields, and what an error shows; what caused it is the application's own."""
    caplog.set_level(logging.DEBUG)

    def words(problem: BaseException | None) -> str:
        records = "\n".join(
            f"{record.getMessage()} { ({**record.__dict__, 'exc_info': None, 'exc_text': None}) }" for record in caplog.records
        )
        return f"{records}\n{problem}\n{problem!r}\n{vars(problem) if isinstance(problem, AkterError) else ''}"

    return words


def test_arguments_do_not_show_in_errors_nor_logs(
    akter_database: str, observer: Any, told: Any, akter_app: Callable[..., Akter], make_engine: Any
) -> None:
    """Also with an engine that would show the parameters of its statements."""
    app = akter_app(Account, engine=make_engine(akter_database, hide_parameters=False), delivery=0.5, execution=0.3, lock=0.1)
    account = app.actor(Account, "a")
    account.add(1, SECRET)
    account.note(SECRET)
    statements = ("SELECT 1/0, :secret", "SELECT :secret FROM missing", "INSERT INTO notes VALUES (:secret)", "SELECT nothing, :secret")
    for statement in statements:
        with pytest.raises(Defect) as refused:
            account.compute(statement, SECRET)
        assert SECRET not in told(refused.value)
    with app.command_id("one"):
        account.add(1, SECRET)
    with app.command_id("one"), pytest.raises(AkterError) as refused:
        account.add(2, SECRET)
    assert SECRET not in told(refused.value)
    for table, change in (
        ("actor_receipts", "ADD CONSTRAINT no_more CHECK (command_id = '') NOT VALID"),
        ("actor_state", "RENAME COLUMN value TO worth"),
        ("actor_receipts", "RENAME TO actor_slips"),
    ):
        observer.rows(f"ALTER TABLE {table} {change}")
        with pytest.raises(AkterError) as refused:
            account.add(1, SECRET)
        assert SECRET not in told(refused.value)
    assert SECRET not in repr(app) + repr(account) + repr(account.add)


def test_what_our_own_statements_failed_with_does_not_quote_rows(akter_app: Callable[..., Akter], observer: Any) -> None:
    app = akter_app(Account)
    app.actor(Account, "a").add(1)
    observer.rows("ALTER TABLE actor_receipts ADD CONSTRAINT no_more CHECK (command_id = '') NOT VALID")
    with pytest.raises(Defect, match="no_more") as refused, app.command_id(SECRET):
        app.actor(Account, "a").add(1)
    cause: BaseException | None = refused.value
    while cause is not None:
        assert SECRET not in str(cause)
        cause = cause.__cause__


def test_the_password_does_not_show_in_errors_nor_logs(akter_database: str, akter_schema: str, told: Any, observer: Any) -> None:
    password = "marker-of-a-password"
    url = make_url(akter_database).set(password=password)
    with Akter(url.render_as_string(hide_password=False), actors=[Account], schema=akter_schema) as app:
        app.actor(Account, "a").add(1)
        observer.terminate()
        app.actor(Account, "a").add(1)
        assert password not in told(None) + repr(app) + repr(app.engine) + repr(app.actor(Account, "a"))
    for broken in (
        url.set(host="127.0.0.1", port=1, query={}),
        url.set(database="missing"),
        url.set(username="nobody-at-all"),
        url.update_query_dict({"hots": "1"}),
    ):
        with (
            Akter(broken.render_as_string(hide_password=False), actors=[Account], schema=akter_schema) as app,
            pytest.raises(AkterError) as refused,
        ):
            app.actor(Account, "a").add(1)
        problem: BaseException | None = refused.value
        while problem is not None:
            assert password not in told(problem)
            problem = problem.__cause__


def test_no_thread_is_started_by_turns_that_ask_for_nothing(akter_app: Callable[..., Akter]) -> None:
    before = set(threading.enumerate())
    app = akter_app(Account)
    app.actor(Account, "a").add(1)
    app.actor(Account, "a").total()
    assert set(threading.enumerate()) == before
