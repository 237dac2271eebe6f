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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from akter.errors import AkterError, Unavailable
from akter.runner.intent import Deliverer, Delivery
from akter.runner.lane import Lane
from akter.runner.settings import Settings
from akter.store import claim, failure
from akter.store.claim import Claimed
from akter.store.flight import Line, Lost, StatementFailed
from akter.store.wire import Statements, Wire

logger = logging.getLogger("akter.relay")

DRAIN_ROUNDS = 100
"""Rounds after which a drain whose deliveries keep asking for more is taken for a loop."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did. `quiet`: nothing was held when it started. `backlog`: due rows were left behind."""

    claimed: int = 0
    backlog: bool = False
    quiet: bool = True


class Relay:
    """Passes over the outbox; `lease` is the seconds that a claimed row is this runner's."""

    def __init__(
        self,
        engine: Any,
        statements: Statements,
        deliverer: Deliverer,
        served: Callable[[], Sequence[str]],
        settings: Settings,
        lease: float,
        wake: Callable[[], None],
    ) -> None:
        self._engine, self._statements, self._deliverer, self._served = engine, statements, deliverer, served
        self._settings, self._lease, self._wake = settings, lease, wake
        self.lanes: Mapping[str, Lane] = {family: Lane(family, seats, wake) for family, seats in settings.lanes.items()}
        self._lock, self._stopping = threading.Lock(), False
        self._first = 0
        self._held: dict[str, Delivery] = {}
        self._held_lock = threading.Lock()

    def wait(self) -> float:
        """Do one pass, and say how long to wait for the next; what the relay's loop runs."""
        done = self.run_pass()
        if done.claimed and done.backlog and any(lane.free() > 0 for lane in self.lanes.values()):
            return 0.0
        return self._settings.poll * random.uniform(0.9, 1.1)

    def run_pass(self) -> Pass:
        """Claim what is due, as far as there are free seats, and start it."""
        with self._lock:
            lane = self.lanes.get("intents")
            if self._stopping or lane is None:
                return Pass()
            quiet = all(one.held == 0 for one in self.lanes.values())
            free = min(lane.free(), self._settings.pass_limit)
            if free <= 0:
                return Pass(backlog=lane.more, quiet=quiet)
            sent = time.monotonic()
            rows: list[Claimed] = []
            found = 0
            for first, last in self._ranges():
                if len(rows) < free:
                    taken, seen = self._claim(first, last, free - len(rows), lane.probe(free))
                    rows += taken
                    found += seen
            lane.claimed(free, len(rows), found)
            self._start(lane, rows, sent + self._lease)
            return Pass(len(rows), any(one.more for one in self.lanes.values()), quiet)

    def _ranges(self) -> list[tuple[int, int]]:
        """The ranges, starting with another one in each pass, so that none always gets what capacity is left."""
        ranges = list(self._settings.ranges)
        at = self._first % len(ranges)
        self._first += 1
        return ranges[at:] + ranges[:at]

    def _claim(self, first: int, last: int, limit: int, probe: int) -> tuple[list[Claimed], int]:
        values = {
            "first": first,
            "last": last,
            "served": list(self._served()),
            "limit": limit,
            "probe": probe,
            "lease_ms": int(self._lease * 1000),
            "max_backoff_ms": int(self._settings.max_backoff * 1000),
        }
        with Wire(self._engine, self._statements) as wire:
            try:
                answer = wire.fly([Line(self._statements.get(claim.intents), values)], 30.0)[0].rows
            except StatementFailed as failed:
                raise failure.of_statement(failed.error, "", self._statements.schema) from failed.error
            except Lost as lost:
                raise Unavailable(f"the database connection was lost: {lost}") from lost
        rows = [Claimed(*row) for row in answer if row[1] is not None]
        return rows, answer[0][0] if answer else 0

    def _start(self, lane: Lane, rows: Sequence[Claimed], until: float) -> None:
        ready: list[Delivery] = []
        for row in rows:
            delivery = self._deliverer.prepare(row, until)
            if delivery is not None:
                ready.append(delivery)
        with self._held_lock:
            self._held.update((delivery.call.id, delivery) for delivery in ready)
        for group in self._groups(ready):
            self._submit(lane, group)

    def _groups(self, ready: Sequence[Delivery]) -> list[list[Delivery]]:
        """Messages for different actors go together when their commands may; one message per actor and group."""
        groups: list[list[Delivery]] = []
        open_groups: deque[tuple[list[Delivery], set[Any]]] = deque()
        for delivery in ready:
            if self._settings.group == 1 or not self._deliverer.pace.may_share(delivery.call.command):
                groups.append([delivery])
                continue
            for group, actors in open_groups:
                if len(group) < self._settings.group and delivery.call.address not in actors:
                    group.append(delivery)
                    actors.add(delivery.call.address)
                    break
            else:
                fresh = [delivery]
                groups.append(fresh)
                open_groups.append((fresh, {delivery.call.address}))
        return groups

    def _submit(self, lane: Lane, group: list[Delivery]) -> None:
        def work() -> None:
            alone: list[Delivery] = []
            try:
                alone = self._deliverer.deliver(group)
            except Exception:
                logger.exception("relay.delivery_failed")
            finally:
                with self._held_lock:
                    for delivery in group:
                        if delivery not in alone:
                            self._held.pop(delivery.call.id, None)
                for delivery in alone:
                    delivery.begun = False
                    self._submit(lane, [delivery])

        try:
            lane.start(len(group), work)
        except RuntimeError:
            # The executor is closed: the runner stops, and what was not begun is given back.
            self._release(group)

    def drain(self, seconds: float = 300.0) -> None:
        """Deliver until nothing is due and nothing runs; raises `AkterError` when deliveries keep asking for more without end."""
        end, rounds = time.monotonic() + seconds, 0
        while rounds < DRAIN_ROUNDS:
            for lane in self.lanes.values():
                if not lane.wait_idle(end - time.monotonic()):
                    raise AkterError(f"the {lane.family} did not finish within {seconds} seconds")
            done = self.run_pass()
            if done.claimed == 0 and done.quiet and not done.backlog:
                return
            if done.claimed and not done.backlog:
                rounds += 1
            if time.monotonic() > end:
                raise AkterError(f"the outbox did not drain within {seconds} seconds")
        raise AkterError("the outbox does not settle: messages keep asking for messages that are due at once")

    def stop_claiming(self) -> int:
        """Claim nothing more, and give back what was claimed but not begun; returns how many rows that were."""
        with self._lock:
            self._stopping = True
        with self._held_lock:
            waiting = [delivery for delivery in self._held.values() if not delivery.begun]
        return self._release(waiting)

    def _release(self, waiting: Sequence[Delivery]) -> int:
        for delivery in waiting:
            # Its thread finds the lease over and drops it.
            delivery.until = 0.0
        with self._held_lock:
            for delivery in waiting:
                self._held.pop(delivery.call.id, None)
        try:
            return self._deliverer.release(waiting)
        except AkterError:
            logger.warning("relay.release_failed", exc_info=True)
            return 0

    def abandon(self) -> None:
        """Claim nothing more, and give back all that is held; what still runs is rolled back by the end of the process."""
        self._stopping = True
        with self._held_lock:
            held = list(self._held.values())
        for delivery in held:
            delivery.begun = False
        self._release(held)

    def held(self) -> list[str]:
        """The ids of the messages this runner holds."""
        with self._held_lock:
            return sorted(self._held)

    def close(self) -> None:
        """End the lanes' threads when what they do is done."""
        for lane in self.lanes.values():
            lane.close()
