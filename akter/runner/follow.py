"""The family `subscription`: each claimed row is one follower of one actor, told its next events in their order.

An event that cannot be told holds back those behind it in its row, and in no other. Rows whose handlers were seen to be quick share
transactions, one event of each in a transaction; the others are told one by one, each in a thread.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, cast

from sqlalchemy import Engine

from akter.definition import Definition
from akter.errors import AkterError, Unavailable
from akter.fault import Crashed
from akter.following import Acknowledged
from akter.runner.family import Probe, Taken, leased, taken_as
from akter.runner.followed import Telling, claim_of
from akter.runner.lane import Lane
from akter.runner.settings import Settings
from akter.runner.settler import Counts, backoff_ms, reason_of
from akter.runner.single import Single, transaction
from akter.runner.telling import Teller
from akter.runner.together import LONG, Together
from akter.store import follower, summary
from akter.store.flight import Line, Lost, Row, StatementFailed
from akter.store.follower import Follower
from akter.store.rows import parameters
from akter.store.summary import Name
from akter.store.wire import Statements, Wire
from akter.subscription import Subscription

logger = logging.getLogger("akter.relay")

_SECONDS = 30.0


class Follows(Single[Follower]):
    """Tells the subscribers of the types registered here."""

    def __init__(
        self,
        engine: Engine,
        statements: Statements,
        actors: Mapping[str, Definition],
        teller: Teller,
        counts: Counts,
        lane: Lane,
        settings: Settings,
        lease: float,
    ) -> None:
        super().__init__(lane, lease)
        self._engine, self.statements, self._actors, self.teller = engine, statements, actors, teller
        self.counts, self._settings = counts, settings
        self._served = json.dumps(served(actors))
        self._alike, self._deep = lane.seats, False

    def claim(self, probe: Probe) -> Sequence[Line]:
        """The statement that claims followers."""
        # All that follow one actor are in its bucket.
        each = max(probe.each, probe.limit // 2) if self._deep else probe.each
        values = leased(probe._replace(each=each), self._lease, self._settings.max_backoff)
        return [Line(self.statements.get(follower.claim), {**values, "served": self._served})]

    def taken(self, answers: Sequence[Sequence[Row]], probe: Probe, wire: Wire) -> Taken:
        """What the statement took."""
        (answer,) = answers
        taken = taken_as(Follower, answer, 3)
        self._deep = taken.deepest >= probe.each
        return taken

    def start(self, rows: Sequence[Follower], sent: float, *, full: bool) -> None:
        """Tell claimed rows; `full`: the claim took as many as it asked for."""
        most, until = self._settings.group, sent + self._lease
        shared = [row for row in rows if self._may_share(row)] if most > 1 else []
        mine = set(shared)
        # As for messages: once others were mixed in, a few are no proof that most of a full claim will find a thread.
        mixed = any(self.teller.pace.knows(self._follows(row)) for row in rows if row not in mine)
        self._alike = 0 if mixed else self._alike + len(shared)
        self.lane.sharing = (full or self._deep) and self._alike >= self.lane.seats
        room = max(0, self.lane.idle_threads())
        batches = [shared[at : at + most] for at in range(0, len(shared), most)]
        units = [batch for batch in batches if len(batch) > 1]
        alone = [row for row in rows if row not in mine] + [row for batch in batches if len(batch) == 1 for row in batch]
        for unit in units[:room]:
            self._start_unit([row for row in unit if self._stopping or not self._is_held(row, until)], until)
        rest = max(0, room - len(units))
        super().start(alone[:rest], sent, full=full)
        # Rows that were expected to share, and do not, would wait for a thread: others may have one.
        self._give_back([row for unit in units[room:] for row in unit] + alone[rest:], begun=False)

    def _may_share(self, row: Follower) -> bool:
        """Whether it may share a transaction. What was tried before may be what ended its process, and a gap is told by itself."""
        return row.attempts <= 1 and row.gap_through is None and self.teller.pace.may_share(self._follows(row))

    def _follows(self, row: Follower) -> Subscription:
        return self._actors[row.subscriber_type].subscriptions[row.subscription]

    def _start_unit(self, rows: Sequence[Follower], until: float) -> None:
        if self._stopping:
            self._give_back(rows, begun=False)
            return
        try:
            if rows:
                self.lane.start(len(rows), partial(self._run_unit, rows, until))
        except RuntimeError:
            for row in rows:
                self._forget(row)
            self._give_back(rows, begun=False)

    def _run_unit(self, rows: Sequence[Follower], until: float) -> None:
        """Tell rows together, and then, one by one, those that must be alone and those that were claimed again meanwhile."""
        left = list(rows)
        try:
            again = self._together(rows, until)
            left = again
            claimed: list[tuple[Follower, float]] = []
            for row in set(rows).difference(again):
                following = self._forget(row)
                if following is None:
                    self.lane.leave(1)
                else:
                    claimed.append(following)
            left = [*again, *(row for row, _ in claimed)]
            self._spread([(row, until) for row in again] + claimed, left)
        finally:
            for row in left:
                self._forget(row)
            self.lane.leave(len(left))

    def _spread(self, waiting: Sequence[tuple[Follower, float]], left: list[Follower]) -> None:
        """Tell rows one by one; idle threads take their part. `left` loses those that somebody answers for."""
        end = time.monotonic() + LONG
        for row, until in waiting:
            left.remove(row)
            if time.monotonic() > end and not self._stopping:
                self._drop(row)
            elif row is not waiting[-1][0] and self.lane.idle_threads() > 0:
                try:
                    self.lane.start(1, partial(self._run, row, until))
                    self.lane.leave(1)
                except RuntimeError:
                    self._drop(row)
            else:
                self._run(row, until)

    def _drop(self, row: Follower) -> None:
        """Give back a row that no thread has time for, and the newer claim of it if there is one."""
        following = self._forget(row)
        self._give_back([row, *([] if following is None else [following[0]])], begun=False)
        self.lane.leave(1)

    def _together(self, rows: Sequence[Follower], until: float) -> list[Follower]:
        """Tell rows in transactions that they share; returns those to tell alone."""
        if time.monotonic() >= until or self._stopping:
            return list(rows)
        try:
            with Wire(self._engine, self.statements) as wire:
                try:
                    return [one.row for one in Together(self, wire, until).tell([cast(Telling, self.watch(row)) for row in rows])]
                except Crashed:
                    wire.discard()
                    raise
        except Crashed:
            # As if the process were gone: the rows wait for the end of their leases.
            return []
        except Exception as problem:  # noqa: BLE001 - whatever it is, each row shows what is its own
            logger.info("relay.group_fell_apart", extra={"akter_members": len(rows), "akter_reason": str(problem)[:500]})
            return list(rows)

    def _work(self, row: Follower, until: float, working: Telling) -> None:
        with Wire(self._engine, self.statements) as wire:
            try:
                self._tell_all(working, until, wire)
            except Crashed:
                wire.discard()
                raise

    def _made(self, row: Follower) -> Telling:
        return Telling(row, self._actors[row.subscriber_type], self.teller)

    def _tell_all(self, one: Telling, until: float, wire: Wire) -> None:
        """Tell a row's next events, and settle it."""
        end = time.monotonic() + LONG
        try:
            one.saw(self.ask([Line(self.statements.get(follower.past), one.asked())], wire)[0])
            while (through := one.missing) is not None:
                if not self._miss(one, through, until, wire):
                    return
            while not one.empty:
                one.next(last=self.stopping or time.monotonic() > end)
                if not self._deliver(one, until, wire) or one.settles:
                    return
            self.note([one], wire)
        except (Crashed, SystemExit, KeyboardInterrupt):
            raise
        except Exception as problem:  # noqa: BLE001 - whatever it is, the row waits with its reason
            wire.roll_back()
            self.wait(one.row, problem, one.attempts, None if wire.broken else wire)

    def _miss(self, one: Telling, through: int, until: float, wire: Wire) -> bool:
        """Tell, or count, what is missing before the next event; returns whether the row is still this runner's."""
        if not one.follows.takes_gaps:
            logger.warning("subscription.gap", extra=self.teller.about(one.of("gap", through, 0), one.row.subscriber_type))
            one.count(through)
            return True
        at_ms = one.row.gap_at_ms if through == one.row.gap_through else self._pin(one.row, through, wire)
        if at_ms is None:
            return False
        one.gap(through, at_ms)
        return self._deliver(one, until, wire)

    def _pin(self, row: Follower, through: int, wire: Wire) -> int | None:
        """Keep the gap in the row, whose telling has one id however often it is tried; returns since when."""
        pinned = self.ask([self._line(follower.pin, "pin_", [{**claim_of(row), "through": through}])], wire)[0]
        return pinned[0][0] if pinned else None

    def _deliver(self, one: Telling, until: float, wire: Wire) -> bool:
        """Tell, and note it in the same commit or, when there was nothing to commit, after it; returns whether to go on."""
        try:
            rode = self.teller.tell(wire, one.call, until, self.notes([one]), one.handling)
        except Acknowledged as known:
            wire.roll_back()
            if not self.goes_on(one, known):
                self.end(one)
                return False
            rode = False
        if not rode and not self.note([one], wire):
            return False
        self.counts.add(delivered=1)
        one.advance()
        return True

    def goes_on(self, one: Telling, known: Acknowledged) -> bool:
        """Whether the row of what need not be told goes on; otherwise the subscriber does not want it any more."""
        if known.reason == "not created" and one.call.following is not None:
            logger.warning("subscription.not_created", extra=self.teller.about(one.call.following, one.row.subscriber_type))
        return known.reason in ("applied", "not created")

    def end(self, one: Telling) -> None:
        """Let nothing else of this epoch be told."""
        row = one.row
        with transaction(self._engine, self.statements.schema) as connection:
            summary.end(connection, one.source, Name(row.subscriber_type, row.subscription, row.subscriber_id), row.epoch)

    def notes(self, tellings: Sequence[Telling]) -> list[Line]:
        """The statements that note what was made ready, one for rows that go on and one for those that go back."""
        noted = sorted((one.note() for one in tellings), key=lambda note: note[0] is follower.settle)
        prefixes = {follower.settle: "settle_", follower.progress: "follow_"}
        return [
            self._line(statement, prefixes[statement], [values for _, values in notes])
            for statement, notes in groupby(noted, key=lambda note: note[0])
        ]

    def note(self, tellings: Sequence[Telling], wire: Wire) -> int:
        """Write that outside of any turn; returns how many rows were still this runner's. Raises `Unavailable`."""
        moved = sum(int(rows[0][0]) for rows in self.ask(self.notes(tellings), wire))
        self.counts.add(stale=len(tellings) - moved)
        return moved

    def _wait(self, row: Follower, problem: BaseException) -> None:
        self.wait(row, problem, row.attempts)

    def wait(self, row: Follower, problem: BaseException, attempts: int, wire: Wire | None = None) -> None:
        """Let a row wait for its next try; what cannot be written waits for its lease's end."""
        delay = backoff_ms(attempts, 1000, self._settings.max_backoff * 1000)
        reason, shown = reason_of(problem)
        logger.warning(
            "subscription.retry",
            extra={**self._about(row), "akter_reason": shown},
            exc_info=None if isinstance(problem, AkterError) else problem,
        )
        self.counts.add(retried=1)
        waiting = [{**claim_of(row), "delay_ms": delay, "last_error": reason}]
        try:
            self._fly(self._line(follower.wait, "wait_", waiting), 1, wire)
        except AkterError as unwritten:
            logger.warning("relay.settle_failed", extra={"akter_rows": 1, "akter_reason": str(unwritten)[:500]})

    def _explain(self, rows: Sequence[Follower], why: str) -> bool:
        explained = [{**claim_of(row), "last_error": why} for row in rows]
        try:
            self._fly(self._line(follower.explain, "why_", explained), len(rows))
        except AkterError as problem:
            logger.warning("relay.settle_failed", extra={"akter_rows": len(rows), "akter_reason": str(problem)[:500]})
            return False
        return True

    def _release(self, rows: Sequence[Follower], begun: bool) -> None:
        if rows:
            given = [{**claim_of(row), "refund": 0 if begun else 1} for row in rows]
            self.counts.add(released=self._fly(self._line(follower.release, "free_", given), len(rows)))

    def _line(self, statement: Any, prefix: str, rows: Sequence[dict[str, Any]]) -> Line:
        return Line(self.statements.get(statement), parameters(prefix, rows, True))

    def _fly(self, line: Line, rows: int, wire: Wire | None = None) -> int:
        """Write about claimed rows; returns how many were still this runner's. Raises `Unavailable`."""
        if wire is None:
            with Wire(self._engine, self.statements) as own:
                return self._fly(line, rows, own)
        moved = int(self.ask([line], wire)[0][0][0])
        self.counts.add(stale=rows - moved)
        return moved

    def ask(self, lines: Sequence[Line], wire: Wire) -> list[list[Row]]:
        """What statements answer, in one transaction; raises `Unavailable`."""
        try:
            return [answer.rows for answer in wire.transact(lines, _SECONDS)]
        except (StatementFailed, Lost) as problem:
            raise Unavailable(f"a subscription could not be read or written: {problem}") from problem

    @property
    def stopping(self) -> bool:
        """Whether no other event may be begun."""
        return self._stopping

    def _name(self, row: Follower) -> str:
        return f"{row.source_type}/{row.source_id} to {row.subscriber_type}.{row.subscription} {row.subscriber_id}".rstrip()

    def _about(self, row: Follower) -> dict[str, Any]:
        return {
            "akter_actor": f"{row.source_type}/{row.source_id}",
            "akter_tenant": row.tenant_id,
            "akter_subscription": f"{row.subscriber_type}.{row.subscription}",
            "akter_subscriber": row.subscriber_id,
            "akter_attempts": row.attempts,
        }


def served(actors: Mapping[str, Definition]) -> list[dict[str, Any]]:
    """The subscriptions of the registered types, with the events that are known here."""
    return [
        {"subscriber_type": name, "subscription": follows.name, "events": list(follows.events)}
        for name, definition in actors.items()
        for follows in definition.subscriptions.values()
    ]
