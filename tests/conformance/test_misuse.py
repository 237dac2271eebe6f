"""What a handler or a caller may do wrong with what it was given, and what is then saved: nothing."""

from __future__ import annotations

import contextvars
import copy
import pickle
from typing import Any

import pytest

from akter import Actor, Akter, Defect, PayloadInvalid, command, field
from akter.errors import ConfigurationError, DeclarationError, UnknownActor
from akter.testing import inspect, settle

kept: list[Any] = []


class Ledger(Actor):
    total: int = 0
    names: dict[int, str] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)

    @command
    def add(self, by: int = 1) -> int:
        self.total += by
        return self.total

    @command
    def name(self, names: dict[int, str]) -> int:
        self.names, self.tags = names, {"b", "a"}
        return len(names)

    @command
    def leave_pipeline_open(self) -> int:
        self.total += 1
        driver: Any = self.connection.connection.driver_connection
        pipeline = driver.pipeline()
        pipeline.__enter__()
        kept.append(pipeline)
        driver.execute("SELECT 1")
        return 1

    @command
    def leave_stream_open(self) -> int:
        self.total += 1
        driver: Any = self.connection.connection.driver_connection
        stream = driver.cursor().stream("SELECT generate_series(1, 1000)")
        kept.append(stream)
        return int(next(stream)[0])

    @command
    def change_encoding(self) -> int:
        self.total += 1
        self.connection.exec_driver_sql("SET client_encoding TO 'LATIN1'")
        return 1

    @command
    def schedule(self) -> int:
        kept.append(contextvars.copy_context())
        return 1

    @command
    def send_to(self, number: int) -> None:
        self.send(kept[number].add)


@pytest.fixture(autouse=True)
def _nothing_kept() -> Any:
    kept.clear()
    yield
    kept.clear()


@pytest.mark.parametrize("name", ["leave_pipeline_open", "leave_stream_open", "change_encoding"])
@pytest.mark.filterwarnings("ignore")
def test_a_handler_that_leaves_the_connection_in_the_middle_of_something_saves_nothing(akter_app, name) -> None:
    app = akter_app(Ledger, execution=5, delivery=8)
    ledger = app.actor(Ledger, "l-1")
    with pytest.raises(Defect, match="left the connection"):
        getattr(ledger, name)()
    found = inspect(app, ledger)
    assert (found.state, found.receipts) == (None, ())
    assert ledger.add() == 1, "the connection was not given to the next turn"


def test_text_of_later_turns_is_stored_right_whatever_a_handler_set(akter_app, akter_engine) -> None:
    app = akter_app(Ledger)
    ledger = app.actor(Ledger, "l-1")
    with pytest.raises(Defect):
        ledger.change_encoding()
    for _ in range(3):
        ledger.name({1: "Grüße"})
    assert inspect(app, ledger).state == {"total": 0, "names": {"1": "Grüße"}, "tags": ["a", "b"]}


def test_what_a_handler_scheduled_may_call_actors_once_the_turn_is_over(akter_app) -> None:
    app = akter_app(Ledger)
    ledger = app.actor(Ledger, "l-1")
    assert ledger.schedule() == 1
    assert kept[0].run(ledger.add) == 1


def test_dicts_whose_keys_are_numbers_are_arguments_state_and_replays(akter_app) -> None:
    app = akter_app(Ledger)
    ledger = app.actor(Ledger, "l-1")
    for _ in range(2):
        with app.command_id("once"):
            assert ledger.name({1: "x", 20: "y"}) == 2
    assert inspect(app, ledger).state == {"total": 0, "names": {"1": "x", "20": "y"}, "tags": ["a", "b"]}
    app.send(ledger.name, {3: "z"})
    settle(app)
    assert inspect(app, ledger).state["names"] == {"3": "z"}


def test_a_message_to_another_tenants_actor_is_refused_and_reaches_nobody(akter_app) -> None:
    app = akter_app(Ledger)
    with app.tenant("acme"):
        kept.append(app.actor(Ledger, "bill"))
    with pytest.raises(Defect, match="another tenant"):
        app.actor(Ledger, "l-1").send_to(0)
    settle(app)
    assert inspect(app, kept[0]).receipts == ()
    assert inspect(app, app.actor(Ledger, "bill")).receipts == ()


def test_a_handle_of_another_akter_is_refused_wherever_it_is_given(akter_app, akter_clone) -> None:
    app = akter_app(Ledger)
    with Akter(akter_clone(), actors=[Ledger], schema=app.schema) as other:
        kept.append(other.actor(Ledger, "l-1"))
        with pytest.raises(PayloadInvalid, match="another Akter"):
            app.send(kept[0].add)
        with app.engine.begin() as connection, pytest.raises(PayloadInvalid, match="another Akter"):
            app.within(connection).send(kept[0].add)
        with pytest.raises(Defect, match="another Akter"):
            app.actor(Ledger, "l-2").send_to(0)
        with pytest.raises(UnknownActor, match="made elsewhere"):
            app.outcome(kept[0], "id")


def test_a_plain_actor_can_be_copied_and_pickled() -> None:
    ledger = Ledger(total=3, names={1: "x"})
    for twin in (copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger))):
        assert (twin.total, twin.names) == (3, {1: "x"})
        twin.add()
        assert (twin.total, ledger.total) == (4, 3)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"execution": "10"}, ConfigurationError),
        ({"lock": None}, ConfigurationError),
        ({"retry_window": 3600}, ConfigurationError),
        ({"max_payload_bytes": "x"}, ConfigurationError),
        ({"max_payload_bytes": 1.5}, ConfigurationError),
        ({"actors": Ledger}, DeclarationError),
        ({"actors": None}, DeclarationError),
    ],
)
def test_settings_of_the_wrong_type_are_refused_by_name(options, error) -> None:
    with pytest.raises(error, match=next(iter(options))):
        Akter("postgresql://localhost/nowhere", **{"actors": [Ledger], **options})
