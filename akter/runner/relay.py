"""The relay of one runner: claims what is due for every family with free seats, in one flight, and lets each start it at once.

A pass runs under a lock, so every row that a claim returns reaches a thread that settles or releases it. Polling is what makes it
correct; wake-ups make it quick. A crash leaves the claim until its lease ends, then any runner takes the row again.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeAlias

from sqlalchemy import Engine

from akter.errors import AkterError
from akter.named import Gathered, Named
from akter.runner.ahead import Ahead
from akter.runner.family import Family, Messages, Probe
from akter.runner.floor import Floor
from akter.runner.lane import PATIENCE, Work
from akter.runner.passing import Pass, Share
from akter.runner.ranges import Ranges
from akter.runner.settings import Settings
from akter.runner.timers import Timers
from akter.store import plans, probing
from akter.store.backlog import KIND
from akter.store.claim import Claimed
from akter.store.flight import Line
from akter.store.probing import EVER
from akter.store.wire import Statements, Wire

DRAIN_ROUNDS = 100
"""Rounds after which a drain whose deliveries keep asking for more is taken for a loop."""

Afterwards: TypeAlias = "Callable[[Work], None]"
"""What is told what a loop's thread does once its pass is over."""

_SECONDS = 30.0
_NEVER = float("inf")
_tickets = itertools.count()


