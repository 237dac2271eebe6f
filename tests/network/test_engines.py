"""Engines and pools as applications have them."""

from __future__ import annotations

import decimal
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.types.numeric import IntNumericDumper
from psycopg.types.string import StrBinaryDumper, TextBinaryLoader
from sqlalchemy import event, text
from sqlalchemy.pool import AssertionPool, NullPool, SingletonThreadPool, StaticPool

from akter import Actor, Akter, Defect, Unavailable, command, query
from akter.engine import engine_for, seats
from akter.errors import ConfigurationError
from akter.testing import inspect, pause_next, receipts


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @command(sql=True)
    def note(self, word: str) -> int:
        self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        self.balance += 1
        return self.balance

    @command(sql=True)
    def fail(self, word: str) -> None:
        self.connection.execute(text("INSERT INTO notes VALUES (:word)"), {"word": word})
        raise ValueError("a bug")

    @query
    def total(self) -> int:
        return self.balance


@pytest.fixture
def with_engine(make_engine: Callable[..., Any], akter_database: str, akter_app: Callable[..., Akter]) -> Callable[..., Akter]:
    """An app on an engine with options, and limits for the app."""

    def make(limits: dict[str, float] | None = None, **options: Any) -> Akter:
        return akter_app(Account, engine=make_engine(akter_database, **options), **(limits or {}))

    return make


SHORT = {"execution": 0.3, "delivery": 0.6, "lock": 0.1}


def use(app: Akter, observer: Any) -> None:
    """Everything a turn can do, eight times, and what it must leave."""
    observer.rows("CREATE TABLE IF NOT EXISTS notes (word text)")
    account = app.actor(Account, "a")
    for number in range(8):
        assert account.add(1) == 2 * number + 1
        assert account.note(f"n{number}") == 2 * number + 2
        with pytest.raises(Defect):
            account.fail("never")
        with app.command_id(f"once-{number}"):
            account.add(0)
        with app.command_id(f"once-{number}"):
            account.add(0)
        assert account.total() == 2 * number + 2
    assert observer.rows("SELECT word FROM notes ORDER BY word") == [(f"n{number}",) for number in range(8)]
    assert observer.one("SELECT count(*) FROM actor_receipts") == 24
    assert observer.sessions("state LIKE 'idle in transaction%'") == []


@pytest.mark.parametrize(
    "options",
    [
        {"poolclass": NullPool},
        {"pool_pre_ping": True},
        {"isolation_level": "AUTOCOMMIT"},
        {"isolation_level": "SERIALIZABLE"},
        {"isolation_level": "REPEATABLE READ"},
        {"pool_reset_on_return": None},
        {"pool_size": 0},
        {"pool_size": 1, "max_overflow": 0, "pool_use_lifo": True},
        {"pool_recycle": 0},
        {"connect_args": {"autocommit": True}},
        {"connect_args": {"prepare_threshold": 0}},
        {"connect_args": {"prepare_threshold": None}},
        {"connect_args": {"cursor_factory": psycopg.ClientCursor}},
        {"connect_args": {"options": "-c statement_timeout=60000 -c application_name=mine"}},
        {"execution_options": {"schema_translate_map": {"akter": "elsewhere", None: "public"}}},
        {"echo": False, "future": True, "query_cache_size": 0, "use_native_hstore": False},
    ],
    ids=lambda options: ", ".join(f"{key} {value}" for key, value in options.items())[:60],
)
def test_an_applications_engine_may_be_made_like_this(with_engine: Callable[..., Akter], observer: Any, options: dict[str, Any]) -> None:
    use(with_engine(**options), observer)


def test_an_engine_with_hostile_serializers_does_not_matter(with_engine: Callable[..., Akter], observer: Any) -> None:
    def refuse(_: Any) -> Any:
        raise AssertionError("akter has a codec of its own")

    use(with_engine(json_serializer=refuse, json_deserializer=refuse), observer)


def test_adapters_of_the_application_do_not_reach_stored_values(
    make_engine: Callable[..., Any], akter_database: str, akter_app: Callable[..., Akter], observer: Any
) -> None:
    class Shouting(psycopg.adapt.Loader):
        def load(self, data: Any) -> Any:
            return bytes(data).decode().upper()

    class Exact(psycopg.adapt.Loader):
        def load(self, data: Any) -> Any:
            return decimal.Decimal(bytes(data).decode())

    engine = make_engine(akter_database)

    @event.listens_for(engine, "connect")
    def adapt(connection: Any, _: Any) -> None:
        connection.adapters.register_dumper(str, StrBinaryDumper)
        connection.adapters.register_dumper(int, IntNumericDumper)
        connection.adapters.register_loader("int8", Exact)
        connection.adapters.register_loader("json", Shouting)
        connection.adapters.register_loader("text", TextBinaryLoader)

    use(akter_app(Account, engine=engine), observer)


