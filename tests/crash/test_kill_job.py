"""Processes killed with SIGKILL around a job, and what another one makes of it."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from charging import charge_card, found, meet, never_ready

from akter import Actor, Akter, AkterError, Cancellation, DeadLetter, Job, Retry, command
from akter.runner import Runner
from akter.testing import advance, child, inspect, settle

LEASE = timedelta(seconds=60)
MINUTES = timedelta(minutes=5)


class Till(Actor):
    """Asks for charges, and keeps what it hears."""

    log: list[str] = []  # noqa: RUF012 - a state field's default is copied
    charge = Job(charge_card, retry=Retry(attempts=3, base=1.0, cap=2.0))
    apart = Job(charge_card, retry=Retry(attempts=2, base=0.05, cap=0.05), isolation="process")
    meeting = Job(meet, retry=Retry(attempts=2, base=0.05, cap=0.05))

    family = Job(found, retry=Retry(attempts=1), isolation="process")

    @command
    def begin_family(self, journal: str, lock: str, how: str) -> None:
        self.enqueue(self.family, journal, lock, how)

    @command
    def begin_meeting(self, journal: str, how: str, guests: int) -> None:
        self.enqueue(self.meeting, journal, how, guests)

    @command
    def begin(self, journal: str, how: str) -> str:
        return self.after(timedelta(0), key="charge").enqueue(self.charge, journal=journal, how=how)

    @command
    def begin_apart(self, journal: str, how: str) -> str:
        return self.enqueue(self.apart, journal=journal, how=how)

    @command
    def stop(self) -> None:
        self.cancel("charge")

    @charge.on_success
    def charged(self, said: str) -> None:
        self.log = [*self.log, said]

    @charge.on_dead_letter
    def failed(self, letter: DeadLetter) -> None:
        self.log = [*self.log, f"dead after {letter.attempts}: {letter.cause}"]

    @charge.on_cancelled
    def cancelled(self, told: Cancellation) -> None:
        self.log = [*self.log, f"cancelled after {told.attempts}: {told.outcome}"]

    @meeting.on_success
    def met(self, said: str) -> None:
        self.log = [*self.log, said]

    @apart.on_success
    def apart_charged(self, said: str) -> None:
        self.log = [*self.log, said]


def work(url: str, schema: str) -> None:
    """Do what is due; what a killed process of these tests does."""
    with Akter(url, actors=[Till], schema=schema) as app:
        settle(app, runner := Runner(app, listen=False, ride=False))
        runner.stop()


class Place:
    """The database, the children that work in it, and what they left."""

    def __init__(self, app: Akter, where: tuple[str, str], journal: Path) -> None:
        self.app, self.where, self._journal = app, where, journal
        self.till = app.actor(Till, "t")
        journal.touch()

    def begin(self, how: str) -> str:
        return self.till.begin(str(self._journal), how)

    def killed(self, at: Any, command_id: str | None = None) -> None:
        """Let a process work until it stands at the point, and kill it there."""
        with child(work, *self.where, stop_at=at, command_id=command_id) as process:
            process.wait_reached()
            process.kill()

    def after(self, by: timedelta = MINUTES) -> None:
        """Let leases end, and do what is due here; three times, for whatever follows from it."""
        runner = Runner(self.app, listen=False)
        for _ in range(3):
            advance(self.app, by, runner)
        runner.stop()

    @property
    def calls(self) -> list[int]:
        """The attempts whose calls reached the provider."""
        return [int(line.split()[0]) for line in self._journal.read_text().splitlines()]

    @property
    def log(self) -> list[str]:
        return list((inspect(self.app, self.till).state or {"log": []})["log"])

    @property
    def letters(self) -> list[tuple[str, int, bool]]:
        return [(row["cause"], row["attempts"], row["ambiguous"]) for row in inspect(self.app, self.till).dead_letters]

    @property
    def left(self) -> int:
        return len(inspect(self.app, self.till).outbox)


def eventually(what: str, so: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not so():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.fixture
def place(akter_app: Any, akter_database: str, akter_schema: str, tmp_path: Path) -> Place:
    return Place(akter_app(Till), (akter_database, akter_schema), tmp_path / "journal")


@pytest.mark.conformance("KILL-20")
def test_a_process_killed_before_the_call_leaves_it_to_another(place: Place) -> None:
    place.begin("x")
    place.killed("before_execute")
    assert place.calls == []
    place.after()
    assert (place.calls, place.log, place.letters, place.left) == ([2], ["charge x"], [], 0)


@pytest.mark.conformance("KILL-21")
def test_a_process_killed_after_the_call_leaves_an_attempt_whose_end_nobody_knows(place: Place) -> None:
    id = place.begin("x")
    place.killed("after_execute")
    (row,) = inspect(place.app, place.till).outbox
    assert (place.calls, row["intent_id"], row["ambiguous"], row["running"]) == ([1], id, True, True)
    place.after()
    assert (place.calls, place.log, place.letters, place.left) == ([1, 2], ["charge x"], [], 0)


@pytest.mark.conformance("KILL-22")
@pytest.mark.parametrize("point", ["before_commit", "before_outbox_delete"])
def test_a_result_is_told_once_when_its_receiver_is_killed(place: Place, point: Any) -> None:
    id = place.begin("x")
    place.killed(point, id)
    place.after()
    assert (place.calls, place.log, place.left) == ([1], ["charge x"], 0)


@pytest.mark.conformance("KILL-23", "KILL-27")
def test_a_process_killed_before_the_dead_letter_costs_no_other_call(place: Place) -> None:
    place.begin("declined")
    place.killed("before_dead_letter_commit")
    (row,) = inspect(place.app, place.till).outbox
    assert (row["final_failure"], row["attempts"], row["last_error"], place.letters) == (True, 1, "declined", [])
    place.after()
    assert (place.calls, place.letters, place.log) == ([1], [("declined", 1, False)], ["dead after 1: declined"])


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before_delivery", marks=pytest.mark.conformance("KILL-24")),
        pytest.param("before_commit", marks=pytest.mark.conformance("KILL-25")),
        pytest.param("before_outbox_delete", marks=pytest.mark.conformance("KILL-26")),
    ],
)
def test_a_dead_letter_is_told_once_when_its_receiver_is_killed(place: Place, point: Any) -> None:
    id = place.begin("declined")
    place.killed(point, id)
    place.after()
    assert (place.calls, place.letters, place.log, place.left) == ([1], [("declined", 1, False)], ["dead after 1: declined"], 0)


@pytest.mark.conformance("KILL-28")
def test_a_cancelled_job_whose_process_is_killed_after_the_call_is_told_once(place: Place) -> None:
    place.begin("x")
    with child(work, *place.where, stop_at="after_execute") as process:
        process.wait_reached()
        place.till.stop()
        process.kill()
    place.after()
    assert (place.calls, place.log, place.left) == ([1], ["cancelled after 1: unknown"], 0)


@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("kill", -signal.SIGKILL)])
def test_a_job_that_kills_its_process_ends_as_a_dead_letter_and_never_loops(place: Place, how: str, code: int) -> None:
    place.begin(how)
    for attempt in range(1, 4):
        with child(work, *place.where) as process, pytest.raises(AkterError, match=f"exit(ed)? (code )?{code}|{code}"):
            process.wait()
        assert place.calls == list(range(1, attempt + 1))
        advance(place.app, MINUTES)
    place.after()
    assert place.calls == [1, 2, 3]
    assert place.letters == [("attempt 3 ended without reporting how", 3, True)]
    assert place.log == ["dead after 3: attempt 3 ended without reporting how"]


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_job_in_a_process_of_its_own_takes_only_that_one_with_it(place: Place, how: str) -> None:
    place.till.begin_apart(str(place._journal), how)
    place.after(timedelta(seconds=1))
    said = "exit code 7" if how == "exit" else "signal 9"
    assert place.letters == [(f"ChildFailed: its process ended with {said}", 2, True)]
    assert place.calls == [1, 2]


def test_a_job_in_a_process_of_its_own_tells_its_result_and_what_it_refused(place: Place) -> None:
    place.till.begin_apart(str(place._journal), "x")
    settle(place.app)
    assert place.log == ["charge x"]
    place.till.begin_apart(str(place._journal), "declined")
    settle(place.app)
    assert place.letters == [("declined", 1, False)]


@pytest.mark.parametrize("poisons", [1, 2])
def test_a_job_that_kills_its_process_costs_each_neighbour_one_attempt_and_no_more(place: Place, poisons: int) -> None:
    guests = [place.app.actor(Till, f"n{number}") for number in range(5)]
    poison = [place.app.actor(Till, f"p{number}") for number in range(poisons)]
    for till in [*guests, *poison]:
        till.begin_meeting(str(place._journal), "exit" if till in poison else "x", len(guests) + poisons)
    deaths = 0
    while True:
        with child(work, *place.where) as process:
            try:
                process.wait(240.0)
                break
            except AkterError as problem:
                assert "ended with status 7" in str(problem)
                deaths += 1
                advance(place.app, MINUTES)
    # All of them once, and then each poison by itself.
    assert deaths == 1 + poisons
    found = [inspect(place.app, till) for till in guests]
    assert [one.state and one.state["log"] for one in found] == [["met x"]] * 5
    assert [one.dead_letters for one in found] == [()] * 5
    for till in poison:
        (letter,) = inspect(place.app, till).dead_letters
        assert (letter["attempts"], letter["ambiguous"]) == (2, True)


def test_a_process_that_ends_while_jobs_wait_gives_them_back(place: Place, until: Callable[..., None]) -> None:
    ids = {place.app.actor(Till, str(number)).begin(str(place._journal), "x") for number in range(5)}
    with child(work, *place.where) as process:
        process.wait()
    assert len(place.calls) == 5 == len(ids)


def held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("how", ["deadline", "returns", "dies", "runner killed"])
def test_what_a_function_started_in_its_process_ends_with_it(place: Place, tmp_path: Path, how: str) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    place.till.begin_family(str(place._journal), str(lock), how)
    if how == "runner killed":
        with child(work, *place.where) as process:
            eventually("it holds the lock", lambda: place.calls == [1])
            process.kill()
    else:
        runner = Runner(place.app, listen=False)
        draining = threading.Thread(target=runner.drain, daemon=True)
        draining.start()
        eventually("it holds the lock", lambda: place.calls == [1])
        if how == "deadline":
            assert held(lock)
            (run,) = runner.jobs.attempts.running()
            run.deadline = 0.0
            runner.jobs.attempts.clock.wake()
        draining.join(120)
        runner.stop()
    eventually("it is gone", lambda: not held(lock))
    if how == "deadline":
        assert place.letters == [("it took longer than its time limit", 1, True)]


def started(runner: Runner, attempt: int) -> bool:
    assert runner.jobs is not None
    return [run.row.attempts for run in runner.jobs.attempts.running() if run.kill] == [attempt]


def test_a_process_that_did_not_start_in_time_has_not_acted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("akter.runner.isolation._child", never_ready)
    place.till.begin_apart(str(place._journal), "x")
    runner = Runner(place.app, listen=False)
    for attempt in (1, 2):
        draining = threading.Thread(target=runner.drain, daemon=True)
        draining.start()
        eventually("it starts", partial(started, runner, attempt))
        (run,) = runner.jobs.attempts.running()
        run.deadline = 0.0
        runner.jobs.attempts.clock.wake()
        draining.join(120)
        advance(place.app, timedelta(seconds=1))
    runner.stop()
    assert place.letters == [("its process did not start within 90 seconds", 2, False)]
    assert place.calls == []


SCRIPT = """
import sys
from akter import Actor, Akter, Attempt, Job, Retry, command
from akter.operating import Operator
from akter.runner import Runner

def do(attempt: Attempt) -> str:
    return "done"

class Script(Actor):
    times: int = 0
    work = Job(do, retry=Retry(attempts=1), isolation="process")

    @command
    def begin(self) -> int:
        self.times += 1
        self.enqueue(self.work)
        return self.times

url, schema = sys.argv[1:]
app = Akter(url, actors=[Script], schema=schema)
print("begun", app.actor(Script, "s").begin(), flush=True)
Runner(app, listen=False).drain()
for letter in Operator(app.engine, schema=schema, by="ada").letters.list():
    print(letter.ambiguous, letter.cause)
"""


def test_a_script_that_does_all_at_its_top_level_is_told_what_to_do(place: Place, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, str(script), *place.where], capture_output=True, text=True, timeout=300)
    said = ran.stdout.splitlines()
    assert (ran.returncode, said[0]) == (0, "begun 1"), ran.stderr
    assert said[1].startswith("False it was not started: ChildFailed: its process ended with exit code 1 before the function was called")
    assert said[1].endswith('a script does what it does under `if __name__ == "__main__":`')
    assert len(said) == 2
    assert 'put what the script does under `if __name__ == "__main__":`' in ran.stderr
