"""Work outside any turn: a plain function bound to an actor, how often it is tried, and who hears of its end."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, overload

import msgspec

from akter import annotation
from akter.codec import Upcast, chain
from akter.command import MARK, MAX_SECONDS, Command, Mark, check_seconds
from akter.errors import AkterError, DeclarationError
from akter.flag import Flag
from akter.identity import DEFAULT_TENANT
from akter.payload import Payload

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a job is tried: `attempts` in all, waiting `base` seconds, doubled each time up to `cap` seconds."""

    attempts: int = 4
    base: float = 1.0
    cap: float = 256.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or not 1 <= self.attempts <= 101:
            raise DeclarationError("Retry: attempts is a whole number from 1 to 101")
        check_seconds(self.base, "Retry: base")
        check_seconds(self.cap, "Retry: cap")
        if self.base > self.cap:
            raise DeclarationError("Retry: cap, the longest wait, is not shorter than base, the first one")


class Cancelled(AkterError):
    """The attempt was cancelled, or its time is over: stop now, its result is not wanted any more."""


class NotApplied(AkterError):
    """Raised by a job's function: the outside world did not act, and will not. Any other error leaves that unknown.

    `final`: another attempt would fail as well, so there is none.
    """

    def __init__(self, message: str = "", *, final: bool = False) -> None:
        super().__init__(message)
        self.said, self.final = message or "not applied", final


