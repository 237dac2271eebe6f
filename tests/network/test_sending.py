"""Messages sent from outside while the network, or somebody's NOTIFY, stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from akter import Actor, Akter, OutcomeUnknown, command
from akter.testing import settle


class Box(Actor):
    """Keeps letters, and passes them on."""

    letters: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def keep(self, letter: str) -> None:
        self.letters = [*self.letters, letter]

    @command
    def pass_on(self, letter: str, to: str) -> None:
        self.send(self.actor(Box, to).keep, letter)


@pytest.mark.parametrize("action", ["drop", "cut"])
def test_a_message_whose_commit_lost_its_answer_is_there_once(
    through: Callable[..., Akter], proxy: Any, observer: Any, action: Any
) -> None:
    app = through(Box)
    app.send(app.actor(Box, "warm").keep, "w")
    rule = proxy.next("COMMIT", action)
    sent = app.send(app.actor(Box, "b").keep, "a")
    assert rule.hits == 1
    assert observer.rows("SELECT intent_id FROM actor_outbox WHERE target_id = 'b'") == [(sent,)]
    settle(app)
    assert observer.one("SELECT value -> 'letters' FROM actor_state WHERE actor_id = 'b'") == ["a"]


def test_a_message_of_which_nobody_knows_is_told_so_with_its_id_and_may_be_sent_again(
    through: Callable[..., Akter], proxy: Any, observer: Any
) -> None:
    app = through(Box, delivery=1.0)
    app.send(app.actor(Box, "warm").keep, "w")
    proxy.next("COMMIT", "drop", times=1000)
    with app.command_id("letter"), pytest.raises(OutcomeUnknown) as unknown:
        app.send(app.actor(Box, "b").keep, "a")
    assert unknown.value.command_id == "letter"
    proxy.clear()
    with app.command_id("letter"):
        app.send(app.actor(Box, "b").keep, "a")
    settle(app)
    assert observer.one("SELECT value -> 'letters' FROM actor_state WHERE actor_id = 'b'") == ["a"]


def test_somebodys_notify_that_hangs_in_its_commit_holds_up_no_turn_and_no_message(
    private_database: str, akter_app: Callable[..., Akter], make_engine: Callable[..., Any], observe: Any, aside: Any, eventually: Any
) -> None:
    """A transaction that notified holds a lock of the whole database until its commit is answered, here by a standby that is not there."""
    app = akter_app(Box, engine=make_engine(private_database, pool_size=4), execution=5.0)
    app.actor(Box, "warm").keep("w")
    observer = observe(private_database)
    observer.rows("CREATE TABLE public.told (times int)")
    observer.rows("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    observer.rows("ALTER DATABASE " + private_database.split("/")[3].split("?")[0] + " SET synchronous_commit = local")
    observer.rows("SELECT pg_reload_conf()")
    app.engine.dispose()
    url = private_database.replace("+psycopg", "")
    stuck: list[Any] = []

    def notify() -> None:
        with psycopg.connect(url) as connection:
            connection.execute("SET synchronous_commit = on")
            # Only what is written waits for the standby.
            connection.execute("INSERT INTO public.told VALUES (1)")
            connection.execute("NOTIFY somebody")
            connection.commit()

    try:
        while not stuck:
            # The server takes the setting in its own time.
            hanging = aside(notify)
            stuck = eventually(lambda hanging=hanging: observer.sessions("wait_event = 'SyncRep'") or (not hanging.is_alive() and [0]))
            stuck = [pid for pid in stuck if pid]
        app.actor(Box, "a").pass_on("x", to="b")
        app.send(app.actor(Box, "b").keep, "y")
        with app.engine.begin() as connection:
            app.within(connection).send(app.actor(Box, "b").keep, "z")
        settle(app)
        assert sorted(observer.one("SELECT value -> 'letters' FROM actor_state WHERE actor_id = 'b'")) == ["x", "y", "z"]
        eventually(observer.waiting)  # akter's hint, which has a connection of its own
        assert observer.sessions("wait_event = 'SyncRep'") == stuck, "it hangs still"
    finally:
        observer.terminate(*stuck)
        observer.rows("ALTER SYSTEM RESET synchronous_standby_names")
        observer.rows("SELECT pg_reload_conf()")