class Relay:
    """Passes over the outbox for some families."""

    def __init__(self, engine: Engine, statements: Statements, messages: Messages, families: Sequence[Family], settings: Settings) -> None:
        self._engine, self._statements, self._messages = engine, statements, messages
        self.families, self._settings = families, settings
        self.wanted, self._look_by = Gathered(), -_NEVER
        self._lock, self._stopping, self._first = threading.Lock(), False, True
        self._ranges, self._passes = Ranges(settings.ranges), 0
        self.timers, self._floor = Timers(settings.poll), Floor()

    def ask(self, rows: Sequence[Named] = ()) -> bool:
        """Let the next pass look for these messages, or for everything; returns whether there is something to look for here."""
        mine = self._mine(rows)
        if rows and not mine:
            return False
        self.wanted.add(mine)
        return True

    def _mine(self, rows: Sequence[Named]) -> list[Named]:
        return [row for row in rows if self._messages.serves(row.target_type)]

    def take(self, rows: Sequence[Named], afterwards: Afterwards | None = None) -> bool:
        """Claim named messages in the thread that heard of them, which saves the way to another one; returns whether that was all.

        It never waits for a pass that is under way. Otherwise, and when something goes wrong, the loop has to look. `afterwards` is told
        what that thread does next: it delivers them.
        """
        mine = self._mine(rows)
        try:
            return bool(rows) and (not mine or self._only_these(mine, afterwards, patient=False))
        except AkterError:
            return False

    def wait(self, afterwards: Afterwards | None = None) -> float:
        """Do one pass, and say how long to wait for the next; what the relay's loop runs.

        `afterwards` is told what the calling thread does next, if anything: it delivers what was claimed by name.
        """
        rows = self.wanted.take()
        if rows and self._only_these(rows, afterwards):
            return max(0.0, self._look_by - time.monotonic())
        if rows is not None and not self._due() and (not rows or self._messages.lane.more):
            # What is known to be left may be had now, for the messages that were named, too, they are a part of it.
            return min(self._after(self.run_pass(only=self._left())), max(0.0, self._look_by - time.monotonic()))
        self._look_by = -_NEVER
        return self._look()

    def _due(self) -> bool:
        """Whether it is time for a look at everything."""
        return self.timers.came() or time.monotonic() >= self._look_by

    def _left(self) -> list[Family]:
        """The families for which rows were left, most often for want of seats: there is no need to look at the others then."""
        return [family for family in self.families if family.lane.behind]

    def _only_these(self, rows: Sequence[Named], afterwards: Afterwards | None, *, patient: bool = True) -> bool:
        """Claim rows that were named; returns whether that was all there is to do now.

        It puts no look at everything off, and where more is known to be due than there are seats, the oldest comes first.
        """
        lane = self._messages.lane
        if lane.more or self._due() or not self._lock.acquire(blocking=patient):
            return False
        try:
            if self._stopping or len(rows) > min(lane.free(), lane.idle_threads()):
                return False
            sent = time.monotonic()
            try:
                claimed, ahead = self._claim_named(rows, alone=afterwards is not None and len(rows) == 1)
            except BaseException:
                self.wanted.add()
                raise
            if not claimed:
                return True
            if self._stopping:
                # A stop waits for this pass: nothing of it is begun.
                self._messages.stop()
            if afterwards is None or self._stopping:
                if ahead is not None:
                    ahead.close()
                self._messages.start(claimed, sent, full=False)
            elif (work := self._messages.start_here(claimed, sent, ahead)) is not None:
                afterwards(work)
        finally:
            self._lock.release()
        return True

    def _claim_named(self, rows: Sequence[Named], *, alone: bool) -> tuple[list[Claimed], Ahead | None]:
        """Claim rows that were named; one that this thread delivers `alone` is admitted in the same flight."""
        with ExitStack() as stack:
            wire = stack.enter_context(Wire(self._engine, self._statements))
            # Where several runners hear of everything, most find it taken; whoever did leaves the admission out until it takes something.
            ticket = str(next(_tickets))
            behind = self._messages.admission(rows[0], ticket) if alone and self._first and not wire.pooled else ()
            claim = self._messages.claim_named(rows, ticket if behind else None)
            lines = [Line(self._statements.get(plans.generic_and_soon, False), {}), claim]
            with wire.answering():
                claimed = [Claimed(*row) for row in wire.transact(lines, _SECONDS, behind)[1].rows]
            self._first = bool(claimed)
            if not claimed or not behind:
                return claimed, None
            stack.pop_all()
            return claimed, self._messages.admitted(rows[0], wire)

    def _look(self) -> float:
        """Do a pass over whatever is due; returns the seconds until the next one."""
        came = self.timers.came()
        whole = self._floor.reached
        done = self.run_pass(whole=whole)
        if came and done.asked:
            self.timers.looked(done.claimed > 0)
        poll = self._settings.poll * random.uniform(0.9, 1.1)
        # Without a free seat there is nothing to look for; whoever frees one wakes the loop.
        wait = self.timers.wait(poll) if done.asked else poll
        if not whole:
            # What is older than it has seen comes no later for that than it has to.
            wait = min(wait, self._floor.wait())
        self._look_by = time.monotonic() + wait
        return min(wait, self._after(done))

    def _after(self, done: Pass) -> float:
        """The seconds after a pass until more of what it left may be had; whoever frees a seat wakes the loop."""
        if any(family.lane.free() > 0 for family in done.behind):
            return 0.0
        return PATIENCE if any(family.lane.gathering for family in done.behind) else _NEVER

    def run_pass(self, *, only: Sequence[Family] | None = None, whole: bool = True) -> Pass:
        """Claim what is due, as far as there are free seats, and start it; `only`: for families that are known to have something due.

        `whole`: also what became due before the last such look.
        """
        with self._lock:
            quiet = self.wait_idle(0.0)
            shares = [share for family in self.families if only is None or family in only if (share := self._share(family)) is not None]
            behind = [family for family in self.families if family.lane.seats and family.lane.more]
            if not shares:
                return Pass(behind=tuple(behind), quiet=quiet)
            sent = time.monotonic()
            try:
                self._claim_all(shares, sent, known=only is not None, whole=whole and only is None)
            except BaseException:
                # What was known to be due is not known any more.
                self.timers.unanswered()
                self._look_by = -_NEVER
                raise
            finally:
                # What was claimed before a later statement failed is held all the same.
                behind = [family for family in behind if all(share.family is not family for share in shares)]
                behind += self._start(shares, sent)
            return Pass(sum(len(share.rows) for share in shares), tuple(behind), quiet, asked=True)

    def _start(self, shares: Sequence[Share], sent: float) -> list[Family]:
        """Start what was claimed; returns the families for which to claim again at once."""
        behind: list[Family] = []
        for share in shares:
            if share.family.lane.claimed(share.free, len(share.rows), share.left):
                behind.append(share.family)
            if share.rows:
                share.family.start(share.rows, sent, full=share.room == 0)
        return behind

    def _share(self, family: Family) -> Share | None:
        if not family.lane.seats:
            return None
        free = min(family.lane.free(), self._settings.pass_limit)
        if self._stopping or free <= 0:
            # Whoever frees a seat must look again: what woke this pass may be due.
            family.lane.more = not self._stopping
            return None
        anywhere, family.lane.anywhere = family.lane.anywhere, False
        return Share(family, free, anywhere)

    def _claim_all(self, shares: Sequence[Share], began: float, *, known: bool, whole: bool) -> None:
        """Claim from range after range; `known`: first from a piece of them, where most often there is enough."""
        ask = not known and self.timers.ask()
        self._passes += 1
        if known and not any(share.anywhere for share in shares):
            self._claim(shares, *self._ranges.piece())
            for share in shares:
                share.left = False
        took = sum(self._claim(shares, first, last, ask, whole) for first, last in self._ranges.every())
        if whole:
            self._floor.looked(began, took, {one.family.lane.family: one.oldest_ms if one.left else 0 for one in shares if one.everywhere})

    def _claim(self, shares: Sequence[Share], first: int, last: int, ask: bool = False, whole: bool = False) -> float:
        """Claim from one range for those that have room; for the others, whatever is there is left. `ask`: and when more is due.

        Returns the seconds that the database took.
        """
        asked: list[tuple[Share, Probe]] = []
        for share in shares:
            if share.room <= 0:
                share.left, share.everywhere = True, False
            else:
                wide = share.family.lane.probe(share.room, last - first + 1)
                age_ms = EVER if whole else self._floor.age_ms(share.family.lane.family)
                asked.append((share, Probe(first, last, share.room, *wide, self._passes, age_ms)))
        if not asked:
            return 0.0
        asking = [(share, probe, share.family.claim(probe)) for share, probe in asked]
        durable = any(share.family.durable for share, _ in asked)
        lines = [Line(self._statements.get(plans.generic_and_soon, durable), {}), *(line for _, _, lines in asking for line in lines)]
        if ask:
            kinds = [KIND[share.family.lane.family] for share, _ in asked if share.family.lane.family in KIND]
            # Last, so that it sees what was claimed before it.
            lines.append(Line(self._statements.get(probing.next_due), {"first": first, "last": last, "kinds": kinds}))
        with Wire(self._engine, self._statements) as wire, wire.answering():
            sent = time.monotonic()
            answers = [answer.rows for answer in wire.transact(lines, _SECONDS)[1:]]
            took = time.monotonic() - sent
            if ask:
                self.timers.answered(answers.pop()[0][0])
            for share, probe, mine in asking:
                taken = share.family.taken(answers[: len(mine)], probe, wire)
                del answers[: len(mine)]
                share.rows += taken.rows
                share.oldest_ms = max(share.oldest_ms, taken.oldest_ms)
                share.left = share.left or taken.found > len(taken.rows) or taken.deepest >= probe.each
        return took

    @property
    def inside(self) -> bool:
        """Whether work of this relay asks, in one of its threads."""
        return any(family.lane.inside for family in self.families)

    def wait_idle(self, seconds: float) -> bool:
        """Wait until nothing is held and nothing runs; returns whether that is so."""
        end = time.monotonic() + seconds
        return all(family.lane.wait_idle(max(0.0, end - time.monotonic())) for family in self.families)

    def wait_for_the_rest(self, seconds: float) -> bool:
        """Wait until nothing runs but what should have returned by now; returns whether that is so."""
        end = time.monotonic() + seconds
        return all(family.lane.wait_for_the_rest(max(0.0, end - time.monotonic())) for family in self.families)

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
            if not (self._some_free(done.behind, end) if done.behind else self.wait_idle(end - time.monotonic())):
                held = sum(family.lane.held for family in self.families)
                raise AkterError(f"the outbox did not drain within {seconds} seconds; {held} rows are still worked on")
        raise AkterError("the outbox does not settle: messages keep asking for messages that are due at once")

    def _some_free(self, behind: Sequence[Family], end: float) -> bool:
        while not any(family.lane.wait_free(PATIENCE) for family in behind):
            if time.monotonic() > end:
                return False
        return True

    def stop_claiming(self, seconds: float) -> None:
        """Claim nothing more, and give back what was claimed but not begun.

        Waits at most `seconds` for a pass that is under way; what that one claims is given back by itself.
        """
        self._stopping = True
        if self._lock.acquire(timeout=max(0.0, seconds)):
            self._lock.release()
        for family in self.families:
            family.stop()

    def abandon(self) -> None:
        """Claim nothing more, and give back all that is held."""
        self._stopping = True
        for family in self.families:
            family.abandon()

    def held(self) -> list[str]:
        """The ids of what this runner holds."""
        return [id for family in self.families for id in family.held()]

    def close(self) -> None:
        """End the lanes' threads when what they do is done."""
        for family in self.families:
            family.close()