def test_listeners_of_the_application_hear_their_own_statements_and_change_nothing(
    make_engine: Callable[..., Any], akter_database: str, akter_app: Callable[..., Akter], observer: Any
) -> None:
    engine = make_engine(akter_database)
    heard: dict[str, int] = {}

    def hear(name: str) -> Callable[..., None]:
        def listener(*_: Any, **__: Any) -> None:
            heard[name] = heard.get(name, 0) + 1

        return listener

    for name in ("connect", "first_connect", "checkout", "checkin", "close", "invalidate", "reset"):
        event.listen(engine, name, hear(name))
    for name in ("begin", "commit", "rollback", "savepoint", "engine_connect", "after_cursor_execute"):
        event.listen(engine, name, hear(name))

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def comment(_: Any, __: Any, statement: str, parameters: Any, ___: Any, ____: bool) -> tuple[str, Any]:
        return f"{statement} /* by the application */", parameters

    use(akter_app(Account, engine=engine), observer)
    assert heard["checkout"] == heard["checkin"] > 8


@pytest.mark.parametrize("moment", ["connect", "checkout"])
def test_a_listener_that_leaves_a_transaction_open_is_refused_with_the_remedy(
    make_engine: Callable[..., Any], akter_database: str, akter_app: Callable[..., Akter], observer: Any, moment: str
) -> None:
    engine = make_engine(akter_database)

    def open_one(connection: Any, *_: Any) -> None:
        connection.execute("SET search_path TO public")

    event.listen(engine, moment, open_one)
    app = akter_app(Account, engine=engine)
    with pytest.raises(ConfigurationError, match="autocommit"):
        app.actor(Account, "a").add(1)
    event.remove(engine, moment, open_one)
    assert app.actor(Account, "a").add(1) == 1


def test_work_that_the_application_left_open_is_never_committed_by_a_turn(with_engine: Callable[..., Akter], observer: Any) -> None:
    observer.rows("CREATE TABLE notes (word text)")
    app = with_engine(pool_size=1, max_overflow=0, pool_reset_on_return=None)
    app.actor(Account, "a").add(1)
    raw = app.engine.raw_connection()
    raw.driver_connection.execute("INSERT INTO notes VALUES ('left open')")  # type: ignore[union-attr]
    raw.close()
    with pytest.raises(ConfigurationError, match="pool_reset_on_return"):
        app.actor(Account, "a").add(1)
    assert app.actor(Account, "a").add(1) == 2
    assert observer.rows("SELECT * FROM notes") == []


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool, AssertionPool])
def test_a_pool_that_gives_one_connection_to_all_is_refused_with_the_remedy(
    akter_database: str, make_engine: Callable[..., Any], pool: Any
) -> None:
    with pytest.raises(ConfigurationError, match="NullPool"):
        Akter(make_engine(akter_database, poolclass=pool), actors=[Account])


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("postgresql+psycopg2://u:marker@h/d", r"postgresql\+psycopg://"),
        ("postgresql+asyncpg://u:marker@h/d", r"postgresql\+psycopg://"),
        ("postgresql+pg8000://u:marker@h/d", r"postgresql\+psycopg://"),
        ("postgresql+psycopg_async://u:marker@h/d", r"postgresql\+psycopg://"),
        ("mysql://u:marker@h/d", "postgresql://"),
        ("sqlite://", "postgresql://"),
        ("postgresql://u:ma@rker:x/marker@h/d", "postgresql://user:password@host/database"),
        ("marker", "postgresql://user:password@host/database"),
        ("", "AKTER_DATABASE_URL"),
        (7, "Engine"),
    ],
)  # fmt: skip
def test_other_databases_and_drivers_are_refused_with_the_remedy(target: Any, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AKTER_DATABASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match=remedy) as refused:
        Akter(target or None, actors=[Account])
    assert "marker" not in str(refused.value)


def test_asynchronous_engines_are_refused_with_the_remedy() -> None:
    class Asynchronous:
        """As SQLAlchemy's AsyncEngine, which needs greenlet, looks from outside."""

        sync_engine = sqlalchemy.create_engine("postgresql+psycopg://u@h/d")

    Asynchronous.sync_engine.dialect.is_async = True
    for given in (Asynchronous(), Asynchronous.sync_engine):
        with pytest.raises(ConfigurationError, match=r"create_engine\('postgresql\+psycopg"):
            Akter(given, actors=[Account])  # type: ignore[arg-type]


def test_an_engine_on_another_database_is_refused_with_the_remedy() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match=r"sqlite.*postgresql\+psycopg"):
        Akter(engine, actors=[Account])
    engine.dispose()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_postgresql_is_accepted(akter_database: str, akter_schema: str, scheme: str) -> None:
    with Akter(akter_database.replace("postgresql+psycopg", scheme, 1), actors=[Account], schema=akter_schema) as app:
        assert app.actor(Account, "a").add(1) == 1
        assert "marker" not in repr(app.engine)


