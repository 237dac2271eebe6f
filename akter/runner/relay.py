"""The relay of one runner: claims what is due for every family with free seats, and starts it at once.

A pass runs under a lock, so every row that a claim returns reaches a thread that settles or releases it. Polling is what makes it
correct; wake-ups make it quick. A crash leaves the claim until its lease ends, then any runner delivers again, and the receiver's
receipt makes that harmless.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import chain

from sqlalchemy import Engine

from akter.definition import Definition
from akter.errors import AkterError, Unavailable
from akter.runner.grouping import Unit, plan
from akter.runner.intent import Deliverer
from akter.runner.lane import PATIENCE, Lane
from akter.runner.message import Delivery, read
from akter.runner.settings import Settings
from akter.runner.settler import about
from akter.store import claim, failure, plans
from akter.store.claim import Claimed
from akter.store.flight import Line, Lost, StatementFailed
from akter.store.wire import Statements, Wire

logger = logging.getLogger("akter.relay")

DRAIN_ROUNDS = 100
"""Rounds after which a drain whose deliveries keep asking for more is taken for a loop."""

_SECONDS = 30.0
_LONG = 2.0
"""Seconds after which a thread gives back what it has not begun: its row's lease runs, and others may have time."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did. `quiet`: nothing was held when it started. `backlog`: there may be more to claim."""

    claimed: int = 0
    backlog: bool = False
    quiet: bool = True