# Not frozen: to make one that is takes longer than all else about a quick job.
@dataclass(slots=True, kw_only=True, eq=False)
class Attempt:
    """One try of a job. `job_id` is the same in every attempt, so it is the idempotency key for the provider.

    `number` counts from 1, `actor_id` and `tenant` say whose job it is, `deadline` is a `time.monotonic()` value, `cancelled` is set when
    the attempt should stop.
    """

    job_id: str
    number: int = 1
    actor_id: str = ""
    tenant: str = DEFAULT_TENANT
    deadline: float | None = None
    cancelled: threading.Event = field(default_factory=Flag)
    report: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)

    def progress(self, value: Any) -> None:
        """Tell how far it is: any small value that JSON can hold. The newest one is shown by `akter status` while the attempt runs.

        It is not kept, and never fails the job: what is too large (4 KiB) or cannot be encoded is dropped.
        """
        if self.report is not None:
            self.report(value)

    def remaining(self) -> float:
        """Seconds until the attempt is given up; pass it as the timeout of every blocking call."""
        return MAX_SECONDS if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` when the attempt should stop."""
        if self.cancelled.is_set() or self.remaining() <= 0:
            raise Cancelled


class DeadLetter(Payload):
    """A job that gave up. `ambiguous` says that the outside world may have acted although no success was reported."""

    job_id: str
    job: str
    attempts: int
    cause: str
    ambiguous: bool


class Cancellation(Payload):
    """A job that was cancelled: `outcome` is what is known of its last attempt; `ambiguous` when that is nothing."""

    job_id: str
    job: str
    attempts: int
    outcome: Literal["succeeded", "failed", "unknown"]
    cause: str = ""
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class JobCall:
    """A job and its arguments: what `enqueue` records, and what a test compares with."""

    job: str
    arguments: msgspec.Struct


class Job(Generic[P, R]):
    """A function that runs after the turn committed, outside any transaction, retried and reported back to its actor.

    The function's first parameter is the `Attempt`. `retry`: how often. `timeout`: seconds per attempt. `lease`: seconds after which a
    silent runner is taken for dead, at least 3. `concurrency`: attempts at once per actor, 1 to 64. `isolation`: "process" kills at the
    deadline, and takes a function that can be imported. `migrations`: functions that bring the arguments of jobs that older code enqueued
    up to date. Raises `DeclarationError` for settings out of range.
    """

    name: str
    where: str
    call: Command

    def __init__(
        self,
        function: Callable[Concatenate[Attempt, P], R],
        *,
        retry: Retry | None = None,
        timeout: float = 30.0,
        lease: float = 60.0,
        concurrency: int | None = None,
        isolation: Literal["thread", "process"] = "thread",
        migrations: Sequence[Upcast] = (),
    ) -> None:
        if isinstance(bound := cast(object, function), Job):
            raise DeclarationError(
                f"Job(...) takes the function, and this is the Job of {cast(Any, bound).function.__name__} already, "
                "whose name in the class body hides the function's: give the function another name"
            )
        if not isinstance(function, FunctionType):
            raise DeclarationError("Job(...) takes a plain function whose first parameter is the Attempt")
        where = f"Job({function.__name__})"
        check_seconds(timeout, f"{where}: timeout")
        check_seconds(lease, f"{where}: lease", 3.0)
        if retry is not None and not isinstance(cast(object, retry), Retry):
            raise DeclarationError(f"{where}: retry is a Retry(attempts=..., base=..., cap=...)")
        if concurrency is not None and (isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= 64):
            raise DeclarationError(f"{where}: concurrency is the attempts at once per actor, 1 to 64")
        if isolation not in ("thread", "process"):
            raise DeclarationError(f"{where}: isolation is 'thread' or 'process'")
        if isolation == "process" and ("<locals>" in function.__qualname__ or "<lambda>" in function.__qualname__):
            raise DeclarationError(
                f"{where}: a process of its own cannot import {function.__qualname__}; define it with `def` at the top of a module, "
                f"or leave isolation='process' out"
            )
        self.function, self.retry, self.timeout, self.lease = function, retry or Retry(), timeout, lease
        self.concurrency, self.isolation = concurrency, isolation
        self.migrations = chain(migrations, where)
        self.routes: dict[str, str] = {}
        self._again = ""

    def __set_name__(self, owner: type, name: str) -> None:
        # What is raised here would come out as a RuntimeError before Python 3.12, so `build` tells.
        if hasattr(self, "name"):
            self._again = f"{owner.__name__}.{name}"
        else:
            self.name, self.where = name, f"{owner.__name__}.{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Job[P, R]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Job[P, R]: ...
    def __get__(self, instance: object, owner: type) -> Job[P, R]:
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> JobCall:
        """The request itself, as a value that a test can compare with what an actor asked for."""
        if not hasattr(self, "call"):
            raise TypeError(
                f"this Job of {self.function.__name__} belongs to no actor yet: bind it in a class, `charge = Job(charge_card)`"
            )
        _, arguments = self.call.bind(args, dict(kwargs))
        return JobCall(self.name, arguments)

    def build(self) -> None:
        """Resolve the function's types once its actor class exists; raises `DeclarationError`."""
        if again := self._again:
            self._again = ""
            raise DeclarationError(f"{again}: this Job is already bound as {self.where}; make one Job for each name")
        if hasattr(self, "call"):
            return
        function: Callable[..., Any] = self.function
        first = next(iter(inspect.signature(function).parameters), None)
        if first is None or annotation.hints(function, self.where).get(first) is not Attempt:
            raise DeclarationError(f"{self.where}: the first parameter of {function.__name__} is `attempt: Attempt`")
        # The attempt takes the place of `self`: both are given by the runner, not stored.
        self.call = Command(self.where.rpartition(".")[0], self.name, function, Mark(migrations=self.migrations), what="job")

    def on_success(self, method: Callable[[A, R], None]) -> Callable[[A, R], None]:
        """Route the function's result to this method, once, as a turn of the same actor."""
        return self._route("success", method)

    def on_dead_letter(self, method: Callable[[A, DeadLetter], None]) -> Callable[[A, DeadLetter], None]:
        """Tell this method when the job gave up."""
        return self._route("dead_letter", method)

    def on_cancelled(self, method: Callable[[A, Cancellation], None]) -> Callable[[A, Cancellation], None]:
        """Tell this method how a cancelled job ended."""
        return self._route("cancelled", method)

    def _route(self, kind: str, method: Method) -> Method:
        if kind in self.routes:
            raise DeclarationError(f"{method.__qualname__}: this job already routes {kind} to `{self.routes[kind]}`")
        if not isinstance(cast(object, method), FunctionType):
            raise DeclarationError(f"{method!r}: a route is a plain method with `self` and one argument")
        if hasattr(method, MARK):
            raise DeclarationError(f"{method.__qualname__}: a route is a command already; leave the other decorator out")
        setattr(method, MARK, Mark(internal=True, route=kind))
        self.routes[kind] = method.__name__
        return method
