"""The application's own tables in a turn: they commit with it, roll back with it, and cannot end it unnoticed."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest
from sqlalchemy import Integer, String, UniqueConstraint, insert, select, text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from akter import Actor, Defect, InsideTurn, Rejection, Unavailable, command, query
from akter.errors import TurnEnded
from akter.testing import crash_next, inspect, pause_next, receipts

held: dict[str, Any] = {}
ran: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    held.clear()
    ran.clear()


class Base(DeclarativeBase):
    """The application's models."""


class Entry(Base):
    """One line of a basket."""

    __tablename__ = "entries"
    __table_args__ = (UniqueConstraint("basket", "sku"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    basket: Mapped[str] = mapped_column(String)
    sku: Mapped[str] = mapped_column(String)


class Twice(Rejection):
    """It is in there."""

    sku: str


class Basket(Actor):
    """Counts in its state what it holds in a table."""

    count: int = 0

    @command(sql=True)
    def put(self, sku: str) -> int:
        ran.append(sku)
        self.count += 1
        self.connection.execute(insert(Entry).values(basket=self.id, sku=sku))
        return self.count

    @command
    def put_or_refuse(self, sku: str) -> int:
        self.count += 1
        try:
            self.connection.execute(insert(Entry).values(basket=self.id, sku=sku))
        except IntegrityError as problem:
            raise Twice(sku=sku) from problem
        return self.count

    @command
    def put_and_refuse(self, sku: str) -> None:
        self.count += 1
        self.connection.execute(insert(Entry).values(basket=self.id, sku=sku))
        self.session.add(Entry(basket=self.id, sku=f"{sku} too"))
        self.session.flush()
        raise Twice(sku=sku)

    @command
    def do(self, name: str) -> Any:
        ran.append(name)
        self.count += 1
        return held[name](self)

    @query
    def skus(self) -> list[str]:
        return list(self.session.scalars(select(Entry.sku).where(Entry.basket == self.id).order_by(Entry.id)))


@pytest.fixture
def app(akter_app: Any, akter_engine: Any) -> Any:
    Base.metadata.create_all(akter_engine)
    return akter_app(Basket)


@pytest.fixture
def basket(app: Any) -> Any:
    return app.actor(Basket, "b-1")


def stored(beside: Any) -> list[str]:
    return [sku for (sku,) in beside("SELECT sku FROM entries ORDER BY sku")]


def nothing_stored(app: Any, basket: Any, beside: Any) -> bool:
    return stored(beside) == [] and inspect(app, basket).generation is None and beside.count("actor_receipts") == 0


def put(actor: Any, sku: str) -> None:
    actor.connection.execute(insert(Entry).values(basket=actor.id, sku=sku))


@pytest.mark.conformance("ROWS-05")
def test_rows_state_and_receipt_commit_together(app, basket, beside) -> None:
    assert basket.put("kettle") == 1
    assert stored(beside) == ["kettle"]
    written = ("entries", "{akter}.actor_state", "{akter}.actor_receipts")
    one = beside(" UNION ".join(f"SELECT xmin::text FROM {table}" for table in written))
    assert len(one) == 1
    assert basket.skus() == ["kettle"]


@pytest.mark.conformance("ROWS-04")
def test_a_rejection_takes_back_all_rows_and_keeps_its_receipt(app, basket, beside) -> None:
    basket.put("kettle")
    with app.command_id("r"), pytest.raises(Twice):
        basket.put_and_refuse("cup")
    assert stored(beside) == ["kettle"]
    found = inspect(app, basket)
    assert (found.state, found.version, len(found.receipts)) == ({"count": 1}, 1, 2)
    with app.command_id("r"), pytest.raises(Twice) as caught:
        basket.put_and_refuse("cup")
    assert caught.value == Twice(sku="cup")
    assert len(receipts(app, basket)) == 2


@pytest.mark.conformance("ROWS-04")
def test_an_integrity_error_may_be_turned_into_a_rejection(app, basket, beside) -> None:
    basket.put("kettle")
    for _ in range(2):
        with app.command_id("r"), pytest.raises(Twice) as caught:
            basket.put_or_refuse("kettle")
        assert caught.value == Twice(sku="kettle")
    assert basket.put_or_refuse("cup") == 2
    assert stored(beside) == ["cup", "kettle"]
    assert len(receipts(app, basket)) == 3


@pytest.mark.conformance("ROWS-04")
def test_an_integrity_error_of_the_session_may_be_turned_into_a_rejection(app, basket, beside) -> None:
    def add(actor: Any) -> None:
        actor.session.add(Entry(basket=actor.id, sku="kettle"))
        try:
            actor.session.flush()
        except IntegrityError as problem:
            raise Twice(sku="kettle") from problem

    held["add"] = add
    basket.put("kettle")
    with pytest.raises(Twice):
        basket.do("add")
    assert (stored(beside), inspect(app, basket).state) == (["kettle"], {"count": 1})
    assert len(receipts(app, basket)) == 2


@pytest.mark.conformance("ROWS-02")
def test_a_unique_violation_is_a_defect_without_receipt(app, basket, beside) -> None:
    basket.put("kettle")
    for _ in range(2):
        ran.clear()
        with app.command_id("again"), pytest.raises(Defect, match="entries_basket_sku_key") as caught:
            basket.put("kettle")
        assert isinstance(caught.value.__cause__, IntegrityError)
        assert ran == ["kettle"]
    found = inspect(app, basket)
    assert (stored(beside), found.state, len(found.receipts)) == (["kettle"], {"count": 1}, 1)


@pytest.mark.conformance("ROWS-02")
def test_an_error_of_a_statement_that_is_swallowed_is_a_defect_that_names_the_remedy(app, basket, beside) -> None:
    def swallow(actor: Any) -> None:
        put(actor, "cup")
        with pytest.raises(SQLAlchemyError):
            actor.connection.execute(text("SELECT 1 / 0"))

    held["swallow"] = swallow
    with pytest.raises(Defect, match="begin_nested"):
        basket.do("swallow")
    assert nothing_stored(app, basket, beside)


@pytest.mark.conformance("ROWS-02")
def test_a_constraint_that_is_checked_at_the_commit_is_a_defect_with_nothing_saved(app, basket, beside) -> None:
    beside("ALTER TABLE entries ADD CONSTRAINT late UNIQUE (sku) DEFERRABLE INITIALLY DEFERRED")
    app.actor(Basket, "b-2").put("kettle")
    with pytest.raises(Defect, match="late"):
        basket.put("kettle")
    assert inspect(app, basket).generation is None
    assert stored(beside) == ["kettle"]


@pytest.mark.conformance("ROWS-04")
def test_a_defect_takes_back_everything(app, basket, beside) -> None:
    def fail(actor: Any) -> None:
        put(actor, "cup")
        actor.session.add(Entry(basket=actor.id, sku="spoon"))
        actor.session.commit()
        raise RuntimeError("broken")

    held["fail"] = fail
    with pytest.raises(Defect, match="broken"):
        basket.do("fail")
    assert nothing_stored(app, basket, beside)


@pytest.mark.conformance("ROWS-05")
@pytest.mark.parametrize("point", ["before_handler", "before_commit", "after_commit"])
def test_a_crash_is_retried_to_one_row(app, basket, beside, point) -> None:
    crash_next(app, point)
    assert basket.put("kettle") == 1
    assert stored(beside) == ["kettle"]
    assert (inspect(app, basket).state, len(receipts(app, basket))) == ({"count": 1}, 1)


@pytest.mark.conformance("ROWS-06")
def test_a_query_reads_rows_and_cannot_write_them(app, basket, beside) -> None:
    class Reader(Basket, name="Basket"):
        """Would like to write."""

        @query
        def sneak(self) -> int:
            self.session.add(Entry(basket=self.id, sku="cup"))
            self.session.flush()
            return 1

        @query
        def forget(self) -> int:
            self.session.add(Entry(basket=self.id, sku="cup"))
            return 1

    basket.put("kettle")
    reader = type(app)(app.engine, actors=[Reader], schema=app.schema).actor(Reader, "b-1")
    assert reader.skus() == ["kettle"]
    with pytest.raises(InsideTurn, match="@command"):
        reader.sneak()
    assert reader.forget() == 1
    assert stored(beside) == ["kettle"]


@pytest.mark.conformance("ROWS-06", "ROWS-10")
def test_a_connection_and_a_session_kept_from_a_turn_are_of_no_use_after_it(app, basket, beside) -> None:
    held["keep"] = lambda actor: held.update(self=actor, connection=actor.connection, session=actor.session)
    basket.do("keep")
    for kept in ("connection", "session"):
        with pytest.raises(SQLAlchemyError):
            held[kept].execute(insert(Entry).values(basket="b-1", sku="cup"))
        with pytest.raises(TurnEnded):
            getattr(held["self"], kept)
    held["session"].add(Entry(basket="b-1", sku="cup"))
    with pytest.raises(SQLAlchemyError):
        held["session"].commit()
    assert stored(beside) == []


@pytest.mark.conformance("ROWS-10")
@pytest.mark.parametrize("swallow", [False, True])
def test_the_connection_of_another_active_turn_is_refused_and_spoils_both(app, basket, beside, start, swallow) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold(actor: Any) -> None:
        held["self"] = actor
        put(actor, "held")
        entered.set()
        assert go_on.wait(20)

    def steal(actor: Any) -> None:
        put(actor, "stolen")
        try:
            _ = held["self"].connection
        except TurnEnded:
            if not swallow:
                raise

    held.update(hold=hold, steal=steal)
    holder = start(basket.do, "hold")
    assert entered.wait(20)
    with pytest.raises(Defect):
        app.actor(Basket, "b-2").do("steal")
    go_on.set()
    with pytest.raises(Defect):
        holder.result(20)
    assert nothing_stored(app, basket, beside)


@pytest.mark.conformance("ROWS-08")
def test_rows_that_are_not_committed_are_invisible(app, basket, beside, start, other_engine) -> None:
    second = type(app)(other_engine, actors=[Basket], schema=app.schema)
    with pause_next(app, "before_commit") as pause:
        turn = start(basket.put, "kettle")
        pause.wait()
        assert stored(beside) == []
        assert second.actor(Basket, "b-1").skus() == []
        pause.release()
        assert turn.result(20) == 1
    assert stored(beside) == ["kettle"]
    assert second.actor(Basket, "b-1").skus() == ["kettle"]


@pytest.mark.conformance("ROWS-09")
def test_equal_keys_of_two_actors_commit_concurrently(app, basket, beside, start) -> None:
    with pause_next(app, "before_commit") as pause:
        turn = start(basket.put, "kettle")
        pause.wait()
        assert app.actor(Basket, "b-2").put("kettle") == 1
        assert not turn.done()
        pause.release()
        assert turn.result(20) == 1
    assert beside("SELECT basket, sku FROM entries ORDER BY basket") == [("b-1", "kettle"), ("b-2", "kettle")]


@pytest.mark.conformance("ROWS-11")
def test_a_lock_timeout_in_own_sql_is_retried(app, beside, akter_engine, start) -> None:
    app = type(app)(app.engine, actors=[Basket], schema=app.schema, lock=0.05)
    basket = app.actor(Basket, "b-1")
    basket.put("kettle")
    held["update"] = lambda actor: actor.connection.execute(text("UPDATE entries SET sku = 'pot'")).rowcount
    with akter_engine.connect() as rival, rival.begin():
        rival.execute(text("SELECT 1 FROM entries FOR UPDATE"))
        turn = start(basket.do, "update")
        beside.until("three tries", lambda: ran.count("update") >= 3)
        assert len(receipts(app, basket)) == 1
    assert turn.result(20) == 1
    assert (stored(beside), inspect(app, basket).state) == (["pot"], {"count": 2})
    assert len(receipts(app, basket)) == 2


@pytest.mark.conformance("ROWS-11")
def test_a_deadlock_between_own_statements_of_two_turns_is_retried(app, beside, start) -> None:
    beside("INSERT INTO entries (basket, sku) VALUES ('x', 'one'), ('x', 'two')")
    beside("SET deadlock_timeout = '50ms'")
    app = type(app)(app.engine, actors=[Basket], schema=app.schema, lock=10.0)
    both = threading.Barrier(2)

    def update(first: str, second: str) -> Any:
        def run(actor: Any) -> None:
            actor.connection.execute(text("SET LOCAL deadlock_timeout = '50ms'"))
            actor.connection.execute(text("UPDATE entries SET basket = basket || :id WHERE sku = :sku"), {"id": actor.id, "sku": first})
            if both.n_waiting < 2 and not both.broken and ran.count(actor.id) == 0:
                ran.append(actor.id)
                both.wait(20)
            actor.connection.execute(text("UPDATE entries SET basket = basket || :id WHERE sku = :sku"), {"id": actor.id, "sku": second})

        return run

    held.update(forth=update("one", "two"), back=update("two", "one"))
    turns = [start(app.actor(Basket, id).do, name) for id, name in (("f", "forth"), ("b", "back"))]
    for turn in turns:
        turn.result(20)
    assert {basket for (basket,) in beside("SELECT basket FROM entries")} in ({"xfb"}, {"xbf"})
    assert ran.count("forth") + ran.count("back") == 3


def add(actor: Any, sku: str) -> None:
    actor.session.add(Entry(basket=actor.id, sku=sku))


@pytest.mark.conformance("ROWS-05")
def test_a_session_without_commit_is_saved_at_the_end(app, basket, beside) -> None:
    held["add"] = lambda actor: add(actor, "kettle")
    basket.do("add")
    assert stored(beside) == ["kettle"]


@pytest.mark.conformance("ROWS-04")
def test_commit_and_rollback_of_the_session_are_local(app, basket, beside) -> None:
    def work(actor: Any) -> None:
        add(actor, "kept")
        actor.session.commit()
        assert stored(beside) == []
        add(actor, "dropped")
        actor.session.flush()
        actor.session.rollback()
        add(actor, "kept too")

    held["work"] = work
    basket.do("work")
    assert stored(beside) == ["kept", "kept too"]

    def refuse(actor: Any) -> None:
        work(actor)
        raise Twice(sku="x")

    beside("DELETE FROM entries")
    held["work"] = refuse
    with pytest.raises(Twice):
        basket.do("work")
    assert stored(beside) == []


@pytest.mark.conformance("ROWS-04")
def test_nested_savepoints_keep_and_drop_their_part(app, basket, beside) -> None:
    def work(actor: Any) -> None:
        with actor.connection.begin_nested():
            put(actor, "kept")
        with pytest.raises(IntegrityError), actor.connection.begin_nested():
            put(actor, "kept")
        point = actor.connection.begin_nested()
        put(actor, "dropped")
        point.rollback()
        with actor.session.begin_nested():
            add(actor, "kept by the session")
        part = actor.session.begin_nested()
        add(actor, "kept")
        with pytest.raises(IntegrityError):
            actor.session.flush()
        part.rollback()

    held["work"] = work
    basket.do("work")
    assert stored(beside) == ["kept", "kept by the session"]
    assert len(receipts(app, basket)) == 1


@pytest.mark.conformance("ROWS-02")
def test_what_the_session_cannot_save_at_the_end_is_a_defect(app, basket, beside) -> None:
    basket.put("kettle")
    held["add"] = lambda actor: add(actor, "kettle")
    with pytest.raises(Defect, match="entries_basket_sku_key"):
        basket.do("add")
    assert (stored(beside), inspect(app, basket).state) == (["kettle"], {"count": 1})
    assert len(receipts(app, basket)) == 1


ENDINGS = {
    "connection.commit": lambda actor: actor.connection.commit(),
    "connection.rollback": lambda actor: actor.connection.rollback(),
    "connection.close": lambda actor: actor.connection.close(),
    "get_transaction().commit": lambda actor: actor.connection.get_transaction().commit(),
    "get_transaction().rollback": lambda actor: actor.connection.get_transaction().rollback(),
    "with connection": lambda actor: actor.connection.__exit__(None, None, None),
    "driver.commit": lambda actor: actor.connection.connection.driver_connection.commit(),
    "driver.rollback": lambda actor: actor.connection.connection.driver_connection.rollback(),
    "raw COMMIT": lambda actor: actor.connection.exec_driver_sql("COMMIT"),
    "raw COMMIT AND CHAIN": lambda actor: actor.connection.exec_driver_sql("COMMIT AND CHAIN"),
    "raw ROLLBACK": lambda actor: actor.connection.exec_driver_sql("ROLLBACK"),
    "raw ABORT": lambda actor: actor.connection.execute(text("ABORT")),
    "raw END": lambda actor: actor.connection.execute(text("END")),
    "raw ROLLBACK AND CHAIN": lambda actor: actor.connection.exec_driver_sql("ROLLBACK AND CHAIN"),
    "raw PREPARE TRANSACTION": lambda actor: actor.connection.exec_driver_sql("PREPARE TRANSACTION 'p'"),
    "COMMIT in the session": lambda actor: actor.session.execute(text("COMMIT")),
}


@pytest.mark.conformance("TURN-27")
@pytest.mark.parametrize("ending", list(ENDINGS))
@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
def test_a_handler_that_ends_the_transaction_is_a_defect_with_nothing_of_ours_written(app, basket, beside, ending, swallow) -> None:
    def end(actor: Any) -> None:
        put(actor, "before")
        try:
            ENDINGS[ending](actor)
        except Exception:
            if not swallow:
                raise
        try:
            put(actor, "after")
        except Exception:
            if not swallow:
                raise

    held["end"] = end
    with app.command_id("e"), pytest.raises(Defect):
        basket.do("end")
    # What a raw COMMIT sent away cannot be called back; of ours there is nothing, and nothing after it.
    assert "after" not in stored(beside)
    if not ending.startswith(("raw", "driver", "COMMIT")):
        assert stored(beside) == []
    assert inspect(app, basket).receipts == ()
    assert inspect(app, basket).state is None
    assert app.engine.pool.checkedout() == 0
    beside("DELETE FROM entries")
    with app.command_id("e"), pytest.raises(Defect):
        basket.do("end")
    beside("DELETE FROM entries")
    assert basket.put("kettle") == 1
    assert stored(beside) == ["kettle"]


@pytest.mark.conformance("TURN-27")
def test_a_handler_that_throws_the_connection_away_saves_nothing_and_may_be_asked_again(app, beside) -> None:
    hasty = type(app)(app.engine, actors=[Basket], schema=app.schema, execution=0.2, lock=0.05, delivery=0.3)
    basket = hasty.actor(Basket, "b-1")

    def throw_away(actor: Any) -> None:
        put(actor, "before")
        actor.connection.invalidate()

    held["end"] = throw_away
    with pytest.raises(Unavailable) as caught:
        basket.do("end")
    assert type(caught.value) is Unavailable
    assert nothing_stored(hasty, basket, beside)
    assert basket.put("kettle") == 1


@pytest.mark.conformance("ROWS-04")
@pytest.mark.parametrize("ending", ["raw COMMIT", "raw ROLLBACK", "connection.commit"])
def test_a_rejection_does_not_excuse_a_handler_that_ended_the_transaction(app, basket, beside, ending) -> None:
    def end(actor: Any) -> None:
        put(actor, "before")
        with contextlib.suppress(InsideTurn):
            ENDINGS[ending](actor)
        raise Twice(sku="x")

    held["end"] = end
    with pytest.raises(Defect):
        basket.do("end")
    assert inspect(app, basket).receipts == ()


@pytest.mark.conformance("ROWS-04")
@pytest.mark.parametrize("verb", ["RELEASE SAVEPOINT akter_turn", "ROLLBACK TO SAVEPOINT akter_turn"])
def test_a_handler_that_plays_with_the_turns_savepoint_never_leaves_half_a_turn(app, basket, beside, verb) -> None:
    def play(actor: Any) -> None:
        put(actor, "one")
        actor.connection.exec_driver_sql(verb)
        put(actor, "two")
        raise Twice(sku="x")

    held["play"] = play
    with pytest.raises((Twice, Defect)):
        basket.do("play")
    assert stored(beside) == []
    assert inspect(app, basket).state is None


def test_settings_a_handler_makes_for_its_transaction_do_not_outlive_it(app, basket, akter_engine) -> None:
    def work(actor: Any) -> None:
        actor.connection.execute(text("SET LOCAL statement_timeout = 0"))
        actor.connection.execute(text("SET LOCAL search_path = pg_catalog"))

    held["work"] = work
    basket.do("work")
    with akter_engine.connect() as connection:
        assert connection.execute(text("SHOW search_path")).scalar_one() == '"$user", public'
    assert basket.put("kettle") == 2


def test_own_tables_need_no_declaration_and_an_unknown_one_is_a_defect(app, basket, beside) -> None:
    held["unknown"] = lambda actor: actor.connection.execute(text("INSERT INTO nowhere VALUES (1)")).rowcount
    with pytest.raises(Defect, match="nowhere"):
        basket.do("unknown")
    assert nothing_stored(app, basket, beside)
    beside("CREATE TABLE nowhere (n int)")
    basket.do("unknown")
    assert beside("SELECT n FROM nowhere") == [(1,)]
