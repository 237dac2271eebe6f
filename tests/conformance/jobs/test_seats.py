"""A seat is for a function that runs: how one ended is written while the seat has the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from collected import garbage
from sqlalchemy import Engine
from works import LEASE, Node, Shop, do, eventually, in_thread, provider

from akter import Actor, Job, command

Make = Callable[..., Node]


@contextmanager
def _unwritten(one: Node, engine: Engine, schema: str, beside: Any) -> Iterator[None]:
    """Job `a` has ended, and its row is locked, so that how it ended cannot be written, nor what ends after it."""
    let_go = provider.hold("a")
    one.app.actor(Shop, "a").start("a", job="bare")
    eventually("it runs", lambda: provider.now == 1)
    with engine.begin() as rival:
        rival.exec_driver_sql(f'SELECT 1 FROM "{schema}".actor_outbox FOR UPDATE')
        let_go.set()
        beside.until_waiting()
        yield


def test_as_many_jobs_as_there_are_seats_may_wait_to_be_written_while_others_run(
    node: Make, other_engine: Engine, akter_schema: str, beside: Any
) -> None:
    one = node(started=True, lanes={"jobs": 2})
    with _unwritten(one, other_engine, akter_schema, beside):
        assert (one.runner.jobs.lane._rows, one.runner.jobs.lane.held) == (0, 1)
        for name in ("b", "c", "d"):
            one.app.actor(Shop, name).start(name, job="bare")
        eventually("those ran", lambda: one.runner.jobs.lane.held == 4 and provider.now == 0)
        for name in ("e", "f"):
            one.app.actor(Shop, name).start(name, job="bare")
        one.runner.relay.run_pass()
        assert sorted(provider.calls) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    eventually("all are written", lambda: beside.count("actor_outbox") == 0)
    assert sorted(provider.calls) == [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1), ("f", 1)]


def test_a_drain_waits_until_it_is_written_how_a_job_ended(node: Make, other_engine: Engine, akter_schema: str, beside: Any) -> None:
    one = node(started=True, lanes={"jobs": 2})
    with _unwritten(one, other_engine, akter_schema, beside):
        assert not one.runner.relay.wait_idle(0.0)
        assert one.runner.jobs.lane.held == 1
    one.runner.drain()
    assert one.runner.jobs.lane.held == 0


def test_a_stop_says_that_the_end_of_a_job_is_not_written_yet(node: Make, other_engine: Engine, akter_schema: str, beside: Any) -> None:
    one = node(started=True, lanes={"jobs": 2})
    with _unwritten(one, other_engine, akter_schema, beside):
        report = one.runner.stop(grace=0.1)
        assert not report.clean
        assert len(report.left) == 1
    eventually("it is written all the same", lambda: one.runner.jobs.lane.held == 0)


def test_nothing_is_idle_while_an_end_waits_to_be_written(node: Make) -> None:
    one = node()
    one.runner.jobs.lane.hold(1)
    assert not one.runner.relay.wait_idle(0.0)
    one.runner.jobs.lane.written(1)
    assert one.runner.relay.wait_idle(0.0)


def test_a_stop_waits_for_ends_that_no_thread_of_the_lane_writes(node: Make) -> None:
    one = node(started=True, lanes={"jobs": 2})
    lane, reports = one.runner.jobs.lane, list[Any]()
    # As what a stalled thread's ends are, which the reporter's own thread takes over.
    lane.hold(2)
    stopping = in_thread(lambda: reports.append(one.runner.stop(grace=30)))
    eventually("it claims no more", lambda: one.runner.relay._stopping)
    assert not lane.wait_for_the_rest(0.3)
    assert not reports
    lane.written(2)
    stopping.join(30)
    assert reports[0].clean


class Quiet(Actor):
    """Is told nothing of its jobs, of which two may run."""

    pair = Job(do, timeout=100.0, lease=LEASE.total_seconds(), concurrency=2)

    @command
    def start(self, names: list[str]) -> None:
        for name in names:
            self.enqueue(self.pair, name)


def _full(one: Node, beside: Any) -> list[threading.Event]:
    """Two of a group run, which is its limit, and the third waits."""
    held = [provider.hold("a"), provider.hold("b")]
    one.app.actor(Quiet, "q").start(["a", "b", "c"])
    eventually("two run", lambda: provider.now == 2)
    eventually("the third waits", lambda: beside("SELECT count(*) FROM {akter}.actor_outbox WHERE waiting") == [(1,)])
    return held


def test_a_place_in_a_full_group_is_looked_for_at_once_and_among_jobs_alone(node: Make, beside: Any) -> None:
    one = node(Quiet, started=True, lanes={"jobs": 4})
    held = _full(one, beside)
    looks: list[tuple[tuple[str, ...], int, int]] = []
    claim = one.runner.relay._claim

    def seen(shares: Any, first: int, last: int, *how: bool) -> float:
        looks.append((tuple(share.family.lane.family for share in shares), first, last))
        return claim(shares, first, last, *how)

    one.runner.relay._claim = seen  # type: ignore[method-assign]
    held[0].set()
    eventually("the third ran", lambda: ("c", 1) in provider.calls)
    assert looks[0] == (("jobs",), -128, 127)
    held[1].set()


def test_a_place_in_a_full_group_is_told_to_others_where_no_seat_is_free(node: Make, beside: Any) -> None:
    one, other = node(Quiet, started=True, lanes={"jobs": 2}), node(Quiet, lanes={"jobs": 2})
    held = _full(one, beside)
    told = threading.Event()
    one.app.wakes.add(told.set)
    one.runner.jobs.lane.hold(4)
    held[0].set()
    assert told.wait(30)
    other.runner.drain()
    assert ("c", 1) in provider.calls
    one.runner.jobs.lane.written(4)
    held[1].set()
    eventually("all is written", lambda: beside.count("actor_outbox") == 0)


def test_a_job_leaves_nothing_for_the_collector_of_garbage(node: Make, beside: Any) -> None:
    one = node(started=True)

    def work() -> None:
        for name in "abc":
            one.app.actor(Shop, name).start(name, job="bare")
        eventually("they are written", lambda: beside.count("actor_outbox") == 0)

    work()
    assert garbage(work) == []
