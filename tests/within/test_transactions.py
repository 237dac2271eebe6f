"""The application's transaction decides: what is sent in it commits or vanishes with it, and akter leaves it as it was."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError, ResourceClosedError
from sqlalchemy.orm import Session

from akter import Akter
from akter.errors import CommandConflict, CommandExpired, ConfigurationError, InvalidCommandId, PayloadInvalid
from akter.identity import CommandId


def test_what_is_rolled_back_was_never_sent(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    app.within(way.given).send(app.actor(shared.Inbox, "a").take, "x")
    way.rollback()
    assert outbox() == []


def test_nobody_sees_it_before_the_commit(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    id = app.within(way.given).send(app.actor(shared.Inbox, "a").take, "x")
    assert outbox() == []
    way.commit()
    assert outbox() == [id]


def test_the_transaction_is_the_one_it_was(app: Akter, way: Any, shared: Any) -> None:
    way.run("SELECT 1")
    before = way.state()
    assert before[0] == "INTRANS"
    staging = app.within(way.given)
    assert way.state() == before
    staging.send(app.actor(shared.Inbox, "a").take, "x")
    staging.after(timedelta(days=1)).send(app.actor(shared.Inbox, "a").take, "y")
    staging.send_many([(app.actor(shared.Inbox, "b").take, {"text": str(n)}) for n in range(3)])
    assert way.state() == before


def test_back_to_a_savepoint_only_the_inner_is_gone(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    class Back(Exception):
        pass

    staging = app.within(way.given)
    outer = staging.send(app.actor(shared.Inbox, "a").take, "outer")
    with pytest.raises(Back), way.savepoint():
        staging.send(app.actor(shared.Inbox, "a").take, "inner")
        app.within(way.given).send(app.actor(shared.Inbox, "b").take, "inner")
        raise Back
    with way.savepoint():
        kept = staging.send(app.actor(shared.Inbox, "a").take, "kept")
    way.commit()
    assert sorted(outbox()) == sorted([outer, kept])


def test_the_rows_name_no_sender_and_make_no_actor(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    with app.tenant("acme"):
        handles = [app.actor(shared.Inbox, f"i{n}") for n in range(50)]
    app.within(way.given).send_many([(handle.take, {"text": "x"}) for handle in handles])
    way.commit()
    rows = outbox("actor_type, actor_id, tenant_id, kind, command, target_type, bucket, routing_key")
    assert {row[:6] for row in rows} == {("$outside", "$outside", "acme", "intent", "take", "Inbox")}
    assert all(-128 <= row[6] <= 127 and row[6] == row[7] >> 56 for row in rows)
    assert len({row[6] for row in rows}) > 25, "they are spread over the buckets"
    assert outbox.count("actor_generations") == 0


def test_a_delay_counts_from_the_statement(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    moment = datetime.now(UTC) + timedelta(days=3)
    way.run("SELECT pg_sleep(0.3)")
    before = time.time() * 1000
    staging = app.within(way.given)
    staging.after(timedelta(seconds=60)).send(app.actor(shared.Inbox, "a").take, "x")
    staging.at(moment).send(app.actor(shared.Inbox, "a").take, "y")
    after = time.time() * 1000
    way.commit()
    relative, absolute = outbox("due_at_ms")
    assert before - 1 <= relative - 60_000 <= after + 1
    assert absolute == int(moment.timestamp() * 1000)


def test_the_applications_failed_transaction_is_its_own_affair(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    staging = app.within(way.given)
    with pytest.raises((DBAPIError, psycopg.Error)):
        way.run("SELECT 1/0")
    for attempt in (lambda: staging.send(app.actor(shared.Inbox, "a").take, "x"), lambda: app.within(way.given)):
        if way.driver().info.transaction_status.name == "INERROR":
            try:
                attempt()
            except (DBAPIError, psycopg.Error) as problem:
                assert getattr(getattr(problem, "orig", problem), "sqlstate", None) == "25P02"
            else:
                # A connection that is known is not asked again.
                assert attempt() is not None
    way.rollback()
    id = staging.send(app.actor(shared.Inbox, "a").take, "x")
    way.commit()
    assert outbox() == [id]


def test_an_own_id_sent_twice_is_one_message(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    handle = app.actor(shared.Inbox, "a")
    for _ in range(2):
        with app.command_id("order-7"):
            assert app.within(way.given).send(handle.take, "x") == "order-7"
    with app.command_id("order-7"):
        assert app.within(way.given).send_many([(handle.take, {"text": "x", "times": 1})]) == ["order-7"]
    other = app.within(way.given).send(handle.take, "y")
    way.commit()
    with app.command_id("order-7"):
        assert app.send(handle.take, "x") == "order-7"
    assert len(outbox()) == 2
    assert other in outbox()


def test_an_own_id_for_something_else_is_a_conflict_that_aborts_nothing(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    handle = app.actor(shared.Inbox, "a")
    for ask, said in (
        (lambda to: to.send(handle.take, "secret"), "other arguments"),
        (lambda to: to.send(handle.drop, "x"), "now for drop"),
    ):
        with app.command_id("order-7"):
            app.within(way.given).send(handle.take, "x")
        with app.command_id("order-7"), pytest.raises(CommandConflict, match=said) as refused:
            ask(app.within(way.given))
        assert "secret" not in str(refused.value)
    app.within(way.given).send(handle.take, "y")
    way.commit()
    with app.command_id("order-7"), pytest.raises(CommandConflict):
        app.send(handle.take, "z")
    assert len(outbox()) == 2


def test_a_minted_id_is_checked_like_a_calls(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    handle = app.actor(shared.Inbox, "a")
    minted = app.mint_command_id()
    with app.command_id(minted):
        assert app.within(way.given).send(handle.take, "x") == str(minted)
    with app.command_id(minted), pytest.raises(CommandExpired, match="before the message is due"):
        app.within(way.given).after(timedelta(days=1)).send(handle.take, "x")
    with app.command_id(CommandId(0, 1, minted.unique)), pytest.raises(InvalidCommandId, match="another retry window"):
        app.send(handle.take, "x")
    with app.command_id("two"), pytest.raises(InvalidCommandId, match="exactly one"):
        app.within(way.given).send_many([(handle.take, {"text": "x"})] * 2)
    way.commit()
    assert outbox() == [str(minted)]


def test_what_cannot_be_sent_writes_nothing_and_aborts_nothing(app: Akter, way: Any, shared: Any, outbox: Any) -> None:
    handle, staging = app.actor(shared.Inbox, "a"), app.within(way.given)
    with pytest.raises(PayloadInvalid):
        staging.send(handle.take, 5)
    with pytest.raises(PayloadInvalid, match="limit"):
        staging.send(handle.take, "x" * 2_000_000)
    with pytest.raises(TypeError):
        staging.send_many([(handle.take, {"text": "x"}), (handle.take, {"txt": "x"})])
    with pytest.raises(PayloadInvalid, match="NUL"):
        staging.send(handle.take, "a\0b")
    id = staging.send(handle.take, "ünïcode ☃ 😀 \\u0041 %s %(text)s {x} '; --")
    way.commit()
    assert outbox() == [id]
    assert "ünïcode ☃ 😀" in outbox("payload")[0]


@pytest.mark.parametrize("number", [0, 1, 1_000, 20_000])
def test_many_at_once_come_back_in_order(app: Akter, way: Any, shared: Any, outbox: Any, number: int) -> None:
    if number > 1_000 and not isinstance(way.given, sqlalchemy.Connection | psycopg.Connection):
        pytest.skip("the same connection underneath")
    handle = app.actor(shared.Inbox, "a")
    ids = app.within(way.given).send_many((handle.take, {"text": f"{n:06}"}) for n in range(number))
    assert outbox() == []
    way.commit()
    assert len(ids) == number
    stored = dict(outbox("intent_id, payload"))
    assert [stored[id] for id in ids] == [f'{{"text":"{n:06}","times":1}}' for n in range(number)]


@pytest.mark.timeout(300)
def test_two_hundred_thousand_at_once(app: Akter, akter_engine: Engine, shared: Any, outbox: Any) -> None:
    handle = app.actor(shared.Inbox, "a")
    with akter_engine.begin() as connection:
        ids = app.within(connection).send_many((handle.take, {"text": "x"}) for _ in range(200_000))
    assert len(set(ids)) == outbox.count() == 200_000


class TestAutocommit:
    """Without a transaction, each call is one of its own."""

    @pytest.fixture(params=["core", "psycopg"])
    def alone(self, request: pytest.FixtureRequest, akter_database: str, akter_engine: Engine) -> Iterator[Any]:
        if request.param == "core":
            with akter_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                yield connection
        else:
            with psycopg.connect(akter_database.replace("+psycopg", ""), autocommit=True) as raw:
                yield raw

    def test_it_is_sent_at_once(self, app: Akter, alone: Any, shared: Any, outbox: Any) -> None:
        id = app.within(alone).send(app.actor(shared.Inbox, "a").take, "x")
        assert outbox() == [id]

    def test_many_are_all_or_none(self, app: Akter, alone: Any, shared: Any, outbox: Any, akter_engine: Engine, akter_schema: str) -> None:
        messages = [(app.actor(shared.Inbox, "a").take, {"text": str(n)}) for n in range(12_000)]
        with akter_engine.begin() as connection:
            table = f'"{akter_schema}".actor_outbox'
            connection.exec_driver_sql("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted'; END $$")
            connection.exec_driver_sql(
                f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW"
                """ WHEN (NEW.payload = '{"text":"11111","times":1}') EXECUTE FUNCTION refuse()"""
            )
        with pytest.raises((DBAPIError, psycopg.Error), match="planted"):
            app.within(alone).send_many(messages)
        assert outbox() == []
        with akter_engine.begin() as connection:
            connection.execute(text(f"DROP TRIGGER refuse ON {table}"))
        assert len(app.within(alone).send_many(messages)) == outbox.count()


def test_other_connections_are_refused_with_the_remedy(app: Akter, akter_engine: Engine, akter_database: str) -> None:
    sqlite = sqlalchemy.create_engine("sqlite://")
    with sqlite.connect() as connection, pytest.raises(ConfigurationError, match="not a connection to sqlite"):
        app.within(connection)
    with pytest.raises(ConfigurationError, match="not Engine"):
        app.within(akter_engine)
    with pytest.raises(ConfigurationError, match="not NoneType"):
        app.within(None)
    with Session() as session, pytest.raises(ConfigurationError, match="no engine, or several"):
        app.within(session)
    with psycopg.connect(akter_database.replace("+psycopg", "")) as raw, pytest.raises(ConfigurationError, match="not Cursor"):
        app.within(raw.cursor())
    sqlite.dispose()


def test_a_closed_connection_says_so_itself(app: Akter, akter_engine: Engine, akter_database: str, shared: Any) -> None:
    with akter_engine.connect() as connection:
        staging = app.within(connection)
    with pytest.raises(ResourceClosedError):
        staging.send(app.actor(shared.Inbox, "a").take, "x")
    with psycopg.connect(akter_database.replace("+psycopg", "")) as raw:
        staging = app.within(raw)
    with pytest.raises(psycopg.OperationalError, match="closed"):
        staging.send(app.actor(shared.Inbox, "a").take, "x")


def test_hooks_and_adapters_of_the_application_change_nothing(akter_database: str, akter_app: Any, shared: Any, outbox: Any) -> None:
    class Backwards(psycopg.types.string.StrDumper):
        def dump(self, obj: Any) -> bytes:
            return str(obj)[::-1].encode()

    class NoLists(psycopg.adapt.Dumper):
        def dump(self, obj: Any) -> bytes:
            raise AssertionError("a list was given to the driver")

    app = akter_app(shared.Inbox)
    with psycopg.connect(akter_database.replace("+psycopg", "")) as raw:
        raw.adapters.register_dumper(list, NoLists)
        raw.adapters.register_dumper(str, Backwards)
        app.within(raw).send(app.actor(shared.Inbox, "a").take, "x")
    engine = sqlalchemy.create_engine(akter_database, json_serializer=lambda value: 1 / 0, json_deserializer=lambda value: 1 / 0)

    @event.listens_for(engine, "connect")
    def connected(driver: Any, _: Any) -> None:
        driver.adapters.register_dumper(list, NoLists)
        driver.prepare_threshold = None

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def annotate(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> Any:
        return f"{statement} /* shop 100%% */", parameters

    with engine.begin() as connection:
        app.within(connection).send_many([(app.actor(shared.Inbox, "a").take, {"text": "x"})] * 3)
    assert outbox("payload") == ['{"text":"x","times":1}'] * 4
    engine.dispose()


def test_a_connection_that_streams_can_send(app: Akter, akter_engine: Engine, shared: Any, outbox: Any) -> None:
    with akter_engine.begin() as connection:
        connection.execution_options(stream_results=True, yield_per=2, preserve_rowcount=True)
        app.within(connection).send_many([(app.actor(shared.Inbox, "a").take, {"text": "x"})] * 3)
    assert outbox.count() == 3


def test_no_message_stands_in_an_error_or_a_log(
    app: Akter, akter_database: str, akter_schema: str, shared: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = sqlalchemy.create_engine(akter_database, echo=True)
    with engine.connect() as connection:
        staging = app.within(connection)
        connection.execute(text("SET LOCAL default_transaction_read_only = on"))
        staging.send(app.actor(shared.Inbox, "a").take, "swordfish")
        connection.rollback()
        connection.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(DBAPIError) as refused:
            staging.send(app.actor(shared.Inbox, "a").take, "swordfish")
    problem: Any = refused.value
    assert problem.orig.sqlstate == "25006"
    for said in (str(problem), repr(problem), str(problem.orig), caplog.text, *capsys.readouterr()):
        assert "swordfish" not in said
    engine.dispose()


def test_a_replaced_connection_is_looked_at_again(app: Akter, akter_engine: Engine, shared: Any, outbox: Any) -> None:
    with akter_engine.connect() as connection:
        staging = app.within(connection)
        staging.send(app.actor(shared.Inbox, "a").take, "lost")
        connection.invalidate()
        with pytest.raises(PendingRollbackError):
            staging.send(app.actor(shared.Inbox, "a").take, "x")
        connection.rollback()
        id = staging.send(app.actor(shared.Inbox, "a").take, "x")
        connection.commit()
    assert outbox() == [id]
