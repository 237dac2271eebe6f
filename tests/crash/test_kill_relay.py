"""Relays killed with SIGKILL before, in and after a delivery, and what another process makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from akter import Actor, Akter, Event, command
from akter.runner import Runner
from akter.testing import advance, child, settle

LEASE = timedelta(seconds=37)
BOXES = 12
EACH = 40


class Kept(Event):
    """A letter was kept."""

    letter: str


class Box(Actor):
    """Keeps letters. Every run of a command leaves a line in `journal`, a file that knows nothing of transactions."""

    letters: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def keep(self, letter: str, journal: str) -> int:
        with open(journal, "a", encoding="utf-8") as file:
            file.write(letter + "\n")
        self.letters = [*self.letters, letter]
        self.emit(Kept(letter=letter))
        return len(self.letters)

    @command
    def post(self, letter: str, box: str, journal: str) -> None:
        self.send(self.actor(Box, box).keep, letter, journal)


class Chick(Actor):
    """Is there from the moment it hatches."""

    hatched: int = 0

    @command(creates=True)
    def hatch(self, journal: str) -> int:
        with open(journal, "a", encoding="utf-8") as file:
            file.write(self.id + "\n")
        self.hatched += 1
        return self.hatched


class Nest(Actor):
    """Lays eggs, each with a name of its own."""

    @command
    def lay(self, journal: str) -> str:
        chick = self.mint(Chick)
        self.send(chick.hatch, journal)
        return chick.id


def relay(url: str, schema: str, ride: bool, together: bool) -> None:
    """Deliver what is due; what a killed process of these tests does."""
    with Akter(url, actors=[Box, Chick, Nest], schema=schema) as app:
        runner = Runner(app, ride=ride, listen=False)
        if together:
            # As after a while: the command was seen to be quick.
            runner._deliverer.pace.saw(app.actors["Box"].members["keep"], 0.0, used_sql=False)
        runner.drain()
        runner.stop()


def serve(url: str, schema: str, name: str, journal: str) -> int:
    """Run a relay and post letters at the same time, under ids of its own; after a crash, all of them again."""
    with Akter(url, actors=[Box], schema=schema) as app, Runner(app, poll=0.05) as runner:
        for number in range(EACH):
            with app.command_id(f"{name}-{number}"):
                app.actor(Box, f"sender-{name}").post(f"{name}-{number}", f"box-{number % BOXES}", journal)
        runner.drain()
        return runner.stop().delivered


class Post:
    """The database, the children that deliver in it, and what they left."""

    def __init__(self, app: Akter, where: tuple[str, str], rows: Callable[..., list[Any]], journal: Path) -> None:
        self.app, self._where, self._rows, self._journal = app, where, rows, journal
        journal.touch()

    def killed(self, at: Any, ride: bool, together: bool) -> None:
        """Let a process deliver until it stands at the point, and kill it there."""
        with child(relay, *self._where, ride, together, stop_at=at) as process:
            process.wait_reached()
            process.kill()

    def send(self, *letters: str) -> None:
        with self.app.engine.begin() as connection:
            messages = [
                (self.app.actor(Box, f"box-{letter}").keep, {"letter": letter, "journal": str(self._journal)}) for letter in letters
            ]
            self.app.within(connection).send_many(messages)

    def after_the_lease(self) -> None:
        """What is claimed by a dead process is left alone until its lease ends; then it is delivered here."""
        runner = Runner(self.app, listen=False)
        settle(self.app, runner)
        self.claimed_meanwhile = self.attempts
        advance(self.app, LEASE, runner)
        runner.stop()

    @property
    def runs(self) -> Counter[str]:
        return Counter(self._journal.read_text().split())

    @property
    def attempts(self) -> list[int]:
        return self._rows("SELECT attempts FROM actor_outbox")

    @property
    def kept(self) -> list[str]:
        found = self._rows("SELECT value::text FROM actor_state WHERE starts_with(actor_id, 'box-')")
        return sorted(letter for value in found for letter in _letters(value))


def _letters(value: str) -> list[str]:
    import json

    return list(json.loads(value)["letters"])


@pytest.fixture
def post(akter_app: Any, akter_database: str, akter_schema: str, rows: Any, tmp_path: Path) -> Iterator[Post]:
    return Post(akter_app(Box, Chick, Nest), (akter_database, akter_schema), rows, tmp_path / "journal")


ALONE, TOGETHER = ("a",), ("a", "b", "c")


@pytest.mark.conformance("KILL-17")
@pytest.mark.parametrize(("point", "letters", "ride"), [("before_delivery", ALONE, True), ("after_claim", TOGETHER, False)])
def test_a_relay_killed_before_it_delivers_leaves_the_message_to_another(post: Post, letters: Any, ride: bool, point: Any) -> None:
    post.send(*letters)
    post.killed(point, ride, len(letters) > 1)
    assert post.attempts == [1] * len(letters)
    assert not post.runs
    post.after_the_lease()
    assert post.claimed_meanwhile == [1] * len(letters)
    assert (post.kept, post.attempts) == (list(letters), [])
    assert post.runs == dict.fromkeys(letters, 1)


@pytest.mark.conformance("KILL-18")
@pytest.mark.parametrize(("letters", "ride"), [(ALONE, True), (TOGETHER, True), (TOGETHER, False)])
def test_a_receiver_killed_before_its_commit_takes_the_message_again(
    post: Post, letters: Any, ride: bool, until: Callable[..., None]
) -> None:
    post.send(*letters)
    post.killed("before_commit", ride, len(letters) > 1)
    until("SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()", some=False)
    assert (post.kept, post.attempts) == ([], [1] * len(letters))
    assert post.runs == dict.fromkeys(letters, 1)
    post.after_the_lease()
    assert post.claimed_meanwhile == [1] * len(letters)
    assert (post.kept, post.attempts) == (list(letters), [])
    assert post.runs == dict.fromkeys(letters, 2)


@pytest.mark.conformance("KILL-19")
@pytest.mark.parametrize(
    ("point", "letters", "ride"),
    [("before_outbox_delete", ALONE, False), ("before_outbox_delete", TOGETHER, False), ("after_commit", TOGETHER, True)],
)
def test_a_relay_killed_after_the_receivers_commit_delivers_nothing_twice(post: Post, letters: Any, point: Any, ride: bool) -> None:
    post.send(*letters)
    post.killed(point, ride, len(letters) > 1)
    assert (post.kept, post.attempts) == (list(letters), [] if ride else [1] * len(letters))
    post.after_the_lease()
    assert (post.kept, post.attempts) == (list(letters), [])
    assert post.runs == dict.fromkeys(letters, 1)


@pytest.mark.conformance("REL-C-05")
@pytest.mark.parametrize(
    ("point", "ride", "runs"),
    [("before_delivery", True, 1), ("before_commit", True, 2), ("after_commit", True, 1), ("before_outbox_delete", False, 1)],
)
def test_a_minted_child_is_created_once_whenever_the_claimer_of_its_creation_is_killed(
    post: Post, rows: Callable[..., list[Any]], tmp_path: Path, point: Any, ride: bool, runs: int
) -> None:
    with post.app.command_id("egg"):
        chick = post.app.actor(Nest, "n").lay(str(tmp_path / "journal"))
    post.killed(point, ride, False)
    post.after_the_lease()
    with post.app.command_id("egg"):
        assert post.app.actor(Nest, "n").lay(str(tmp_path / "journal")) == chick
    post.after_the_lease()
    assert post.runs == {chick: runs}
    assert rows("SELECT actor_id FROM actor_generations WHERE actor_type = 'Chick' AND created") == [chick]
    assert rows("SELECT (value->>'hatched')::int FROM actor_state WHERE actor_type = 'Chick'") == [1]
    assert rows("SELECT count(*) FROM actor_receipts WHERE command = 'hatch'") == [1]
    assert post.attempts == []


@pytest.mark.conformance("KILL-40")
def test_three_processes_under_load_lose_a_runner_and_a_claiming_relay(
    post: Post, akter_database: str, akter_schema: str, rows: Callable[..., list[Any]], until: Callable[..., None], tmp_path: Path
) -> None:
    where, journal = (akter_database, akter_schema), str(tmp_path / "journal")
    with (
        child(serve, *where, "a", journal) as first,
        child(serve, *where, "b", journal) as steady,
        child(serve, *where, "c", journal, stop_at="after_claim") as claiming,
    ):
        claiming.wait_reached()
        claiming.kill()
        until("SELECT 1 FROM actor_receipts WHERE actor_id = 'sender-a' HAVING count(*) >= 5")
        first.kill()
        with child(serve, *where, "a", journal) as again, child(serve, *where, "c", journal) as another:
            for process in (steady, again, another):
                process.wait(60)
    post.after_the_lease()
    sent = [f"{name}-{number}" for name in "abc" for number in range(EACH)]
    assert post.kept == sorted(sent)
    assert set(post.runs) == set(sent)
    assert post.attempts == []
    assert rows("SELECT count(*) FROM actor_receipts WHERE command = 'post'") == [3 * EACH]
    assert rows("SELECT count(*) FROM actor_receipts WHERE command = 'keep'") == [3 * EACH]
    gaps = "SELECT actor_id FROM actor_events GROUP BY actor_id HAVING max(sequence) <> count(*) OR min(sequence) <> 1"
    assert rows(gaps) == []
    numbered = "(SELECT count(*) FROM actor_events e WHERE e.actor_id = g.actor_id)"
    heads = f"SELECT count(*) FROM actor_generations g WHERE event_sequence <> {numbered}"
    assert rows(heads) == [0]
