"""Where a lent connection leads: to this Akter's database, or it is refused and its transaction is as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine, text

from akter import Actor, Akter, Runner, command, query, schema
from akter.errors import Defect, DeploymentMismatch, InsideTurn


@pytest.fixture
def elsewhere(akter_server: Callable[[str], str]) -> Iterator[str]:
    """The URL of an empty database."""
    admin = sqlalchemy.create_engine(akter_server("postgres"), isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    with admin.connect() as connection:
        connection.execute(text("DROP DATABASE IF EXISTS akter_elsewhere WITH (FORCE)"))
        connection.execute(text("CREATE DATABASE akter_elsewhere"))
        yield akter_server("akter_elsewhere")
        connection.execute(text("DROP DATABASE akter_elsewhere WITH (FORCE)"))


@pytest.mark.parametrize("later", [False, True], ids=["first call", "after a sleep"])
def test_a_pool_of_one_connection_that_is_lent_is_enough(
    akter_app: Callable[..., Akter], akter_database: str, shared: Any, outbox: Any, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sqlalchemy.create_engine(akter_database, pool_size=1, max_overflow=0, pool_timeout=5)
    app = akter_app(shared.Inbox, engine=engine)
    if later:
        # The machine slept, so the clock is asked again.
        app.verify()
        monkeypatch.setattr(app._joining._clock, "_wall", 0.0)
    with engine.begin() as connection:
        sent = app.within(connection).send(app.actor(shared.Inbox, "a").take, "x")
        assert outbox() == []
    assert outbox() == [sent]
    assert engine.pool.checkedout() == 0
    engine.dispose()


KINDS = ("core", "session", "psycopg")


def opened(kind: str, url: str, shared: Any) -> Iterator[Any]:
    if kind == "psycopg":
        yield from shared.psycopg(url)
        return
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    yield from shared.core(engine) if kind == "core" else shared.session(sqlalchemy.orm.Session(engine))


@pytest.mark.parametrize("kind", KINDS)
def test_another_database_is_refused_and_its_transaction_goes_on(
    app: Akter, elsewhere: str, shared: Any, akter_schema: str, kind: str
) -> None:
    for way in opened(kind, elsewhere, shared):
        way.run("CREATE TABLE own (n int)")
        for migrated in (False, True):
            before = way.state()
            with pytest.raises(DeploymentMismatch, match="another database" if migrated else "no akter schema"):
                app.within(way.given)
            assert way.state() == before
            way.commit()
            schema.upgrade(sqlalchemy.create_engine(elsewhere, poolclass=sqlalchemy.NullPool), schema=akter_schema)
            way.run("SELECT count(*) FROM own")


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_without_rights_is_refused_and_its_transaction_goes_on(
    app: Akter, akter_database: str, akter_engine: Engine, akter_schema: str, shared: Any, outbox: Any, kind: str
) -> None:
    for way in opened(kind, akter_database, shared):
        way.run("DO $$ BEGIN CREATE ROLE akter_stranger; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        way.commit()
        way.run("SET ROLE akter_stranger")
        before = way.state()
        with pytest.raises(DeploymentMismatch, match="akter grants"):
            app.within(way.given)
        assert way.state() == before
        way.run("RESET ROLE")
        with akter_engine.begin() as connection:
            connection.exec_driver_sql(schema.grants("akter_stranger", schema=akter_schema))
        way.run("SET ROLE akter_stranger")
        id = app.within(way.given).send(app.actor(shared.Inbox, "a").take, "x")
        way.commit()
        assert outbox() == [id]


def test_two_apps_of_two_schemas_share_a_connection(akter_engine: Engine, akter_app: Any, shared: Any, outbox: Any) -> None:
    schema.upgrade(akter_engine, schema="second")
    with akter_app(shared.Inbox) as one, Akter(akter_engine, actors=[shared.Inbox], schema="second") as other:
        with akter_engine.begin() as connection:
            id = one.within(connection).send(one.actor(shared.Inbox, "a").take, "x")
            there = other.within(connection).send(other.actor(shared.Inbox, "a").take, "x")
        assert outbox() == [id]
        with akter_engine.connect() as connection:
            assert connection.scalars(text("SELECT intent_id FROM second.actor_outbox")).all() == [there]


def test_a_message_to_an_actor_waits_for_nobody_elses_message_to_it(app: Akter, akter_engine: Engine, shared: Any, outbox: Any) -> None:
    handle = app.actor(shared.Inbox, "a")
    with akter_engine.connect() as one, akter_engine.connect() as other:
        for connection in (one, other):
            connection.execute(text("SET LOCAL lock_timeout = '1s'"))
        app.within(one).send(handle.take, "1")
        app.within(other).send(handle.take, "2")
        assert handle.take("called") == 1
        other.commit()
        one.commit()
    assert outbox.count() == 2


def test_threads_with_connections_of_their_own_do_not_meet(app: Akter, akter_engine: Engine, shared: Any, outbox: Any) -> None:
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                with akter_engine.connect() as connection:
                    app.within(connection).send(app.actor(shared.Inbox, str(number)).take, "x")
                    connection.commit() if turn % 2 else connection.rollback()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert outbox.count() == 80


class Nested(Actor, name="Nested"):
    """Its handlers try to send as if they were outside."""

    @command(creates=False)
    def misuse(self, how: str) -> None:
        app, connection, staging = OUTER["app"], OUTER["connection"], OUTER["staging"]
        target = OUTER["handle"].misuse
        try:
            if how == "send":
                app.send(target, "send")
            elif how == "within":
                app.within(connection)
            elif how == "own connection":
                app.within(self.connection)
            elif how == "staging":
                staging.send(target, "send")
            elif how == "many":
                staging.send_many([])
            else:
                OUTER["later"].send(target, "send")
        except InsideTurn:
            pass

    @query
    def look(self) -> None:
        OUTER["staging"].send(OUTER["handle"].misuse, "send")


OUTER: dict[str, Any] = {}


@pytest.mark.parametrize("how", ["send", "within", "own connection", "staging", "many", "later"])
def test_inside_a_turn_messages_are_part_of_it(akter_app: Any, akter_engine: Engine, outbox: Any, how: str) -> None:
    from datetime import timedelta

    app = akter_app(Nested)
    with akter_engine.begin() as connection:
        staging = app.within(connection)
        OUTER.update(app=app, connection=connection, staging=staging, handle=app.actor(Nested, "a"), later=staging.after(timedelta(0)))
        with pytest.raises(Defect, match="self.send"):
            app.actor(Nested, "a").misuse(how)
        with pytest.raises(InsideTurn):
            app.actor(Nested, "a").look()
    assert outbox() == []
    assert outbox.count("actor_receipts") == 0


def kill(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_after_an_idle_night_the_first_message_arrives(app: Akter, akter_database: str, shared: Any, outbox: Any) -> None:
    app.actor(shared.Inbox, "a").take("warm")
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as killer:
        for _ in range(3):
            kill(killer)
            app.send(app.actor(shared.Inbox, "a").take, "x")
    assert outbox.count() == 3


def test_in_the_applications_transaction_a_lost_connection_is_its_own_affair(
    app: Akter, akter_database: str, akter_engine: Engine, shared: Any, outbox: Any
) -> None:
    with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as killer, akter_engine.connect() as connection:
        staging = app.within(connection)
        kill(killer)
        with pytest.raises(sqlalchemy.exc.OperationalError):
            staging.send(app.actor(shared.Inbox, "a").take, "x")
        assert connection.invalidated
    assert outbox() == []


@pytest.mark.parametrize("ride", [True, False])
def test_an_own_id_takes_effect_once_before_and_after_delivery(
    app: Akter, akter_engine: Engine, shared: Any, outbox: Any, ride: bool
) -> None:
    handle = app.actor(shared.Inbox, "a")
    for _ in range(3):
        with app.command_id("order-7"), akter_engine.begin() as connection:
            id = app.within(connection).send(handle.take, "x", times=2)
        with app.command_id("order-7"):
            assert app.send(handle.take, "x", times=2) == id
        with Runner(app, ride=ride) as runner:
            runner.drain()
        assert app.outcome(handle, id) == 2
    assert outbox() == []
    with app.command_id("refused"):
        refused = app.send(handle.take, "x", times=101)
    with pytest.raises(LookupError):
        app.outcome(handle, refused)
    with Runner(app) as runner:
        runner.drain()
    with pytest.raises(shared.TooMuch):
        app.outcome(handle, refused)
    minted = app.send(handle.take, "y")
    with Runner(app) as runner:
        runner.drain()
    assert app.outcome(handle, minted) == 3
