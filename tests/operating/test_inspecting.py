"""Looking at one actor, listing actors, letting one begin again and deleting one, from code and by the commands."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import click.testing
import pytest
from processes import until

from akter import (
    Actor,
    Akter,
    Attempt,
    Defect,
    Event,
    Job,
    NotCreated,
    PayloadInvalid,
    Rejection,
    RetentionGap,
    Runner,
    Unauthorized,
    User,
    command,
    cron,
    query,
)
from akter.cli import main
from akter.errors import AkterError
from akter.operating import Operator
from akter.testing import advance, inspect, pause_next, receipts, settle

Rows = Callable[..., list[Any]]
TEXT = (Path(__file__).parents[2] / "docs" / "inspecting.md").read_text(encoding="utf-8")


class Placed(Event):
    """An order was placed."""

    total: int


class AlreadyPlaced(Rejection):
    """The order was placed before."""


def charge_card(attempt: Attempt, amount: int) -> str:
    """Never run here."""
    raise AssertionError(amount)


class Order(Actor):
    """An order, as in the README."""

    status: str = "new"
    total: int = 0
    charge = Job(charge_card)

    @command
    def place(self, total: int) -> int:
        if self.status != "new":
            raise AlreadyPlaced()
        self.status, self.total = "awaiting payment", total
        self.emit(Placed(total=total))
        self.enqueue(self.charge, amount=total)
        self.after(timedelta(minutes=30), key="hold").send(self.expire)
        self.after(timedelta(days=1)).send(self.actor(Shipment, self.id).open)
        return total

    @command
    def ship(self) -> None:
        self.send(self.actor(Shipment, self.id).open)
        self.send(self.note)

    @command
    def note(self) -> None:
        self.total += 1

    @command
    def expire(self) -> None:
        self.status = "expired"

    @query
    def summary(self) -> tuple[str, int]:
        return self.status, self.total


class Slow:
    """A call of the outside world that a test holds up."""

    began, may_end = threading.Event(), threading.Event()


def ask_bank(attempt: Attempt, amount: int) -> str:
    Slow.began.set()
    assert Slow.may_end.wait(30)
    return f"paid {amount}"


class Account(Actor):
    """Hears from a bank."""

    said: str = ""
    ask = Job(ask_bank)

    @command
    def pay(self, amount: int) -> None:
        self.said = "asked"
        self.enqueue(self.ask, amount=amount)

    @ask.on_success
    def heard(self, said: str) -> None:
        self.said = said


class Shipment(Actor):
    """What is sent for an order; it exists once it is opened, and looks after itself each night."""

    opened: int = 0

    @command(creates=True)
    def open(self) -> None:
        self.opened += 1

    @command
    def check(self) -> int:
        return self.opened

    @cron("0 3 * * *")
    def look(self) -> None:
        """Nothing."""


@pytest.fixture
def app(akter_app: Callable[..., Akter]) -> Akter:
    return akter_app(Order, Shipment)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as found:
        yield found


@pytest.fixture
def said(environment: dict[str, str]) -> Callable[..., str]:
    """What a command says; it must succeed."""

    def run(*arguments: str) -> str:
        result = click.testing.CliRunner().invoke(main, arguments, env=environment)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def waiting(app: Akter, handle: Any) -> list[tuple[str, str, str]]:
    return sorted((row["kind"], row["target_type"], row["command"]) for row in inspect(app, handle).outbox)


def audit(rows: Rows) -> list[tuple[Any, ...]]:
    return rows("SELECT operator, action, target, reason, CAST(outcome AS text) FROM {akter}.actor_operator_audit ORDER BY at_ms")


def test_a_life_is_all_that_is_stored_of_one_actor(app: Akter, operator: Operator) -> None:
    order = app.actor(Order, "o")
    with app.command_id("first"):
        order.place(3900)
    with pytest.raises(AlreadyPlaced):
        order.place(1)
    app.actor(Order, "another").place(7)
    app.send(order.note)
    life = operator.life("Order", "o")
    assert (life.address, life.generation, life.created, life.event_sequence, life.version) == (order._address, 0, False, 1, 1)  # type: ignore[attr-defined]
    assert json.loads(life.state or "") == {"status": "awaiting payment", "total": 3900}
    assert [(row["command"], row["outcome"][:4]) for row in life.commands] == [("place", '{"ok'), ("place", '{"re')]
    assert [(row["sequence"], row["event"], row["value"]) for row in life.events] == [(1, "Placed", '{"total":3900}')]
    assert sorted((row["kind"], row["command"], row["timer_key"]) for row in life.asked) == [
        ("intent", "expire", "hold"),
        ("intent", "open", None),
        ("job", "charge", None),
    ]
    assert [(row["actor_type"], row["command"]) for row in life.waiting] == [("$outside", "note")]
    assert [len(operator.life("Order", "o", limit=1).commands), list(life.dead_letters), list(life.operations)] == [1, [], []]


def test_what_is_not_there_is_said(app: Akter, operator: Operator) -> None:
    app.actor(Order, "o").place(1)
    with pytest.raises(AkterError, match="no actor of the type 'Ordr' was ever stored here; the types are: Order, Shipment"):
        operator.life("Ordr", "o")
    for act in (operator.life, operator.reset, operator.delete):
        with pytest.raises(AkterError, match="nothing is stored of acme:Order/o: no command ever came to it"):
            act("Order", "o", tenant="acme")
    with pytest.raises(AkterError, match="no actor of the type 'Ordr'"):
        operator.actors("Ordr")


def test_actors_are_listed_in_pages_by_their_ids(app: Akter, operator: Operator) -> None:
    for id in ("b", "a", "d", "c"):
        app.actor(Order, id).place(1)
    with app.tenant("acme"):
        app.actor(Order, "elsewhere").place(1)
        assert app.ids(Order) == ["elsewhere"]
    app.actor(Shipment, "s").open()
    # Its state was never written, and nothing creates it.
    app.actor(Order, "untouched").ship()
    assert app.ids(Order) == ["a", "b", "c", "d"]
    assert app.ids(Order, limit=2) == ["a", "b"]
    assert app.ids(Order, after="b", limit=2) == ["c", "d"]
    assert app.ids(Order, after="d") == []
    assert app.ids(Shipment) == ["s"]
    assert [(found.actor_id, found.written, found.events, found.created, found.lives) for found in operator.actors("Order", limit=1)] == [
        ("a", 1, 1, False, 0)
    ]
    for limit in (0, 10_001, True, "10"):
        with pytest.raises(PayloadInvalid, match="ids.*: limit is a number from 1 to 10000"):
            app.ids(Order, limit=limit)  # type: ignore[arg-type]
    for call in (app.ids, app.new):
        with pytest.raises(TypeError, match=rf"^{call.__name__}\(\.\.\.\) takes an Actor subclass$"):
            call("Order")  # type: ignore[arg-type]
    with app.acting_as(User("ada")), pytest.raises(Unauthorized, match="only the deployment's own code may list actors"):
        app.ids(Order)


def test_actors_are_not_listed_inside_a_turn(akter_app: Callable[..., Akter]) -> None:
    class Lister(Actor):
        """Asks for others inside its turn."""

        @command
        def list_all(self) -> list[str]:
            return app.ids(Lister)

    app = akter_app(Lister)
    with pytest.raises(Defect, match="InsideTurn: actors are listed outside turns"):
        app.actor(Lister, "l").list_all()


def test_a_reset_actor_begins_again_with_its_defaults(app: Akter, operator: Operator, rows: Rows) -> None:
    order = app.actor(Order, "o")
    with app.command_id("first"):
        order.place(3900)
    removed = operator.reset("Order", "o", why="it was a test")
    assert removed == (1, 3, 0, 0, 0, 0)
    assert order.summary() == ("new", 0)
    found = inspect(app, order)
    assert (found.generation, found.created, found.version, found.event_sequence) == (1, False, 0, 1)
    assert [entry.event.total for entry in app.events(order, Placed)] == [3900]
    assert audit(rows) == [("ada", "actor.reset", "Order/o", "it was a test", json.dumps(removed._asdict()))]
    with app.command_id("first"):
        assert order.place(3900) == 3900, "the receipt answered: what was done is not done again"
    assert order.summary() == ("new", 0)
    order.place(5)
    assert order.summary() == ("awaiting payment", 5)
    assert [entry.cursor for entry in app.events(order, Placed)] == ["1", "2"]


def test_a_reset_takes_back_what_is_for_later_and_leaves_what_is_on_its_way(app: Akter, operator: Operator) -> None:
    order = app.actor(Order, "o")
    order.place(1)
    order.ship()
    app.send(order.note)
    assert waiting(app, order) == [
        ("intent", "Order", "expire"),
        ("intent", "Order", "note"),
        ("intent", "Shipment", "open"),
        ("intent", "Shipment", "open"),
        ("job", "Order", "charge"),
    ]
    assert operator.reset("Order", "o").asked == 4
    assert waiting(app, order) == [("intent", "Shipment", "open")]
    settle(app)
    assert app.actor(Shipment, "o").check() == 1
    assert order.summary() == ("new", 1), "what others asked of it reaches its new life"


def test_a_reset_actor_must_be_created_again_and_keeps_its_schedules(app: Akter, operator: Operator) -> None:
    shipment = app.actor(Shipment, "s")
    shipment.open()
    assert waiting(app, shipment) == [("intent", "Shipment", "look")]
    operator.reset("Shipment", "s")
    assert waiting(app, shipment) == [("intent", "Shipment", "look")]
    with pytest.raises(NotCreated):
        shipment.check()
    assert app.ids(Shipment) == []
    shipment.open()
    assert (shipment.check(), app.ids(Shipment)) == (1, ["s"])
    assert len(waiting(app, shipment)) == 1


def test_a_deleted_actor_is_gone_with_what_waits_for_it(app: Akter, operator: Operator, rows: Rows) -> None:
    order, other = app.actor(Order, "o"), app.actor(Order, "another")
    with app.command_id("first"):
        order.place(3900)
    other.place(7)
    app.send(order.note)
    rows(
        "INSERT INTO {akter}.actor_dead_letters (bucket, routing_key, tenant_id, actor_type, actor_id, job_id, job, payload, cause,"
        " attempts, ambiguous, dead_at_ms) SELECT bucket, routing_key, tenant_id, actor_type, actor_id, 'j', 'charge', '', '', 1, true, 1"
        " FROM {akter}.actor_generations WHERE actor_id = 'o'"
    )
    removed = operator.delete("Order", "o", why="the customer asked for it")
    assert removed == (1, 3, 1, 0, 1, 1)
    found = inspect(app, order)
    assert (found.generation, found.state, found.events, found.outbox, found.dead_letters) == (1, None, (), (), ())
    assert audit(rows) == [("ada", "actor.delete", "Order/o", "the customer asked for it", json.dumps(removed._asdict()))]
    assert app.ids(Order) == ["another"]
    assert (other.summary(), len(waiting(app, other))) == (("awaiting payment", 7), 3)
    settle(app)
    assert order.summary() == ("new", 0)
    with app.command_id("first"):
        assert order.place(3900) == 3900
    assert order.summary() == ("new", 0)


def test_no_number_of_an_event_is_given_again_after_a_deletion(app: Akter, operator: Operator) -> None:
    order = app.actor(Order, "o")
    order.place(1)
    (entry,) = app.events(order, Placed)
    operator.delete("Order", "o")
    order.place(2)
    with pytest.raises(RetentionGap):
        app.events(order, Placed)
    assert [(found.cursor, found.event.total) for found in app.events(order, Placed, after=entry.cursor)] == [("2", 2)]


def test_a_deletion_with_receipts_forgets_the_commands_too(app: Akter, operator: Operator) -> None:
    order = app.actor(Order, "o")
    with app.command_id("first"):
        order.place(1)
    assert operator.delete("Order", "o", with_receipts=True).receipts == 1
    assert receipts(app, order) == ()
    with app.command_id("first"):
        assert order.place(2) == 2
    assert order.summary() == ("awaiting payment", 2)


def test_a_deleted_actors_schedules_go_and_come_back_with_a_new_life(app: Akter, operator: Operator) -> None:
    shipment = app.actor(Shipment, "s")
    shipment.open()
    assert operator.delete("Shipment", "s").asked == 1
    assert waiting(app, shipment) == []
    shipment.open()
    assert waiting(app, shipment) == [("intent", "Shipment", "look")]


@pytest.mark.parametrize("act", ["reset", "delete"])
def test_it_waits_for_the_turn_that_runs_and_its_call_is_answered(
    app: Akter, operator: Operator, act: str, threads: ThreadPoolExecutor, rows: Rows
) -> None:
    order = app.actor(Order, "o")
    order.ship()
    with pause_next(app, "before_commit") as pause:
        call: Future[int] = threads.submit(order.place, 5)
        pause.wait()
        done = threads.submit(getattr(operator, act), "Order", "o")
        until(
            lambda: rows("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") != [(0,)]
        )
        pause.release()
        assert call.result(20) == 5
        assert done.result(20).state == 1
    assert order.summary() == ("new", 0)


@pytest.mark.parametrize("act", ["reset", "delete"])
def test_a_message_that_a_runner_holds_is_not_pulled_away(app: Akter, operator: Operator, act: str, rows: Rows) -> None:
    order = app.actor(Order, "o")
    with Runner(app, listen=False) as runner:
        with pause_next(app, "before_delivery") as pause:
            sent = app.send(order.note)
            pause.wait()
            with pytest.raises(AkterError, match=f"a runner holds messages for Order/o now .{re.escape(sent)}.: try again"):
                getattr(operator, act)("Order", "o")
            assert audit(rows) == []
        until(lambda: order.summary() == ("new", 1))
        until(lambda: not operator.waiting())
        assert getattr(operator, act)("Order", "o").state == 1
        assert not runner.failed
    assert order.summary() == ("new", 0)


@pytest.mark.parametrize("act", ["reset", "delete"])
def test_the_result_of_a_job_that_runs_meanwhile_is_dropped(akter_app: Callable[..., Akter], operator: Operator, act: str) -> None:
    app = akter_app(Account)
    account = app.actor(Account, "a")
    Slow.began.clear()
    Slow.may_end.clear()
    with Runner(app, lanes={"jobs": 2}, listen=False) as runner:
        account.pay(5)
        assert Slow.began.wait(30)
        assert getattr(operator, act)("Account", "a").asked == 1
        Slow.may_end.set()
        report = runner.stop()
    assert (report.clean, report.left) == (True, ())
    settle(app)
    found = inspect(app, account)
    assert (found.state, found.outbox, found.dead_letters) == (None, (), ())


def test_a_busy_actor_is_said_to_be_busy(app: Akter, operator: Operator, threads: ThreadPoolExecutor) -> None:
    order = app.actor(Order, "o")
    order.ship()
    with pause_next(app, "before_commit") as pause:
        call: Future[int] = threads.submit(order.place, 5)
        pause.wait()
        with pytest.raises(AkterError, match="Order/o is busy with a turn: try again"):
            operator.reset("Order", "o")
        pause.release()
        assert call.result(20) == 5
    assert order.summary() == ("awaiting payment", 5)


def test_nothing_is_removed_when_its_audit_row_cannot_be_written(app: Akter, operator: Operator, rows: Rows) -> None:
    order = app.actor(Order, "o")
    order.place(5)
    rows("ALTER TABLE {akter}.actor_operator_audit ADD CONSTRAINT never CHECK (action <> 'actor.delete')")
    with pytest.raises(Exception, match="never"):
        operator.delete("Order", "o")
    assert order.summary() == ("awaiting payment", 5)
    assert len(waiting(app, order)) == 3


def test_the_commands_need_a_yes(app: Akter, environment: dict[str, str]) -> None:
    app.actor(Order, "o").place(1)
    for verb, said in (("reset", "the state of a reset actor is gone: say --yes"), ("delete", "a deleted actor is gone")):
        result = click.testing.CliRunner().invoke(main, ["actor", verb, "Order", "o"], env=environment)
        assert (result.exit_code, said in result.output) == (1, True)
    assert app.actor(Order, "o").summary() == ("awaiting payment", 1)


def plain(text: str) -> list[str]:
    """The lines of an output without what differs each time."""
    text = re.sub(r"v1\.\d+\.\d+\.[0-9a-f-]{36}", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", "TIME", text)
    text = re.sub(r"\b(in|due for) \d[\dhdms. ]*[hdms]", r"\1 WHILE", text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.splitlines() if line.strip()]


def documented(command: str) -> list[str]:
    shown = [block.splitlines()[1:] for block in TEXT.split("```")[1::2]]
    (lines,) = [lines[1:] for lines in shown if lines and lines[0] == f"$ {command}"]
    return plain("\n".join(lines))


def test_the_outputs_in_the_document_are_what_the_commands_say(app: Akter, said: Callable[..., str]) -> None:
    order = app.actor(Order, "o-1")
    with app.command_id("req-17", scope="shop"):
        order.place(3900)
    advance(app, timedelta(milliseconds=20))
    with pytest.raises(AlreadyPlaced):
        order.place(1)
    app.send(order.note)
    app.actor(Order, "o-2").place(7)
    assert sorted(plain(said("inspect", "Order", "o-1"))) == sorted(documented("akter inspect Order o-1"))
    assert plain(said("actors", "Order")) == documented("akter actors Order")
    assert plain(said("actor", "reset", "Order", "o-1", "--yes", "--why", "paid twice")) == documented(
        'akter actor reset Order o-1 --yes --why "paid twice"'
    )
    assert plain(said("actor", "delete", "Order", "o-1", "--yes")) == documented("akter actor delete Order o-1 --yes")
    life = json.loads(said("inspect", "Order", "o-1", "--json"))
    assert (life["generation"], life["state"], life["events"]) == (2, None, [])
    assert [row["outcome"]["asked"] for row in life["operations"]] == [3, 0]
    assert [json.loads(line)["actor_id"] for line in said("actors", "Order", "--json").splitlines()] == ["o-2"]
