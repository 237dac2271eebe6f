"""The actor of the soak that enqueues jobs, replaces and cancels them, and writes down what it is told of their ends."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

from akter import Actor, Cancellation, DeadLetter, Job, Retry, command
from soaking.journal import ran
from soaking.provider import TIMEOUT, Charge, charge

CAP = 2
LEASE = 3.0
RETRY = Retry(attempts=3, base=0.05, cap=0.2)
KEYS = ("a", "b")


class Till(Actor, max_state_bytes=8_000_000):
    """`asked` has a line for every job, `over` one for every key that was used again or cancelled, `told` one for every end it heard of."""

    count: int = 0
    history: list[tuple[int, str]] = []  # noqa: RUF012 - a state field's default is copied
    asked: list[tuple[int, str, str]] = []  # noqa: RUF012
    over: list[tuple[int, str]] = []  # noqa: RUF012
    told: list[tuple[str, str, int, int, bool]] = []  # noqa: RUF012
    pay = Job(charge, retry=RETRY, timeout=TIMEOUT, lease=LEASE)
    queued = Job(charge, retry=RETRY, timeout=TIMEOUT, lease=LEASE, concurrency=CAP)

    @command
    def charge(self, tag: str) -> int:
        """Ask for a charge; any number of them run at once."""
        return self._ask(self.pay, tag)

    @command
    def charge_queued(self, tag: str) -> int:
        """Ask for a charge; few of one till run at once."""
        return self._ask(self.queued, tag)

    def _ask(self, job: Any, tag: str) -> int:
        ran(tag)
        self.count += 1
        self.history.append((self.count, tag))
        random = Random(f"till {tag}")
        if random.random() < 0.1:
            self._end(key := random.choice(KEYS))
            self.cancel(key)
        key = random.choice(KEYS) if random.random() < 0.35 else ""
        if key:
            self._end(key)
            delay = timedelta(milliseconds=random.choice((0, random.randint(1, 800))))
            id = self.after(delay, key=key).enqueue(job, tag=tag)
        else:
            id = self.enqueue(job, tag=tag)
        self.asked.append((self.count, id, key))
        return self.count

    def _end(self, key: str) -> None:
        self.over.append((self.count, key))

    @pay.on_success
    def paid(self, charge: Charge) -> None:
        """Hear of it."""
        self.told.append((charge.job_id, "success", charge.attempt, charge.acted_in, False))

    @pay.on_dead_letter
    def unpaid(self, letter: DeadLetter) -> None:
        """Hear of it."""
        self.told.append((letter.job_id, "dead letter", letter.attempts, 0, letter.ambiguous))

    @pay.on_cancelled
    def taken_back(self, told: Cancellation) -> None:
        """Hear of it."""
        self.told.append((told.job_id, f"cancelled, {told.outcome}", told.attempts, 0, told.ambiguous))

    @queued.on_success
    def queued_paid(self, charge: Charge) -> None:
        """Hear of it."""
        self.paid(charge)

    @queued.on_dead_letter
    def queued_unpaid(self, letter: DeadLetter) -> None:
        """Hear of it."""
        self.unpaid(letter)

    @queued.on_cancelled
    def queued_taken_back(self, told: Cancellation) -> None:
        """Hear of it."""
        self.taken_back(told)


ROUTES = frozenset(route for job in (Till.pay, Till.queued) for route in job.routes.values())
"""The commands that hear of the ends of jobs."""
