"""The family `intents`: claimed messages, delivered in the lane's threads, alone or several in one transaction."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

from akter.definition import Definition
from akter.errors import AkterError, Unavailable
from akter.named import Named
from akter.runner.ahead import Ahead
from akter.runner.family import Probe, Taken, leased, taken_as, waits
from akter.runner.grouping import Unit, plan
from akter.runner.intent import Deliverer
from akter.runner.lane import Lane, Work
from akter.runner.message import Delivery, read
from akter.runner.settings import Settings
from akter.runner.settler import about
from akter.runner.tick import Ticks
from akter.store import claim
from akter.store.claim import Claimed
from akter.store.flight import Line, Row
from akter.store.probing import KEY
from akter.store.rows import parameters
from akter.store.wire import Statements, Wire

logger = logging.getLogger("akter.relay")

_LONG = 2.0
"""Seconds after which a thread gives back what it has not begun: its row's lease runs, and others may have time."""


class Intents:
    """Delivers messages for `actors`; `lease` says the seconds that a claimed row is this runner's."""

    durable = False

    def __init__(
        self,
        statements: Statements,
        actors: Mapping[str, Definition],
        deliverer: Deliverer,
        lane: Lane,
        settings: Settings,
        lease: float,
    ) -> None:
        self._statements, self._actors = statements, actors
        self._deliverer, self._settler, self._held = deliverer, deliverer.settler, deliverer.held
        self.lane, self._settings, self._lease = lane, settings, lease
        self._ticks = Ticks(self._settler, actors, round(settings.skip_after * 1000))
        self._stopping = False
        self._alike = settings.lanes.get("intents", 0)

    def claim(self, probe: Probe) -> Sequence[Line]:
        """The statement that claims messages."""
        values = leased(probe, self._lease, self._settings.max_backoff)
        return [Line(self._statements.get(claim.intents), {**values, "served": list(self._actors)})]

    def serves(self, target_type: str) -> bool:
        """Whether messages for this type are delivered here."""
        return target_type in self._actors

    def claim_named(self, rows: Sequence[Named], ticket: str | None) -> Line:
        """The statement that claims these messages and no others, and returns what it took; `ticket`: an admission comes right behind."""
        values: dict[str, Any] = {
            **parameters("named_", [{name: getattr(row, name) for name in KEY} for row in rows], True),
            **{"limit": len(rows), "served": list(self._actors)},
            **waits(self._lease, self._settings.max_backoff),
        }
        if ticket is not None:
            values["ticket"] = ticket
        return Line(self._statements.get(claim.named, ticket is not None), values)

    def admission(self, message: Named, ticket: str) -> Sequence[Line]:
        """What admits the turn of a message whose claim has this ticket, if that can be known before it is claimed."""
        if message.target_key is None:
            return ()
        return self._deliverer.admission(self._actors[message.target_type], message, ticket)

    def admitted(self, message: Named, wire: Wire) -> Ahead:
        """That admission, under way on a connection."""
        return Ahead(wire, self._actors[message.target_type].name, message.target_key)

    def taken(self, answers: Sequence[Sequence[Row]], probe: Probe, wire: Wire) -> Taken:
        """What the statement took."""
        (answer,) = answers
        return taken_as(Claimed, answer)

    def start(self, rows: Sequence[Claimed], sent: float, *, full: bool) -> None:
        """Deliver claimed rows; `full`: the claim took as many as it asked for."""
        self._deliver(rows, sent, full)

    def start_here(self, rows: Sequence[Claimed], sent: float, ahead: Ahead | None) -> Work | None:
        """Deliver claimed rows, some of them in this thread, by what is returned; `ahead` is the one row's admission."""
        with ExitStack() as stack:
            if ahead is not None:
                stack.callback(ahead.close)
            work = self._deliver(rows, sent, full=False, here=True, ahead=ahead)
            if work is None or ahead is None:
                return work
            stack.pop_all()
        return partial(self._with, ahead, work)

    def _with(self, ahead: Ahead, work: Work) -> None:
        try:
            work()
        finally:
            ahead.close()

    def _deliver(self, rows: Sequence[Claimed], sent: float, full: bool, here: bool = False, ahead: Ahead | None = None) -> Work | None:
        until = sent + self._lease
        rows, aside = self._ticks.split(sorted(rows, key=lambda row: row.scheduled_at_ms))
        ready: list[Delivery] = []
        unread: list[tuple[Claimed, BaseException]] = []
        for row in rows:
            hop = self._deliverer.hop(row)
            try:
                ready.append(Delivery(row, until, read(row, self._actors), ahead))
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
            return None
        pace, most = self._deliverer.pace, self._settings.group
        units = plan(ready, pace, most)
        alike = most > 1 and not unread and all(pace.may_share(delivery.call.command) for delivery in ready)
        # Once others were mixed in, a few are no proof: most of a full claim would find no thread and be given back.
        self._alike = self._alike + len(ready) if alike else 0
        self.lane.sharing = full and self._alike >= self.lane.seats
        if unread:
            self._run(len(unread), partial(self._settle, len(unread), partial(self._settler.wait, unread)), [])
        if aside:
            self._run(len(aside), partial(self._settle, len(aside), partial(self._ticks.set_aside, aside)), [])
        room = max(0, self.lane.idle_threads())
        mine = units.pop(0) if here and units and room else None
        room -= mine is not None
        for unit in units[:room]:
            deliveries = list(chain.from_iterable(unit))
            self._run(len(deliveries), partial(self._work, unit), deliveries)
        # Rows that were expected to share, and do not, would wait for a thread: others may have one.
        self._give_back(list(chain.from_iterable(chain.from_iterable(units[room:]))))
        return None if mine is None else self.lane.start_here(sum(map(len, mine)), partial(self._work, mine))

    def _run(self, rows: int, work: Callable[[], None], deliveries: Sequence[Delivery]) -> None:
        try:
            self.lane.start(rows, work)
        except RuntimeError:
            # The lane is closed, or no thread can be had.
            self._give_back(deliveries)

    def _settle(self, rows: int, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self.lane.leave(rows)

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

    def stop(self) -> None:
        """Begin nothing more, and give back what was claimed but not begun."""
        self._stopping = True
        self._give_back(None)

    def abandon(self) -> None:
        """Give back all that is held; what still runs is rolled back by the end of the process."""
        self._stopping = True
        # Due at once, such a message would take a thread from the next runner, too, and from the one after that.
        late = self.overdue()
        self._settler.wait([(delivery.row, Unavailable("its handler did not return within its time limit")) for delivery in late])
        self._held.forget(late)
        self._held.pause()
        self._give_back(None, begun=True)

    def overdue(self) -> list[Delivery]:
        """The messages whose handlers are past their time limit."""
        return self._held.overdue()

    def about(self, late: Delivery) -> dict[str, Any]:
        """One of them, for a line of the log."""
        return about(late.row)

    def explain(self, late: Sequence[Delivery], why: str) -> bool:
        """Write on such messages why they are not delivered yet; returns whether that was written."""
        return self._settler.explain([delivery.row for delivery in late], why)

    def held(self) -> list[str]:
        """The ids of the messages this runner holds."""
        return self._held.ids()

    def close(self) -> None:
        """End the lane's threads when what they do is done."""
        self.lane.close()
