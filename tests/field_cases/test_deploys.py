"""Group H: messages that wait while the code changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy

from akter import Actor, Akter, Runner, command
from akter.errors import DeploymentMismatch
from akter.operating import Operator
from akter.testing import inspect

Rows = Callable[..., list[Any]]


class Old(Actor, name="Parcel"):
    """As it was when the messages were sent."""

    moves: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def move(self, to: str) -> None:
        self.moves = [*self.moves, to]


class Defaulted(Actor, name="Parcel"):
    """An argument more, with a default."""

    moves: list[str] = []  # noqa: RUF012

    @command
    def move(self, to: str, speed: int = 5) -> None:
        self.moves = [*self.moves, f"{to} at {speed}"]


class Demanding(Actor, name="Parcel"):
    """An argument more, without one."""

    moves: list[str] = []  # noqa: RUF012

    @command
    def move(self, to: str, speed: int) -> None:
        self.moves = [*self.moves, f"{to} at {speed}"]


class Removed(Actor, name="Parcel"):
    """An argument less."""

    moves: list[str] = []  # noqa: RUF012

    @command
    def move(self) -> None:
        self.moves = [*self.moves, "somewhere"]


class Narrowed(Actor, name="Parcel"):
    """An argument of another type."""

    moves: list[str] = []  # noqa: RUF012

    @command
    def move(self, to: int) -> None:
        self.moves = [*self.moves, str(to)]


class Renamed(Actor, name="Parcel"):
    """A command under a new name, which forgot the old one."""

    moves: list[str] = []  # noqa: RUF012

    @command
    def carry(self, to: str) -> None:
        self.moves = [*self.moves, f"carried {to}"]


class Aliased(Actor, name="Parcel"):
    """A command under a new name, which knows the old one."""

    moves: list[str] = []  # noqa: RUF012

    @command(aliases=("move",))
    def carry(self, to: str) -> None:
        self.moves = [*self.moves, f"carried {to}"]


class Box(Actor, name="Parcel"):
    """The class under a new name, which keeps the stored one."""

    moves: list[str] = []  # noqa: RUF012

    @command
    def move(self, to: str) -> None:
        self.moves = [*self.moves, f"boxed {to}"]


class Mistaken(Actor, name="Box", aliases=("Parcel",)):
    """The class under a new stored name: its actors would be found nowhere."""

    @command
    def move(self, to: str) -> None: ...


class Stranger(Actor, name="Box"):
    """The class under a new name, which forgot the old one."""

    @command
    def move(self, to: str) -> None: ...


DELIVERED = {
    "an argument with a default more": (Defaulted, ["north at 5"]),
    "a command renamed with an alias": (Aliased, ["carried north"]),
    "a class renamed under its stored name": (Box, ["boxed north"]),
}
KEPT = {
    "an argument more": (Demanding, "speed"),
    "an argument less": (Removed, "unknown field `to`"),
    "another type": (Narrowed, "to"),
    "a command renamed": (Renamed, "move"),
}


@pytest.fixture
def deployed(akter_database: str, akter_schema: str) -> Iterator[Callable[[type[Actor]], Akter]]:
    """A function that deploys a version of the code."""
    made: list[Akter] = []

    def deploy(*actors: type[Actor]) -> Akter:
        made.append(Akter(akter_database, actors=actors, schema=akter_schema))
        return made[-1]

    yield deploy
    for app in made:
        app.close()


def deliver(app: Akter) -> None:
    with Runner(app, listen=False) as runner:
        runner.drain()


def send(app: Akter) -> str:
    return app.send(app.actor(Old, "p").move, to="north")


def moves(app: Akter, kind: type[Actor]) -> Any:
    found = inspect(app, app.actor(kind, "p")).state
    return found and found["moves"]


@pytest.mark.parametrize(("new", "expected"), DELIVERED.values(), ids=DELIVERED)
def test_a_compatible_change_delivers_what_waits(deployed: Any, rows: Rows, new: type[Actor], expected: list[str]) -> None:
    send(deployed(Old))
    app = deployed(new)
    deliver(app)
    assert rows("SELECT last_error FROM {akter}.actor_outbox") == []
    assert moves(app, new) == expected


@pytest.mark.parametrize(("new", "named"), KEPT.values(), ids=KEPT)
def test_an_incompatible_change_keeps_what_waits_says_why_and_runs_nothing(deployed: Any, rows: Rows, new: type[Actor], named: str) -> None:
    old = deployed(Old)
    sent = send(old)
    app = deployed(new)
    deliver(app)
    ((attempts, why),) = rows("SELECT attempts, last_error FROM {akter}.actor_outbox")
    assert attempts == 1
    assert named in why, why
    assert moves(app, new) is None
    # The code that can is back.
    rows("UPDATE {akter}.actor_outbox SET due_at_ms = 1")
    deliver(old)
    assert moves(old, Old) == ["north"]
    assert old.outcome(old.actor(Old, "p"), sent) is None


def test_a_class_under_a_new_stored_name_is_refused_with_the_remedy(deployed: Any, rows: Rows) -> None:
    send(deployed(Old))
    with pytest.raises(DeploymentMismatch, match="keep the stored name with `name='Parcel'` on the class"):
        deliver(deployed(Mistaken))
    assert rows("SELECT attempts FROM {akter}.actor_outbox") == [0]


def test_a_class_under_a_new_name_that_forgot_the_old_one_leaves_what_waits_untouched_and_named(
    deployed: Any, rows: Rows, akter_engine: sqlalchemy.Engine, akter_schema: str
) -> None:
    send(deployed(Old))
    app = deployed(Stranger)
    operator = Operator(akter_engine, schema=akter_schema)
    with Runner(app, listen=False) as runner:
        runner.drain()
        assert rows("SELECT attempts, last_error FROM {akter}.actor_outbox") == [(0, None)]
        assert [found.finding for found in operator.findings() if found.name == "unknown type"] == [
            "1 intent row for Parcel due and no live runner serves that type"
        ]