class Relay:
    """Passes over the outbox; `lease` says the seconds that a claimed row is this runner's, `actors` whom it delivers for."""

    def __init__(
        self,
        engine: Engine,
        statements: Statements,
        actors: Mapping[str, Definition],
        deliverer: Deliverer,
        lane: Lane,
        settings: Settings,
        lease: Callable[[], float],
    ) -> None:
        self._engine, self._statements, self._actors = engine, statements, actors
        self._deliverer, self._settler, self._held = deliverer, deliverer.settler, deliverer.held
        self.lane, self._settings, self._lease = lane, settings, lease
        self._lock, self._stopping = threading.Lock(), False
        self._first = 0
        self._alike = settings.lanes.get("intents", 0)

    def wait(self) -> float:
        """Do one pass, and say how long to wait for the next; what the relay's loop runs."""
        done = self.run_pass()
        if done.backlog and self.lane.free() > 0:
            return 0.0
        if done.backlog and self.lane.gathering:
            return PATIENCE
        return self._settings.poll * random.uniform(0.9, 1.1)

    def run_pass(self) -> Pass:
        """Claim what is due, as far as there are free seats, and start it."""
        with self._lock:
            lane = self.lane
            if not lane.seats:
                return Pass()
            quiet = lane.wait_idle(0.0)
            free = min(lane.free(), self._settings.pass_limit)
            if self._stopping or free <= 0:
                # Whoever frees a seat must look again: what woke this pass may be due.
                lane.more = not self._stopping
                return Pass(backlog=lane.more, quiet=quiet)
            sent, lease, left = time.monotonic(), self._lease(), False
            rows: list[Claimed] = []
            for first, last in self._ranges():
                if len(rows) == free:
                    left = True
                    break
                probe, each = lane.probe(free - len(rows), last - first + 1)
                taken, found, deepest = self._claim(first, last, free - len(rows), probe, each, lease)
                rows += taken
                left = left or found > len(taken) or deepest >= each
            backlog = lane.claimed(free, len(rows), left)
            self._start(rows, sent + lease, full=len(rows) == free)
            return Pass(len(rows), backlog, quiet)

    def _ranges(self) -> list[tuple[int, int]]:
        """The ranges, starting with another one in each pass, so that none always gets what capacity is left."""
        ranges = list(self._settings.ranges)
        at = self._first % len(ranges)
        self._first += 1
        return ranges[at:] + ranges[:at]

    def _claim(self, first: int, last: int, limit: int, probe: int, each: int, lease: float) -> tuple[list[Claimed], int, int]:
        values = {
            "first": first,
            "last": last,
            "served": list(self._actors),
            "limit": limit,
            "probe": probe,
            "each": each,
            "lease_ms": round(lease * 1000),
            "max_backoff_ms": round(self._settings.max_backoff * 1000),
        }
        with Wire(self._engine, self._statements) as wire:
            try:
                lines = [Line(self._statements.get(plans.generic_and_soon), {}), Line(self._statements.get(claim.intents), values)]
                answer = wire.fly(lines, _SECONDS)[1].rows
            except StatementFailed as failed:
                raise failure.of_statement(failed.error, "", self._statements.schema) from failed.error
            except Lost as lost:
                raise Unavailable(f"the database connection was lost: {lost}") from lost
        rows = [Claimed(*row) for row in answer if row[2] is not None]
        return sorted(rows, key=lambda row: row.scheduled_at_ms), answer[0][0], answer[0][1]

    def _start(self, rows: Sequence[Claimed], until: float, *, full: bool) -> None:
        ready: list[Delivery] = []
        unread: list[tuple[Claimed, BaseException]] = []
        for row in rows:
            hop = self._deliverer.hop(row)
            try:
                ready.append(Delivery(row, until, read(row, self._actors)))
                ready[-1].call.hop = hop
            except BaseException as problem:  # noqa: BLE001 - a row that cannot be read must not keep the others from their threads
                hop.retried(problem)
                unread.append((row, problem))
        for delivery in self._held.running(ready):
            # Its lease is over, and its handler has not returned: another try would take another thread from the others.
            ready.remove(delivery)
            delivery.call.hop.released()
            logger.warning("relay.still_running", extra=about(delivery.row))
        self._held.add(ready)
        if self._stopping:
            self._give_back(ready)
            return
        pace, most = self._deliverer.pace, self._settings.group
        units = plan(ready, pace, most)
        alike = most > 1 and not unread and all(pace.may_share(delivery.call.command) for delivery in ready)
        # Once others were mixed in, a few are no proof: most of a full claim would find no thread and be given back.
        self._alike = self._alike + len(ready) if alike else 0
        self.lane.sharing = full and self._alike >= self.lane.seats
        if unread:
            self._run(len(unread), partial(self._refuse, unread), [])
        room = max(0, self.lane.idle_threads())
        for unit in units[:room]:
            deliveries = list(chain.from_iterable(unit))
            self._run(len(deliveries), partial(self._work, unit), deliveries)
        # Rows that were expected to share, and do not, would wait for a thread: others may have one.
        self._give_back(list(chain.from_iterable(chain.from_iterable(units[room:]))))

    def _run(self, rows: int, work: Callable[[], None], deliveries: Sequence[Delivery]) -> None:
        try:
            self.lane.start(rows, work)
        except RuntimeError:
            # The lane is closed, or no thread can be had.
            self._give_back(deliveries)

    def _refuse(self, unread: Sequence[tuple[Claimed, BaseException]]) -> None:
        try:
            self._settler.wait(unread)
        finally:
            self.lane.leave(len(unread))

    def _work(self, unit: Unit) -> None:
        """Deliver batch after batch; those that must run alone come next."""
        end, waiting = time.monotonic() + _LONG, deque(unit)
        mine = set(chain.from_iterable(unit))
        try:
            while waiting:
                batch = waiting.popleft()
                again = self._deliverer.deliver(batch)
                self._held.pause(again)
                settled = set(batch).difference(again)
                self._let_go(settled)
                mine -= settled
                kept = self._spread(again)
                mine -= set(again).difference(kept)
                waiting.extendleft([delivery] for delivery in reversed(kept))
                if self._stopping or time.monotonic() > end:
                    break
        finally:
            self._give_back(list(mine))
            self._let_go(mine)

    def _let_go(self, deliveries: Set[Delivery]) -> None:
        self._held.forget(deliveries)
        self.lane.leave(len(deliveries))

    def _spread(self, again: Sequence[Delivery]) -> list[Delivery]:
        """Let idle threads take their part of what must run alone; returns what is left to this one."""
        parts = 1 + max(0, min(self.lane.idle_threads(), len(again) - 1))
        for part in range(1, parts):
            given = again[part::parts]
            self._run(len(given), partial(self._work, [[delivery] for delivery in given]), given)
            self.lane.leave(len(given))
        return list(again[::parts])

    def _give_back(self, deliveries: Sequence[Delivery] | None, *, begun: bool = False) -> None:
        waiting = self._held.give_back(deliveries)
        for delivery in waiting:
            delivery.call.hop.released()
        try:
            released = self._settler.release([delivery.row for delivery in waiting], begun=begun)
        except AkterError as problem:
            logger.warning("relay.release_failed", extra={"akter_rows": len(waiting), "akter_reason": str(problem)[:500]})
        else:
            self._settler.counts.add(released=released)

    def drain(self, seconds: float = 300.0) -> None:
        """Deliver until nothing is due and nothing runs; raises `AkterError` when deliveries keep asking for more without end."""
        end, rounds = time.monotonic() + seconds, 0
        while rounds < DRAIN_ROUNDS:
            if self._stopping:
                raise AkterError("this Runner was stopped, and delivers nothing more")
            done = self.run_pass()
            if done.claimed == 0 and done.quiet and not done.backlog:
                return
            if done.claimed and not done.backlog:
                rounds += 1
            wait = self.lane.wait_free if done.backlog else self.lane.wait_idle
            if not wait(end - time.monotonic()):
                raise AkterError(f"the outbox did not drain within {seconds} seconds; {self.lane.held} messages still run")
        raise AkterError("the outbox does not settle: messages keep asking for messages that are due at once")

    def stop_claiming(self, seconds: float) -> None:
        """Claim nothing more, and give back what was claimed but not begun.

        Waits at most `seconds` for a pass that is under way; what that one claims is given back by itself.
        """
        self._stopping = True
        if self._lock.acquire(timeout=max(0.0, seconds)):
            self._lock.release()
        self._give_back(None)

    def abandon(self) -> None:
        """Claim nothing more, and give back all that is held; what still runs is rolled back by the end of the process."""
        self._stopping = True
        self._held.pause()
        self._give_back(None, begun=True)

    def held(self) -> list[str]:
        """The ids of the messages this runner holds."""
        return self._held.ids()

    def close(self) -> None:
        """End the lane's threads when what they do is done."""
        self.lane.close()
