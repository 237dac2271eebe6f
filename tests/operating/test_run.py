"""`akter run` as a process: how it starts, ends, and refuses."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from processes import Done, Started, until
from shop import Parcel

from akter.app import Akter
from akter.operating import Operator
from akter.testing import inspect

Run = Callable[..., Done]
Start = Callable[..., Started]
READY = "serves Crate, Parcel"


def moves(app: Akter, id: str) -> int:
    return int((inspect(app, app.actor(Parcel, id)).state or {"moves": 0})["moves"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_finishes_what_runs(app: Akter, start: Start, operator: Operator, number: int) -> None:
    app.send(app.actor(Parcel, "p").hold, 1.5)
    runner = start("run", "shop:app")
    runner.until_said("holding")
    runner.signal(number)
    assert runner.ended() == 0, runner.said
    assert moves(app, "p") == 1
    assert "stopped; 1 delivered" in runner.said
    assert operator.runners() == []


def test_a_second_signal_ends_the_wait_and_gives_back_what_runs(app: Akter, start: Start, operator: Operator) -> None:
    id = app.send(app.actor(Parcel, "p").hold, 3600.0)
    runner = start("run", "shop:app", "--grace", "3000")
    runner.until_said("holding")
    runner.signal(signal.SIGTERM)
    until(lambda: [one.stopping for one in operator.runners()] == [True])
    runner.signal(signal.SIGTERM)
    assert runner.ended() == 75
    assert f"still ran, and will run again: {id}" in runner.said
    assert operator.runners() == []
    (row,) = operator.waiting()
    assert (row.intent_id, row.due_in_ms <= 0) == (id, True)


def test_a_third_signal_ends_it_at_once(app: Akter, start: Start, akter_schema: str) -> None:
    app.send(app.actor(Parcel, "p").hold, 3600.0)
    runner = start("run", "shop:app", "--grace", "3000")
    runner.until_said("holding")
    with app.engine.connect() as beside, beside.begin():
        # Now even its farewell has to wait.
        beside.exec_driver_sql(f'LOCK TABLE "{akter_schema}".actor_runners, "{akter_schema}".actor_outbox IN EXCLUSIVE MODE')
        runner.signal(signal.SIGTERM)
        # Signals that come before the process looks count as one.
        time.sleep(1.0)
        runner.signal(signal.SIGTERM)
        time.sleep(0.3)
        runner.signal(signal.SIGTERM)
        assert runner.ended() == 75
    assert "still ran" not in runner.said, "what it says when it took the time to give back"


def test_a_terminal_that_closes_ends_it_as_a_signal_does(app: Akter, start: Start, operator: Operator) -> None:
    app.send(app.actor(Parcel, "p").hold, 1.5)
    ours, its = pty.openpty()
    runner = start(
        "run",
        "shop:app",
        how={"stdout": its, "stderr": its, "start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0)},
    )
    os.close(its)
    said = b""
    # With its end of line: without a buffer that is a second write, and the handler's own must not fail.
    while b"holding\r\n" not in said:
        said += os.read(ours, 1000)
    os.close(ours)
    # What it would say now fails.
    assert runner.ended() == 0
    assert moves(app, "p") == 1
    assert operator.runners() == []


def test_a_hang_up_counts_once_however_often_it_comes(app: Akter, start: Start, operator: Operator, tmp_path: Path) -> None:
    app.send(app.actor(Parcel, "p").hold_until, str(tmp_path / "go"))
    runner = start("run", "shop:app")
    runner.until_said("holding")
    runner.signal(signal.SIGHUP)
    until(lambda: [one.stopping for one in operator.runners()] == [True])
    runner.signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert runner.ended() == 0, runner.said
    assert moves(app, "p") == 1


def test_a_hang_up_that_was_ignored_stays_so(app: Akter, start: Start) -> None:
    runner = start("run", "shop:app", how={"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)})
    runner.until_said(READY)
    runner.signal(signal.SIGHUP)
    app.send(app.actor(Parcel, "p").move)
    until(lambda: moves(app, "p") == 1)
    runner.signal(signal.SIGTERM)
    assert runner.ended() == 0, runner.said


def test_a_handler_that_never_returns_does_not_hold_the_end(app: Akter, start: Start, operator: Operator) -> None:
    id = app.send(app.actor(Parcel, "p").hold, 3600.0)
    runner = start("run", "shop:app", "--grace", "0.5")
    runner.until_said("holding")
    runner.signal(signal.SIGTERM)
    assert runner.ended(15) == 75
    assert id in runner.said
    assert [row.due_in_ms <= 0 for row in operator.waiting()] == [True]


def test_when_every_thread_hangs_and_work_waits_the_process_ends_with_75_and_names_what_it_left(
    app: Akter, start: Start, operator: Operator
) -> None:
    ids = [app.send(app.actor(Parcel, f"p-{number}").hang) for number in range(2)]
    runner = start("run", "shop:app", "--lane", "intents=2")
    runner.until_said("relay.hung")
    assert runner.process.poll() is None, "nothing waits that another process could do"
    app.send(app.actor(Parcel, "q").move)
    assert runner.ended() == 75
    assert "work waits, and every thread of intents is past its time limit, so this process ends" in runner.said
    left = next(line for line in runner.said.splitlines() if "still ran, and will run again" in line)
    assert sorted(left.split(": ")[-1].split(", ")) == sorted(ids)
    assert sorted((row.target_id, row.reason) for row in operator.waiting()) == [
        ("p-0", "backoff"),
        ("p-1", "backoff"),
        ("q", "unknown type"),
    ]


def test_a_child_all_of_whose_threads_hang_is_started_again(app: Akter, start: Start) -> None:
    runner = start("run", "shop:app", "--lane", "intents=1", "--processes", "2", "--no-listen")
    runner.until_said(READY, times=2)
    for number in range(2):
        app.send(app.actor(Parcel, f"p-{number}").hang)
    runner.until_said("relay.hung", times=2)
    app.send(app.actor(Parcel, "q").move)
    until(lambda: moves(app, "q") == 1)
    assert "ended with exit code 75" in runner.said


def test_a_child_that_is_killed_is_started_again(app: Akter, start: Start, operator: Operator) -> None:
    runner = start("run", "shop:app", "--processes", "2")
    runner.until_said(READY, times=2)
    first, _ = psutil.Process(runner.process.pid).children()
    first.kill()
    runner.until_said(READY, times=3)
    assert f"runner process {first.pid} ended with signal SIGKILL" in runner.said
    app.send(app.actor(Parcel, "p").move)
    until(lambda: moves(app, "p") == 1)
    runner.signal(signal.SIGTERM)
    assert runner.ended() == 0, runner.said
    assert [one.label for one in operator.runners() if one.label.endswith(f":{first.pid}")] == [one.label for one in operator.runners()]


def test_a_terminals_interrupt_counts_once_for_each_child(app: Akter, start: Start) -> None:
    app.send(app.actor(Parcel, "p").hold, 2.0)
    runner = start("run", "shop:app", "--processes", "2")
    runner.until_said(READY, times=2)
    runner.until_said("holding")
    for process in (*psutil.Process(runner.process.pid).children(), runner.process):
        process.send_signal(signal.SIGINT)
    assert runner.ended() == 0, runner.said
    assert moves(app, "p") == 1


SUPERVISED = {"stdin": subprocess.PIPE}


def test_a_supervised_childs_own_signal_is_the_request_that_it_got(app: Akter, start: Start, operator: Operator, tmp_path: Path) -> None:
    app.send(app.actor(Parcel, "p").hold_until, str(tmp_path / "go"))
    child = start("run", "shop:app", how=SUPERVISED, AKTER_SUPERVISED="1")
    child.until_said("holding")
    child.ask(1)
    until(lambda: [one.stopping for one in operator.runners()] == [True])
    child.signal(signal.SIGINT)
    child.signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert child.ended() == 0, child.said
    assert moves(app, "p") == 1


def test_a_supervised_child_learns_from_its_supervisor_to_end_now(app: Akter, start: Start, operator: Operator) -> None:
    app.send(app.actor(Parcel, "p").hold, 3600.0)
    child = start("run", "shop:app", "--grace", "3000", how=SUPERVISED, AKTER_SUPERVISED="1")
    child.until_said("holding")
    child.signal(signal.SIGTERM)
    until(lambda: [one.stopping for one in operator.runners()] == [True])
    child.ask(2)
    assert child.ended() == 75
    assert "still ran, and will run again" in child.said


def test_signals_count_again_when_the_supervisor_is_gone(app: Akter, start: Start, operator: Operator) -> None:
    app.send(app.actor(Parcel, "p").hold, 3600.0)
    child = start("run", "shop:app", "--grace", "3000", how=SUPERVISED, AKTER_SUPERVISED="1")
    child.until_said("holding")
    assert child.process.stdin is not None
    child.process.stdin.close()
    until(lambda: [one.stopping for one in operator.runners()] == [True])
    child.signal(signal.SIGTERM)
    assert child.ended() == 75
    assert "still ran, and will run again" in child.said


def test_a_third_signal_ends_a_supervisor_and_its_children_at_once(app: Akter, start: Start, operator: Operator) -> None:
    app.send(app.actor(Parcel, "p").hold, 3600.0)
    runner = start("run", "shop:app", "--processes", "2", "--grace", "3000")
    runner.until_said(READY, times=2)
    runner.until_said("holding")
    children = psutil.Process(runner.process.pid).children()
    runner.signal(signal.SIGTERM)
    until(lambda: [one.stopping for one in operator.runners()] == [True])
    # Two different ones: of two that are the same, a process may see one.
    runner.signal(signal.SIGTERM)
    runner.signal(signal.SIGINT)
    assert runner.ended() == 75
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_children_end_when_their_supervisor_is_killed(start: Start) -> None:
    runner = start("run", "shop:app", "--processes", "2")
    runner.until_said(READY, times=2)
    children = psutil.Process(runner.process.pid).children()
    runner.process.kill()
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_a_child_that_keeps_dying_fails_the_command(start: Start) -> None:
    runner = start("run", "dying:app", "--processes", "2")
    assert runner.ended(90) == 3
    assert "it cannot be kept alive" in runner.said
    assert 6 <= runner.said.count("ended with exit code 3") <= 12


def test_children_that_are_called_wrongly_are_not_tried_again(start: Start) -> None:
    runner = start("run", "shop:gone", "--processes", "2")
    assert runner.ended() == 2
    assert "shop has no 'gone': there is app" in runner.said
    assert runner.said.count("ended with") == 1


def test_an_application_may_be_a_function(start: Start) -> None:
    runner = start("run", "shop:made")
    runner.until_said(READY)
    runner.signal(signal.SIGTERM)
    assert runner.ended() == 0


def test_what_was_imported_is_left_out_of_collections(app: Akter, start: Start) -> None:
    app.send(app.actor(Parcel, "p").weigh)
    runner = start("run", "shop:app")
    runner.until_said(" frozen")
    (line,) = [line for line in runner.said.splitlines() if line.endswith(" frozen")]
    assert int(line.split()[0]) > 10_000
    runner.signal(signal.SIGTERM)
    assert runner.ended() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shop",), "'shop' is not module:attribute, such as shop.actors:app"),
        (("nowhere:app",), "there is no module 'nowhere' here: run akter where your application is importable"),
        (("shop:nothing",), "shop:nothing is of type int, not an Akter"),
        (("shop:needy",), "shop:needy is a function with arguments: give one that takes none"),
        (("shop:app", "--lane", "intents"), "--lane 'intents' is not FAMILY=SEATS, such as intents=32"),
        (("shop:app", "--lane", "boats=3"), "there is no family 'boats'; the families are intents, jobs"),
        (("shop:app", "--processes", "0"), "0 is not in the range 1<=x<=64"),
    ],
)
def test_a_wrong_call_exits_with_2_and_the_remedy(akter: Run, arguments: tuple[str, ...], said: str) -> None:
    done = akter("run", *arguments)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert said in " ".join(done.err.split())


def test_the_url_of_the_command_line_is_for_an_application_that_names_none(
    start: Start, akter: Run, akter_database: str, environment: dict[str, str]
) -> None:
    runner = start("--url", akter_database, "run", "shop:app", AKTER_DATABASE_URL="postgresql://nowhere.invalid/db")
    runner.until_said(READY)
    runner.signal(signal.SIGTERM)
    assert runner.ended() == 0
    refused = akter("--url", "postgresql://localhost/other", "run", "fixed:app", FIXED_URL=akter_database)
    assert (refused.code, "another one than --url: leave out --url" in refused.err) == (2, True)
    refused = akter("--schema", "elsewhere", "run", "fixed:app", FIXED_URL=akter_database, AKTER_SCHEMA="")
    assert (refused.code, "leave out --schema" in refused.err) == (2, True)


def test_a_moved_clock_is_refused_unless_it_is_meant(akter: Run, start: Start, rows: Run) -> None:
    rows("UPDATE {akter}.actor_deployment SET clock_offset_ms = 1000")
    rows("INSERT INTO {akter}.actor_deployment (clock_offset_ms) SELECT 1000 ON CONFLICT DO NOTHING")
    refused = akter("run", "shop:app")
    assert (refused.code, "say --allow-test-clock" in refused.err) == (1, True)
    runner = start("run", "shop:app", "--allow-test-clock")
    runner.until_said(READY)


def test_a_thread_that_dies_ends_the_process_with_1(start: Start) -> None:
    runner = start("run", "broken:app")
    assert runner.ended() == 1
    assert "the thread akter-heartbeat died" in runner.said
    assert "runner.thread_died" in runner.said


def test_a_failing_handler_is_logged_with_its_identity_and_no_payload(app: Akter, start: Start) -> None:
    id = app.send(app.actor(Parcel, "p").fail)
    runner = start("run", "shop:app")
    runner.until_said("relay.retry")
    (line,) = [line for line in runner.said.splitlines() if " relay.retry " in line]
    assert "actor=Parcel/p" in line
    assert f"command_id={id}" in line


def test_signal_handlers_are_restored(app: Akter) -> None:
    from akter.commands.ending import asked_to_end

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with asked_to_end() as ending:
        os.kill(os.getpid(), signal.SIGTERM)
        assert ending.stop.wait(5)
    assert [signal.getsignal(number) for number in numbers] == before
