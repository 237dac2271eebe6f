"""Databases and roles whose defaults are not PostgreSQL's: a turn brings the settings it needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from akter import Actor, Akter, AkterError, Rejection, Unavailable, command, query
from akter.errors import ConfigurationError
from akter.testing import inspect


class Refused(Rejection):
    """It was refused."""

    why: str


class Account(Actor):
    """Money, with words of every kind beside it."""

    balance: int = 0
    words: str = ""

    @command
    def add(self, amount: int, words: str = "") -> int:
        self.balance += amount
        self.words = words
        return self.balance

    @command
    def refuse(self, why: str) -> None:
        raise Refused(why=why)

    @command(sql=True)
    def note(self, word: str) -> int:
        self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        self.balance += 1
        return self.balance

    @command
    def dawdle(self, seconds: float) -> int:
        time.sleep(seconds)
        self.balance += 1
        return self.balance

    @query
    def total(self) -> tuple[int, str]:
        return self.balance, self.words

    @query(sql=True)
    def isolation(self) -> str:
        return str(self.connection.execute(text("SHOW transaction_isolation")).scalar_one())


DEFAULTS = {
    "serializable": {"default_transaction_isolation": "serializable"},
    "repeatable read": {"default_transaction_isolation": "repeatable read"},
    "serializable, deferrable, read only": {
        "default_transaction_isolation": "serializable",
        "default_transaction_deferrable": "on",
        "default_transaction_read_only": "on",
    },
    "asynchronous commits": {"synchronous_commit": "off"},
    "another time zone and date style": {"TimeZone": "Asia/Kathmandu", "DateStyle": "German, DMY", "IntervalStyle": "sql_standard"},
    "another language": {"lc_messages": "C", "lc_numeric": "C", "lc_monetary": "C"},
    "old strings": {"standard_conforming_strings": "off", "escape_string_warning": "off", "backslash_quote": "on"},
    "another output of bytes and numbers": {"bytea_output": "escape", "extra_float_digits": "-15", "xmloption": "document"},
    "generic plans": {"plan_cache_mode": "force_generic_plan", "jit": "on", "jit_above_cost": "0"},
    "a search path to nowhere": {"search_path": "nowhere"},
    "chatty": {"client_min_messages": "debug1", "log_statement": "all"},
    "row security off": {"row_security": "off"},
    "short limits for statements and locks": {"statement_timeout": "500ms", "lock_timeout": "1ms"},
}


@pytest.mark.parametrize("settings", DEFAULTS.values(), ids=DEFAULTS)
def test_turns_and_queries_do_not_depend_on_the_databases_defaults(
    akter_app: Callable[..., Akter], observer: Any, configure: Any, aside: Any, settings: dict[str, str]
) -> None:
    app = akter_app(Account)
    observer.rows("CREATE TABLE public.notes (word text)")
    if "search_path" in settings:
        observer.rows("CREATE SCHEMA nowhere")
        observer.rows("ALTER TABLE public.notes SET SCHEMA nowhere")
    configure(settings)
    account = app.actor(Account, "a\\'b\"c")
    words = "\\ ' \" $1 %s ü 𝄞 \\x41 {} ,"
    for _ in range(7):
        account.add(1, words)
    assert account.total() == (7, words)
    for _ in range(2):
        with app.command_id("o'clock\\"), pytest.raises(Refused) as refused:
            account.refuse(words)
        assert refused.value.why == words
    assert account.note(words) == 8
    assert account.isolation() == "repeatable read"

    def work() -> None:
        for _ in range(10):
            app.actor(Account, "hot").add(1)

    workers = [aside(work) for _ in range(4)]
    for worker in workers:
        worker.answer()
    assert app.actor(Account, "hot").total()[0] == 40


def test_a_session_that_the_database_ends_for_being_idle_is_replaced(
    akter_app: Callable[..., Akter], observer: Any, configure: Any, eventually: Any
) -> None:
    configure({"idle_session_timeout": "50ms"})
    app = akter_app(Account)
    for number in range(1, 4):
        assert app.actor(Account, "a").add(1) == number
        assert app.actor(Account, "a").total()[0] == number
        eventually(lambda: not observer.sessions())


def test_a_handler_may_idle_longer_than_the_database_allows_by_default(akter_app: Callable[..., Akter], configure: Any) -> None:
    configure({"idle_in_transaction_session_timeout": "50ms", "statement_timeout": "200ms", "lock_timeout": "20ms"})
    app = akter_app(Account)
    assert app.actor(Account, "a").dawdle(0.3) == 1


def test_a_handler_that_is_stuck_loses_its_backend_and_the_actor_is_free(akter_app: Callable[..., Akter], aside: Any) -> None:
    """One second after its time, the server ends a transaction that nobody works in."""
    stuck = akter_app(Stuck, execution=0.2, delivery=0.4, lock=0.2)
    other = akter_app(Stuck)
    release.clear()
    try:
        turn = aside(lambda: stuck.actor(Stuck, "a").wait())
        assert entered.wait(20)
        assert other.actor(Stuck, "a").go() == 1
    finally:
        release.set()
    with pytest.raises(Unavailable):
        turn.answer()
    assert inspect(other, other.actor(Stuck, "a")).state == {"count": 1}


entered, release = threading.Event(), threading.Event()


class Stuck(Actor):
    """Waits for something that is not the database."""

    count: int = 0

    @command
    def wait(self) -> None:
        self.count = -100
        entered.set()
        release.wait(30)

    @command
    def go(self) -> int:
        self.count += 1
        return self.count


def test_a_limit_for_whole_transactions_is_the_databases_word(akter_app: Callable[..., Akter], observer: Any, configure: Any) -> None:
    if observer.connection.info.server_version < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    app = akter_app(Account, execution=0.6, delivery=1.0, lock=0.2)
    account = app.actor(Account, "a")
    account.add(1)
    app.engine.dispose()
    configure({"transaction_timeout": "100ms"})
    assert account.add(1) == 2
    with pytest.raises(Unavailable):
        account.dawdle(0.3)
    configure({"transaction_timeout": "0"})
    app.engine.dispose()
    assert inspect(app, account).state == {"balance": 2, "words": ""}


@pytest.fixture
def latin(akter_server: Callable[[str], str]) -> Iterator[str]:
    """A database that is not UTF-8."""
    with psycopg.connect(akter_server("postgres").replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS akter_latin")
        admin.execute("CREATE DATABASE akter_latin ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0")
        yield akter_server("akter_latin")
        admin.execute("DROP DATABASE akter_latin WITH (FORCE)")


def test_a_database_that_is_not_utf8_is_refused_with_the_remedy(
    latin: str, make_engine: Callable[..., Any], akter_app: Callable[..., Akter]
) -> None:
    app = akter_app(Account, engine=make_engine(latin))
    with pytest.raises(ConfigurationError, match="LATIN1.*createdb --encoding=UTF8"):
        app.actor(Account, "a").add(1)


def test_an_engine_that_speaks_another_encoding_is_refused_with_the_remedy(
    akter_database: str, make_engine: Callable[..., Any], akter_app: Callable[..., Akter]
) -> None:
    for options in ({"client_encoding": "latin1"}, {"connect_args": {"client_encoding": "latin1"}}):
        app = akter_app(Account, engine=make_engine(akter_database, **options))
        with pytest.raises(ConfigurationError, match="client_encoding"):
            app.actor(Account, "a").add(1)


def test_a_role_without_rights_is_told_which(
    akter_database: str, akter_schema: str, observer: Any, make_engine: Callable[..., Any], akter_app: Callable[..., Akter]
) -> None:
    observer.rows("DROP ROLE IF EXISTS nobody_much")
    observer.rows("CREATE ROLE nobody_much LOGIN PASSWORD 'x'")
    url = make_url(akter_database).set(username="nobody_much", password="x")
    app = akter_app(Account, engine=make_engine(url.render_as_string(hide_password=False)))
    try:
        with pytest.raises(AkterError, match="akter grants"):
            app.actor(Account, "a").add(1)
        observer.rows(f"GRANT USAGE ON SCHEMA {akter_schema} TO nobody_much")
        observer.rows(f"GRANT SELECT ON ALL TABLES IN SCHEMA {akter_schema} TO nobody_much")
        with pytest.raises(AkterError, match="akter grants"):
            app.actor(Account, "a").add(1)
    finally:
        app.engine.dispose()
        observer.rows("DROP OWNED BY nobody_much")
        observer.rows("DROP ROLE nobody_much")
