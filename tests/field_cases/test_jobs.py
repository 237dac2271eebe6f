"""Groups A, C, E and I for jobs: runners that freeze, stop and cannot renew, keys, errors of all kinds, functions that never return."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import chores
import pytest
import sqlalchemy
from chores import Chores

from akter import Akter, Attempt
from akter.errors import ConfigurationError
from akter.runner.attempt import Run
from akter.testing import child

Rows = Callable[..., list[Any]]


@pytest.fixture
def app(akter_database: str, akter_schema: str) -> Iterator[Akter]:
    with chores.made(akter_database, akter_schema) as app:
        yield app


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    chores.on.clear()
    yield
    chores.on.clear()


def heard(rows: Rows, id: str = "c") -> list[str]:
    found = rows("SELECT value::jsonb -> 'heard' FROM {akter}.actor_state WHERE actor_type = 'Chores' AND actor_id = :id", id=id)
    return list(found[0]) if found else []


def letters(rows: Rows) -> list[tuple[str, int, bool]]:
    return rows("SELECT cause, attempts, ambiguous FROM {akter}.actor_dead_letters ORDER BY cause")


class Held:
    """A call that waits until it may end; `attempts` are those that came."""

    def __init__(self, what: str, end: Callable[[Attempt], str]) -> None:
        self.attempts: list[Attempt] = []
        self.may_end = threading.Event()
        self._end = end
        chores.on[what] = self

    def __call__(self, attempt: Attempt) -> str:
        self.attempts.append(attempt)
        assert self.may_end.wait(300)
        return self._end(attempt)


def says(text: str) -> Callable[[Attempt], str]:
    return lambda _: text


def test_a_frozen_process_loses_its_attempt_to_another_and_changes_nothing_when_it_wakes(
    app: Akter, rows: Rows, shared: Any, effects: Any, akter_database: str, akter_schema: str
) -> None:
    app.actor(Chores, "c").begin("a", effects.path)
    with child(chores.serve, akter_database, akter_schema, stop_at="after_execute") as frozen:
        frozen.wait_reached()
        pid = frozen._process.pid
        os.kill(pid, signal.SIGSTOP)
        frozen.release()
        with chores.runner(app):
            shared.until("another one does it when the lease is over", lambda: heard(rows) == ["a"])
        os.kill(pid, signal.SIGCONT)
        app.actor(Chores, "canary").begin("b")
        shared.until("it woke, and works on", lambda: heard(rows, "canary") == ["b"])
    assert effects() == ["a-1", "a-2"]
    assert (heard(rows), letters(rows)) == (["a"], [])


def test_leases_are_renewed_until_the_last_function_has_returned_at_a_stop(app: Akter, rows: Rows, shared: Any) -> None:
    held = Held("a", says("A"))
    app.actor(Chores, "c").begin("a")
    one = chores.runner(app).start()
    shared.until("it runs", lambda: len(held.attempts) == 1)
    stopping = threading.Thread(target=lambda: one.stop(grace=100.0))
    stopping.start()
    (until,) = rows("SELECT due_at_ms FROM {akter}.actor_outbox")
    with chores.runner(app):
        grown = "SELECT due_at_ms > :until + 4000 FROM {akter}.actor_outbox"
        shared.until("its lease grows past where it would have ended", lambda: rows(grown, until=until) == [True])
        assert stopping.is_alive()
        held.may_end.set()
        stopping.join(60)
        shared.until("it is told", lambda: heard(rows) == ["A"])
    assert [attempt.number for attempt in held.attempts] == [1]


def test_renewals_that_are_refused_end_the_attempt_here_and_the_runner_works_on(app: Akter, rows: Rows, shared: Any) -> None:
    rows(
        """CREATE FUNCTION public.no_renewal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF OLD.running AND NEW.running AND OLD.attempts = NEW.attempts THEN RAISE EXCEPTION 'planted'; END IF;
        RETURN NEW; END $$"""
    )
    rows("CREATE TRIGGER no_renewal BEFORE UPDATE ON {akter}.actor_outbox FOR EACH ROW EXECUTE FUNCTION public.no_renewal()")
    held = Held("a", lambda attempt: f"A{attempt.number}")
    app.actor(Chores, "c").begin("a")
    with chores.runner(app) as one:
        shared.until("it runs", lambda: len(held.attempts) == 1)
        shared.until("it is told when its lease is over", lambda: held.attempts[0].cancelled.is_set())
        rows("DROP TRIGGER no_renewal ON {akter}.actor_outbox")
        held.may_end.set()
        shared.until("one result is told", lambda: len(heard(rows)) == 1)
        app.actor(Chores, "canary").begin("b")
        shared.until("it works on", lambda: heard(rows, "canary") == ["b"])
        assert not one.failed
    assert letters(rows) == []


def test_one_statement_renews_the_leases_of_all_that_runs(app: Akter, shared: Any) -> None:
    one = chores.runner(app, cancel_check=0.5)
    assert one.jobs is not None
    renewed, renew = list[int](), one.jobs.attempts._renew

    def counted(runs: Sequence[Run]) -> dict[tuple[int, int, str], bool]:
        renewed.append(len(runs))
        return renew(runs)

    one.jobs.attempts._renew = counted
    held = Held("a", says("A"))
    for number in range(20):
        app.actor(Chores, f"c{number}").begin("a")
    with one:
        shared.until("all run", lambda: len(held.attempts) == 20)
        shared.until("one renewal is of all of them", lambda: 20 in renewed)
        held.may_end.set()


def test_a_job_that_kills_its_own_process_costs_its_neighbours_nothing(app: Akter, rows: Rows, shared: Any, effects: Any) -> None:
    app.actor(Chores, "poison").begin("poison", effects.path, job="apart")
    held = Held("n", says("N"))
    for number in range(3):
        app.actor(Chores, f"n{number}").begin("n")
    with chores.runner(app):
        dead = [("ChildFailed: its process ended with exit code 137", 3, True)]
        shared.until("the poison is given up", lambda: letters(rows) == dead, 180)
        held.may_end.set()
        shared.until("the others are told", lambda: [heard(rows, f"n{number}") for number in range(3)] == [["N"]] * 3)
    assert effects() == ["poison-1", "poison-2", "poison-3"]
    assert [attempt.number for attempt in held.attempts] == [1, 1, 1]


def fails(_: Attempt) -> str:
    raise ConnectionError("lost")


@pytest.mark.parametrize("end", ["fails", "dies"])
def test_a_key_given_to_another_job_meanwhile_keeps_neither_from_its_end(
    app: Akter, rows: Rows, shared: Any, akter_database: str, akter_schema: str, end: str
) -> None:
    chore = app.actor(Chores, "c")
    held = Held("a", fails)
    chore.begin("a", key="daily")
    if end == "dies":
        with child(chores.serve, akter_database, akter_schema, stop_at="before_execute") as killed:
            killed.wait_reached()
            killed.kill()
        chore.begin("b", key="daily")
    with chores.runner(app):
        if end == "fails":
            shared.until("it runs", lambda: len(held.attempts) == 1)
            chore.begin("b", key="daily")
            held.may_end.set()
        shared.until("both are told", lambda: sorted(heard(rows)) == ["b", "cancelled: unknown"])
        chore.begin("c", key="daily")
        shared.until("the key is free", lambda: "c" in heard(rows))
    assert (rows("SELECT count(*) FROM {akter}.actor_outbox"), letters(rows)) == ([0], [])


def cyclic() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


NASTY: dict[str, Callable[[], BaseException]] = {
    "with arguments by name only": lambda: chores.Unmade(code=7),
    "caused by itself": cyclic,
    "a thousand in one": lambda: ExceptionGroup("many", [ValueError(str(number)) for number in range(1000)]),
    "RecursionError": lambda: RecursionError("too deep"),
    "MemoryError": MemoryError,
    "StopIteration": lambda: StopIteration(1),
    "GeneratorExit": GeneratorExit,
    "SystemExit(0)": lambda: SystemExit(0),
    "of a class made on the spot": lambda: type("Local", (BaseException,), {})("here"),
    "bytes that are no text": lambda: OSError(2, "none", os.fsdecode(b"/tmp/\xff\xfe")),
}


@pytest.mark.parametrize("make", NASTY.values(), ids=NASTY)
def test_whatever_is_raised_ends_as_a_readable_dead_letter_and_the_runner_works_on(
    app: Akter, rows: Rows, shared: Any, make: Callable[[], BaseException]
) -> None:
    def nasty(_: Attempt) -> str:
        raise make()

    chores.on["nasty"] = nasty
    app.actor(Chores, "c").begin("nasty")
    with chores.runner(app):
        shared.until("it is given up", lambda: len(letters(rows)) == 1)
        app.actor(Chores, "canary").begin("b")
        shared.until("others run", lambda: heard(rows, "canary") == ["b"])
    ((cause, attempts, ambiguous),) = letters(rows)
    assert cause.startswith(type(make()).__name__)
    assert (attempts, ambiguous, len(cause) <= 2000) == (3, True, True)


def test_what_is_raised_in_a_process_of_its_own_ends_as_readably(app: Akter, rows: Rows, shared: Any) -> None:
    for what in ("unmade", "nul", "huge"):
        app.actor(Chores, what).begin(what, job="apart")
    with chores.runner(app):
        shared.until("all are given up", lambda: len(letters(rows)) == 3, 300)
    causes = [(cause[:40], attempts, ambiguous) for cause, attempts, ambiguous in letters(rows)]
    assert sorted(causes) == [
        ("ChildFailed: Unmade: code 7", 3, True),
        ("ChildFailed: ValueError: a\\0b", 3, True),
        ("ChildFailed: ValueError: " + "x" * 15, 3, True),
    ]


@pytest.mark.parametrize("attempts", [0, 9, 60, 98])
def test_the_wait_before_the_next_attempt_never_overflows_its_cap(app: Akter, rows: Rows, shared: Any, attempts: int) -> None:
    chores.on["a"] = fails
    app.actor(Chores, "c").begin("a", job="often")
    rows("UPDATE {akter}.actor_outbox SET attempts = :attempts", attempts=attempts)
    one = chores.runner(app)
    one.drain()
    ((tried, running, wait),) = rows(
        """SELECT attempts, running, due_at_ms - (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000) + clock_offset_ms
        FROM {akter}.actor_deployment) FROM {akter}.actor_outbox"""
    )
    assert (tried, running) == (attempts + 1, False)
    assert wait <= (1_000 if attempts == 0 else 60_000)
    one.stop()


def test_when_every_thread_is_in_a_function_past_its_limit_the_runner_has_failed(app: Akter, rows: Rows, shared: Any) -> None:
    held = Held("a", says("A"))
    for number in range(2):
        app.actor(Chores, f"c{number}").begin("a", job="brief")
    with chores.runner(app, lanes={"jobs": 2}) as one:  # type: ignore[arg-type]
        shared.until("both are given up", lambda: letters(rows) == [("it took longer than its time limit", 1, True)] * 2)
        shared.until("it says so", lambda: one.failed)
        assert one.overdue == 2
        held.may_end.set()
        shared.until("it has threads again", lambda: not one.failed and one.overdue == 0)
        app.actor(Chores, "canary").begin("b")
        shared.until("it works on", lambda: heard(rows, "canary") == ["b"])
    assert letters(rows) == [("it took longer than its time limit", 1, True)] * 2


def test_a_pool_too_small_for_a_runner_with_jobs_is_refused_with_the_numbers(akter_database: str, akter_schema: str) -> None:
    for size in (4, 5):
        engine = sqlalchemy.create_engine(akter_database, pool_size=size, max_overflow=0)
        app = Akter(engine, actors=[Chores], schema=akter_schema)
        if size == 4:
            with pytest.raises(ConfigurationError, match=r"holds 4 connections, and a runner needs 5 .*two for its jobs"):
                chores.runner(app)
        else:
            chores.runner(app).stop()
        app.close()
        engine.dispose()


@pytest.mark.parametrize("job", ["do", "brief"], ids=["within its limit", "past its limit"])
def test_a_job_that_sleeps_for_an_hour_does_not_hold_the_end(
    app: Akter, rows: Rows, shared: Any, effects: Any, akter_database: str, akter_schema: str, job: str
) -> None:
    id = app.actor(Chores, "c").begin("endless", effects.path, job=job)
    environment = {**os.environ, "AKTER_DATABASE_URL": akter_database, "AKTER_SCHEMA": akter_schema}
    command = [sys.executable, "-m", "akter", "run", "chores:app", "--grace", "0.5"]
    where: Any = {"cwd": Path(__file__).parent, "env": environment}
    with subprocess.Popen(command, **where, stderr=subprocess.PIPE, text=True) as running:
        shared.until("it sleeps", lambda: effects() == ["endless-1"])
        if job == "brief":
            shared.until("it is given up", lambda: len(letters(rows)) == 1)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
        assert running.returncode == 75, said
    assert id in said
    left = rows("SELECT attempts, running, ambiguous FROM {akter}.actor_outbox")
    assert left == ([(1, True, True)] if job == "do" else [])