def test_an_engine_that_akter_makes_does_not_wait_for_a_silent_host_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def connecting(url: str, **options: Any) -> dict[str, Any]:
        engine, _ = engine_for(url, **options)
        seen: dict[str, Any] = {}

        @event.listens_for(engine, "do_connect")
        def look(_: Any, __: Any, ___: Any, parameters: dict[str, Any]) -> Any:
            seen.update(parameters)
            raise psycopg.OperationalError("far enough")

        with pytest.raises(sqlalchemy.exc.OperationalError):
            engine.connect()
        return seen

    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    assert connecting("postgresql://u@h/d")["connect_timeout"] == 10
    assert str(connecting("postgresql://u@h/d?connect_timeout=3")["connect_timeout"]) == "3"
    assert connecting("postgresql://u@h/d", connect_args={"connect_timeout": 4})["connect_timeout"] == 4
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "5")
    assert "connect_timeout" not in connecting("postgresql://u@h/d")


def test_the_seats_of_turns_are_the_pools_connections(make_engine: Callable[..., Any], akter_database: str) -> None:
    assert seats(make_engine(akter_database, pool_size=3, max_overflow=10)) == 3
    assert seats(make_engine(akter_database, pool_size=0)) == 16
    assert seats(make_engine(akter_database, poolclass=NullPool)) == 16


def test_a_pool_that_the_application_uses_up_is_named_with_the_remedy(with_engine: Callable[..., Akter]) -> None:
    app = with_engine(SHORT, pool_size=1, max_overflow=0, pool_timeout=0.1)
    app.actor(Account, "a").add(1)
    with app.engine.connect():
        for call in (lambda: app.actor(Account, "a").add(1), lambda: app.actor(Account, "a").total()):
            with pytest.raises(Unavailable, match="pool_size") as refused:
                call()
            assert refused.value.retryable
    assert app.actor(Account, "a").add(1) == 2


def test_an_engine_that_akter_makes_waits_for_a_connection_no_longer_than_a_call_may_take() -> None:
    assert Akter("postgresql://u@h/d", actors=[Account], delivery=2.5).engine.pool.timeout() == 2.5  # type: ignore[attr-defined]
    assert Akter("postgresql://u@h/d", actors=[Account], delivery=90.0).engine.pool.timeout() == 30.0  # type: ignore[attr-defined]


def test_a_pool_of_one_serves_many_threads(with_engine: Callable[..., Akter]) -> None:
    app = with_engine(pool_size=1, max_overflow=0)
    answers: list[int] = []

    def work() -> None:
        for _ in range(10):
            answers.append(app.actor(Account, "hot").add(1))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it is stuck"
    assert sorted(answers) == list(range(1, 161))
    assert len(receipts(app, app.actor(Account, "hot"))) == 160


def test_a_turn_without_a_seat_in_time_is_unavailable_and_runs_later(with_engine: Callable[..., Akter], aside: Any) -> None:
    app = with_engine(SHORT, pool_size=1, max_overflow=0)
    app.actor(Account, "a").add(1)
    with pause_next(app, "before_handler") as pause:
        holder = aside(lambda: app.actor(Account, "a").add(1))
        pause.wait()
        began = time.monotonic()
        with app.command_id("waits"), pytest.raises(Unavailable, match="pool"):
            app.actor(Account, "b").add(1)
        assert time.monotonic() - began < 5
    with app.command_id("waits"):
        assert app.actor(Account, "b").add(1) == 1
    holder.join(10)


def test_a_server_without_free_connections_is_unavailable_and_works_again(
    private_database: str, make_engine: Callable[..., Any], akter_app: Callable[..., Akter], observe: Any
) -> None:
    observer = observe(private_database)
    name = observer.one("SELECT current_database()")
    observer.rows("DROP ROLE IF EXISTS few")
    observer.rows("CREATE ROLE few LOGIN CONNECTION LIMIT 1 IN ROLE pg_read_all_data, pg_write_all_data")
    url = private_database.replace("postgres@", "few@")
    app = akter_app(Account, engine=make_engine(url), **SHORT)
    with psycopg.connect(url.replace("+psycopg", "")), pytest.raises(Unavailable, match="too many connections"):
        app.actor(Account, "a").add(1)
    assert app.actor(Account, "a").add(1) == 1
    assert name


def test_a_lent_engine_is_never_disposed_of(with_engine: Callable[..., Akter], observer: Any) -> None:
    app = with_engine()
    app.actor(Account, "a").add(1)
    app.close()
    assert len(observer.sessions()) == 1
    assert app.actor(Account, "a").add(1) == 2
    assert inspect(app, app.actor(Account, "a")).version == 2
