"""Wrong declarations fail when the class is built, and say the class, the member and the remedy. Right ones mean what they say."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Generator
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import pytest

from akter.actor import Actor
from akter.command import command, query
from akter.definition import Definition
from akter.errors import DeclarationError
from akter.job import Attempt, Cancellation, DeadLetter, Job, Retry
from akter.payload import Event, Payload, field
from akter.rejection import Rejection

if TYPE_CHECKING:
    from collections import OrderedDict

T = TypeVar("T")


def definition(kind: Any) -> Definition:
    found = kind.__akter__
    assert isinstance(found, Definition)
    return found


def fetch(attempt: Attempt, url: str) -> bytes:
    return url.encode()


def without_attempt(url: str) -> bytes:
    return b""


def attempt_later(url: str, attempt: Attempt) -> bytes:
    return b""


def attempt_of_another_type(attempt: int, url: str) -> bytes:
    return b""


def without_return(attempt: Attempt, url: str):  # type: ignore[no-untyped-def]
    return b""


def without_type(attempt: Attempt, url) -> bytes:  # type: ignore[no-untyped-def]
    return b""


async def later(attempt: Attempt, url: str) -> bytes:
    return b""


def loose(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


# -- one broken class each; `Bad` is its name


def state_without_default() -> None:
    class Bad(Actor):
        count: int


def state_with_wrong_default() -> None:
    class Bad(Actor):
        count: int = "0"  # type: ignore[assignment]


def state_with_wrong_factory() -> None:
    class Bad(Actor):
        names: list[str] = field(default_factory=dict)  # type: ignore[assignment]


def state_with_nan() -> None:
    class Bad(Actor):
        ratio: float = math.nan


def state_with_nul() -> None:
    class Bad(Actor):
        name: str = "\0"


def state_with_underscore() -> None:
    class Bad(Actor):
        _count: int = 0


def state_of_unknown_type() -> None:
    class Bad(Actor):
        count: Missing = 0  # type: ignore[name-defined] # noqa: F821


def state_imported_for_checkers_only() -> None:
    class Bad(Actor):
        names: OrderedDict[str, int] | None = None


def state_that_cannot_be_stored() -> None:
    class Bad(Actor):
        ratio: Fraction | None = None


def state_and_method_of_one_name() -> None:
    class Bad(Actor):
        count: int = 0

        def count(self) -> int:  # type: ignore[no-redef] # noqa: F811
            return 0


def state_and_command_of_one_name() -> None:
    class Bad(Actor):
        count: int = 0

        @command
        def count(self) -> int:  # type: ignore[no-redef] # noqa: F811
            return 0


def state_and_property_of_one_name() -> None:
    class Bad(Actor):
        count: int = 0

        @property
        def count(self) -> int:  # type: ignore[no-redef] # noqa: F811
            return 0


def annotated_job() -> None:
    class Bad(Actor):
        fetch: Job[..., bytes] = Job(fetch)


def reserved_state() -> None:
    class Bad(Actor):
        id: str = ""  # type: ignore[assignment]


def reserved_command() -> None:
    class Bad(Actor):
        @command
        def send(self) -> None: ...  # type: ignore[override]


def reserved_method() -> None:
    class Bad(Actor):
        def emit(self) -> None: ...  # type: ignore[override]


def reserved_attribute() -> None:
    class Bad(Actor):
        connection = None  # type: ignore[assignment]


def reserved_job() -> None:
    class Bad(Actor):
        enqueue = Job(fetch)  # type: ignore[assignment]


def reserved_for_later() -> None:
    class Bad(Actor):
        @command
        def mint(self) -> None: ...


def reserved_inside() -> None:
    class Bad(Actor):
        _turn = None  # type: ignore[assignment]


def own_init() -> None:
    class Bad(Actor):
        def __init__(self) -> None: ...


def init_of_a_mixin() -> None:
    class Mixin:
        def __init__(self) -> None: ...

    class Bad(Mixin, Actor): ...


def own_setattr() -> None:
    class Bad(Actor):
        def __setattr__(self, name: str, value: object) -> None: ...


def own_slots() -> None:
    class Bad(Actor):
        __slots__ = ("x",)


def unknown_option() -> None:
    class Bad(Actor, singelton=True): ...  # type: ignore[call-arg]


def empty_name() -> None:
    class Bad(Actor, name=""): ...


def name_with_nul() -> None:
    class Bad(Actor, name="a\0"): ...


def name_that_is_no_text() -> None:
    class Bad(Actor, name=5): ...  # type: ignore[arg-type]


def aliases_that_are_one_text() -> None:
    class Bad(Actor, aliases="Old"): ...


def alias_that_is_no_text() -> None:
    class Bad(Actor, aliases=[5]): ...  # type: ignore[list-item]


def unknown_placement() -> None:
    class Bad(Actor, placement="nearby"): ...  # type: ignore[arg-type]


def singleton_that_is_no_bool() -> None:
    class Bad(Actor, singleton="yes"): ...  # type: ignore[arg-type]


def state_limit_of_nothing() -> None:
    class Bad(Actor, max_state_bytes=0): ...


def state_limit_that_is_a_bool() -> None:
    class Bad(Actor, max_state_bytes=True): ...


def state_limit_without_end() -> None:
    class Bad(Actor, max_state_bytes=2**40): ...


def default_beyond_its_limit() -> None:
    class Bad(Actor, max_state_bytes=20):
        note: str = "x" * 20


def migration_that_is_no_function() -> None:
    class Bad(Actor, migrations=[{"a": 1}]): ...  # type: ignore[list-item]


def migrations_that_are_one_function() -> None:
    class Bad(Actor, migrations=dict): ...  # type: ignore[arg-type]


def access_that_is_no_function() -> None:
    class Bad(Actor, access=True): ...  # type: ignore[arg-type]


def argument_without_type() -> None:
    class Bad(Actor):
        @command
        def go(self, by) -> None: ...  # type: ignore[no-untyped-def]


def result_without_type() -> None:
    class Bad(Actor):
        @command
        def go(self):  # type: ignore[no-untyped-def]
            ...


def star_arguments() -> None:
    class Bad(Actor):
        @command
        def go(self, *names: str) -> None: ...


def star_star_arguments() -> None:
    class Bad(Actor):
        @query
        def go(self, **names: str) -> None: ...


def decorated_loosely() -> None:
    class Bad(Actor):
        @command
        @loose
        async def go(self) -> None: ...


def without_self() -> None:
    class Bad(Actor):
        @command
        def go() -> None: ...  # type: ignore[misc]


def only_keywords() -> None:
    class Bad(Actor):
        @command
        def go(*, self: int) -> None: ...  # type: ignore[misc]


def asynchronous() -> None:
    class Bad(Actor):
        @command
        async def go(self) -> None: ...


def generating() -> None:
    class Bad(Actor):
        @query
        def go(self) -> Generator[int, None, None]:
            yield 1


def generating_asynchronously() -> None:
    class Bad(Actor):
        @query
        async def go(self):  # type: ignore[no-untyped-def]
            yield 1


def static_outside() -> None:
    class Bad(Actor):
        @command
        @staticmethod
        def go(self: int) -> None: ...


def static_inside() -> None:
    class Bad(Actor):
        @staticmethod
        @command
        def go(self: int) -> None: ...


def class_method() -> None:
    class Bad(Actor):
        @classmethod
        @command
        def go(cls) -> None: ...


def property_command() -> None:
    class Bad(Actor):
        @property
        @query
        def go(self) -> int:
            return 1


def command_of_a_class() -> None:
    class Bad(Actor):
        @command  # type: ignore[type-var]
        class go: ...


def command_of_a_partial() -> None:
    class Bad(Actor):
        go = command(functools.partial(print))


def private_command() -> None:
    class Bad(Actor):
        @command
        def _go(self) -> None: ...


def two_decorators() -> None:
    class Bad(Actor):
        @command
        @query
        def go(self) -> None: ...


def command_and_route() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_success
        @command
        def go(self, text: bytes) -> None: ...


def argument_that_cannot_be_stored() -> None:
    class Bad(Actor):
        @command
        def go(self, then: Callable[[], None]) -> None: ...


def nested_argument_that_cannot_be_stored() -> None:
    @dataclasses.dataclass
    class Inner:
        ratio: Fraction

    globals()["Inner"] = Inner

    class Bad(Actor):
        @command
        def go(self, values: dict[str, list[Inner]]) -> None: ...


def result_that_cannot_be_stored() -> None:
    class Bad(Actor):
        @command
        def go(self) -> Fraction: ...  # type: ignore[empty-body]


def argument_of_unknown_type() -> None:
    class Bad(Actor):
        @command
        def go(self, by: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


def argument_imported_for_checkers_only() -> None:
    class Bad(Actor):
        @command
        def go(self, by: OrderedDict[str, int]) -> None: ...


def argument_with_wrong_default() -> None:
    class Bad(Actor):
        @command
        def go(self, by: int = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013


def timeout_of(value: Any) -> Callable[[], None]:
    def timeout() -> None:
        class Bad(Actor):
            @command(timeout=value)
            def go(self) -> None: ...

    return timeout


def command_alias_of_another_command() -> None:
    class Bad(Actor):
        @command(aliases=["stop"])
        def go(self) -> None: ...

        @command
        def stop(self) -> None: ...


def one_alias_of_two_commands() -> None:
    class Bad(Actor):
        @command(aliases=["run"])
        def go(self) -> None: ...

        @command(aliases=["run"])
        def stop(self) -> None: ...


def command_aliases_that_are_one_text() -> None:
    class Bad(Actor):
        @command(aliases="run")
        def go(self) -> None: ...


def override_without_a_decorator() -> None:
    class Good(Actor):
        @command
        def go(self) -> None: ...

    class Bad(Good):
        def go(self) -> None: ...


def override_of_a_query_without_a_decorator() -> None:
    class Good(Actor):
        @query
        def go(self) -> None: ...

    class Bad(Good):
        go = None  # type: ignore[assignment]


def job_without_attempt() -> None:
    class Bad(Actor):
        go = Job(without_attempt)  # type: ignore[arg-type]


def job_with_a_late_attempt() -> None:
    class Bad(Actor):
        go = Job(attempt_later)  # type: ignore[arg-type]


def job_with_another_attempt() -> None:
    class Bad(Actor):
        go = Job(attempt_of_another_type)  # type: ignore[arg-type]


def job_without_parameters() -> None:
    class Bad(Actor):
        go = Job(state_without_default)  # type: ignore[arg-type]


def job_without_return() -> None:
    class Bad(Actor):
        go = Job(without_return)


def job_without_type() -> None:
    class Bad(Actor):
        go = Job(without_type)


def asynchronous_job() -> None:
    class Bad(Actor):
        go = Job(later)


def job_of_a_method() -> None:
    class Bad(Actor):
        go = Job(print)  # type: ignore[arg-type]


def private_job() -> None:
    class Bad(Actor):
        _go = Job(fetch)


def one_job_under_two_names() -> None:
    class Bad(Actor):
        go = Job(fetch)
        run = go


def job_of_another_actor() -> None:
    class Good(Actor):
        go = Job(fetch)

    class Bad(Actor):
        run = Good.go


def success_route_of_the_wrong_type() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_success  # type: ignore[arg-type]
        def go(self, text: str) -> None: ...


def letter_route_of_the_wrong_type() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_dead_letter  # type: ignore[arg-type]
        def go(self, letter: Cancellation) -> None: ...


def cancellation_route_of_the_wrong_type() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_cancelled  # type: ignore[arg-type]
        def go(self, letter: DeadLetter) -> None: ...


def route_without_argument() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_success  # type: ignore[arg-type]
        def go(self) -> None: ...


def route_with_two_arguments() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_success
        def go(self, text: bytes, more: int = 0) -> None: ...


def two_routes_of_a_kind() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_success
        def go(self, text: bytes) -> None: ...

        @fetch.on_success
        def run(self, text: bytes) -> None: ...


def route_under_another_name() -> None:
    class Bad(Actor):
        fetch = Job(fetch)

        @fetch.on_success
        def _hidden(self, text: bytes) -> None: ...


BROKEN: list[tuple[Callable[[], None], str]] = [
    (state_without_default, r"^Bad\.count: a state field needs a default"),
    (state_with_wrong_default, r"^Bad\.count: Expected `int`, got `str`.*: give it a default of its type"),
    (state_with_wrong_factory, r"^Bad\.names: Expected `array`, got `object`.*: give it a default of its type"),
    (state_with_nan, r"^Bad\.ratio: nan is no JSON number"),
    (state_with_nul, r"^Bad\.name: text must not contain a NUL character"),
    (state_with_underscore, r"^Bad\._count: a state field cannot start with an underscore; annotate it ClassVar"),
    (state_of_unknown_type, r"^Bad\.count: name 'Missing' is not defined.*import them at run time"),
    (state_imported_for_checkers_only, r"^Bad\.names: name 'OrderedDict' is not defined.*not under TYPE_CHECKING"),
    (state_that_cannot_be_stored, r"^Bad\.ratio: Fraction cannot be stored: use a Payload, a dataclass"),
    (state_and_method_of_one_name, r"^Bad\.count: this name is a state field and a method; rename one"),
    (state_and_command_of_one_name, r"^Bad\.count: this name is a state field and a method; rename one"),
    (state_and_property_of_one_name, r"^Bad\.count: this name is a state field and a method; rename one"),
    (annotated_job, r"^Bad\.fetch: a Job is no state; leave the annotation away: `fetch = Job\(...\)`"),
    (reserved_state, r"^Bad\.id: every actor has `id` already; choose another name"),
    (reserved_command, r"^Bad\.send: every actor has `send` already"),
    (reserved_method, r"^Bad\.emit: every actor has `emit` already"),
    (reserved_attribute, r"^Bad\.connection: every actor has `connection` already"),
    (reserved_job, r"^Bad\.enqueue: every actor has `enqueue` already"),
    (reserved_for_later, r"^Bad\.mint: every actor has `mint` already"),
    (reserved_inside, r"^Bad\._turn: every actor has `_turn` already"),
    (own_init, r"^Bad\.__init__: an actor is built by akter from its stored state"),
    (init_of_a_mixin, r"^Bad\.__init__: an actor is built by akter from its stored state"),
    (own_setattr, r"^Bad\.__setattr__: an actor is built by akter"),
    (own_slots, r"^Bad\.__slots__: an actor is built by akter"),
    (unknown_option, r"^Bad: unknown option 'singelton'; an actor class takes access, aliases, .*singleton"),
    (empty_name, r"^Bad: name holds ''; a stored name is text of 1 to 128 characters"),
    (name_with_nul, r"^Bad: name holds 'a\\x00'"),
    (name_that_is_no_text, r"^Bad: name holds 5"),
    (aliases_that_are_one_text, r"^Bad: aliases is a list of names, `aliases=\['Old'\]`"),
    (alias_that_is_no_text, r"^Bad: aliases holds 5"),
    (unknown_placement, r"^Bad: placement is 'actor' or 'tenant', not 'nearby'"),
    (singleton_that_is_no_bool, r"^Bad: singleton is True or False, not 'yes'"),
    (state_limit_of_nothing, r"^Bad: max_state_bytes is a number of bytes from 2 to \d+, not 0"),
    (state_limit_that_is_a_bool, r"^Bad: max_state_bytes is a number of bytes from 2 to \d+, not True"),
    (state_limit_without_end, r"^Bad: max_state_bytes is a number of bytes from 2 to \d+, not 1099511627776"),
    (
        default_beyond_its_limit,
        r"^Bad: its defaults do not fit: the state of Bad is 31 bytes long; the limit is 20: store less, or declare max_state_bytes=",
    ),
    (migration_that_is_no_function, r"^Bad: migrations is a list of functions"),
    (migrations_that_are_one_function, r"^Bad: migrations is a list of functions"),
    (access_that_is_no_function, r"^Bad: access is a function of one Access"),
    (argument_without_type, r"^Bad\.go: annotate the parameter `by` with its type"),
    (result_without_type, r"^Bad\.go: annotate what it returns, `-> None` when nothing"),
    (star_arguments, r"^Bad\.go: arguments are stored by name, so `\*names` cannot be used; name each one"),
    (star_star_arguments, r"^Bad\.go: arguments are stored by name, so `\*\*names` cannot be used; name each one"),
    (decorated_loosely, r"^Bad\.go: a command is a plain synchronous function"),
    (without_self, r"^Bad\.go: the first parameter is `self`"),
    (only_keywords, r"^Bad\.go: the first parameter is `self`"),
    (asynchronous, r"^Bad\.go: a command is a plain synchronous function, neither async nor a generator"),
    (generating, r"^Bad\.go: a query is a plain synchronous function, neither async nor a generator"),
    (generating_asynchronously, r"^Bad\.go: a query is a plain synchronous function"),
    (static_outside, r"@command on .*Bad\.go: it goes on a plain method with `self`"),
    (static_inside, r"^Bad\.go: a command is a plain method with `self`, not a staticmethod"),
    (class_method, r"^Bad\.go: a command is a plain method with `self`, not a classmethod"),
    (property_command, r"^Bad\.go: a query is a plain method with `self`, not a property"),
    (command_of_a_class, r"@command on .*Bad\.go: it goes on a plain method with `self`"),
    (command_of_a_partial, r"@command on functools\.partial.*: it goes on a plain method with `self`"),
    (private_command, r"^Bad\._go: a command has a public name, so it cannot start with an underscore"),
    (two_decorators, r"Bad\.go is already a query: use one decorator"),
    (command_and_route, r"Bad\.go: a route is a command already; leave the other decorator out"),
    (argument_that_cannot_be_stored, r"^Bad\.go\(\): .*"),
    (nested_argument_that_cannot_be_stored, r"^Bad\.go\(\): Fraction cannot be stored"),
    (result_that_cannot_be_stored, r"^the result of Bad\.go\(\): Fraction cannot be stored"),
    (argument_of_unknown_type, r"^Bad\.go: `by`: name 'Missing' is not defined"),
    (argument_imported_for_checkers_only, r"^Bad\.go: `by`: name 'OrderedDict' is not defined.*not under TYPE_CHECKING"),
    (argument_with_wrong_default, r"^Bad\.go\.by: Expected `int`, got `null`.*: give it a default of its type"),
    (command_alias_of_another_command, r"^Bad\.stop: the name 'stop' belongs to `go` too"),
    (one_alias_of_two_commands, r"^Bad\.stop: the name 'run' belongs to `go` too"),
    (command_aliases_that_are_one_text, r"^@command: aliases is a list of names, `aliases=\['run'\]`"),
    (override_without_a_decorator, r"^Bad\.go: it replaces a command of a base class; mark it @command too"),
    (override_of_a_query_without_a_decorator, r"^Bad\.go: it replaces a query of a base class; mark it @query too"),
    (job_without_attempt, r"^Bad\.go: the first parameter of without_attempt is `attempt: Attempt`"),
    (job_with_a_late_attempt, r"^Bad\.go: the first parameter of attempt_later is `attempt: Attempt`"),
    (job_with_another_attempt, r"^Bad\.go: the first parameter of attempt_of_another_type is `attempt: Attempt`"),
    (job_without_parameters, r"^Bad\.go: the first parameter of state_without_default is `attempt: Attempt`"),
    (job_without_return, r"^Bad\.go: annotate what it returns"),
    (job_without_type, r"^Bad\.go: annotate the parameter `url`"),
    (asynchronous_job, r"^Bad\.go: a job is a plain synchronous function"),
    (job_of_a_method, r"^Job\(...\) takes a plain function whose first parameter is the Attempt"),
    (private_job, r"^Bad\._go: a job has a public name"),
    (one_job_under_two_names, r"^Bad\.run: this Job is already bound as Bad\.go; make one Job for each name"),
    (job_of_another_actor, r"^Bad\.run: this Job is already bound as Good\.go; make one Job for each name"),
    (success_route_of_the_wrong_type, r"^Bad\.go: as the success route of Bad\.fetch its argument is annotated `bytes`"),
    (letter_route_of_the_wrong_type, r"^Bad\.go: as the dead_letter route of Bad\.fetch its argument is annotated `DeadLetter`"),
    (cancellation_route_of_the_wrong_type, r"^Bad\.go: as the cancelled route of Bad\.fetch its argument is annotated `Cancellation`"),
    (route_without_argument, r"^Bad\.go: a route takes exactly one argument beside `self`"),
    (route_with_two_arguments, r"^Bad\.go: a route takes exactly one argument beside `self`"),
    (two_routes_of_a_kind, r"Bad\.run: this job already routes success to `go`"),
    (route_under_another_name, r"^Bad\._hidden: a command has a public name"),
]


@pytest.mark.parametrize(("build", "said"), BROKEN, ids=[build.__name__ for build, _ in BROKEN])
def test_a_wrong_declaration_fails_when_the_class_is_built(build: Callable[[], None], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        build()


NO_SECONDS = [0, -1, 0.0001, math.nan, math.inf, -math.inf, 2_147_484, 10**30, True, "1", None, timedelta(seconds=1), Decimal(1)]


@pytest.mark.parametrize("value", [value for value in NO_SECONDS if value is not None], ids=repr)
def test_a_commands_timeout_is_seconds_within_reason(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^Bad\.go: timeout is a number of seconds from 0\.001 to 2147483, not "):
        timeout_of(value)()


@pytest.mark.parametrize("value", NO_SECONDS, ids=repr)
def test_a_jobs_times_are_seconds_within_reason(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^Job\(fetch\): timeout is a number of seconds from 0\.001 to 2147483, not "):
        Job(fetch, timeout=value)
    with pytest.raises(DeclarationError, match=r"^Job\(fetch\): lease is a number of seconds from 3 to 2147483, not "):
        Job(fetch, lease=value)
    with pytest.raises(DeclarationError, match=r"^Retry: base is a number of seconds from 0\.001 to 2147483, not "):
        Retry(base=value)
    with pytest.raises(DeclarationError, match=r"^Retry: cap is a number of seconds from 0\.001 to 2147483, not "):
        Retry(cap=value)


def test_a_lease_is_at_least_three_seconds() -> None:
    assert Job(fetch, lease=3).lease == 3
    with pytest.raises(DeclarationError, match="lease"):
        Job(fetch, lease=2.999)


@pytest.mark.parametrize("value", [0, -1, 102, 1.0, True, "4", None, math.inf], ids=repr)
def test_attempts_are_1_to_101(value: Any) -> None:
    with pytest.raises(DeclarationError, match="Retry: attempts is a whole number from 1 to 101"):
        Retry(attempts=value)


def test_the_longest_wait_is_not_shorter_than_the_first() -> None:
    assert Retry(base=2, cap=2) == Retry(attempts=4, base=2, cap=2)
    with pytest.raises(DeclarationError, match="Retry: cap, the longest wait, is not shorter than base"):
        Retry(base=2, cap=1)


@pytest.mark.parametrize("value", [0, 65, -1, 1.0, True, "1"], ids=repr)
def test_concurrency_is_1_to_64(value: Any) -> None:
    with pytest.raises(DeclarationError, match=r"^Job\(fetch\): concurrency is the attempts at once per actor, 1 to 64"):
        Job(fetch, concurrency=value)


def test_other_settings_of_a_job_are_checked() -> None:
    with pytest.raises(DeclarationError, match=r"^Job\(fetch\): isolation is 'thread' or 'process'"):
        Job(fetch, isolation="fiber")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"^Job\(fetch\): retry is a Retry\("):
        Job(fetch, retry=3)  # type: ignore[arg-type]


def test_a_function_that_no_other_process_can_import_has_none_of_its_own() -> None:
    def nested(attempt: Attempt) -> None: ...

    for function, name in ((nested, "nested"), (lambda attempt: None, "<lambda>")):
        said = rf"^Job\({name}\): a process of its own cannot import .*{name}; define it with `def` at the top of a module"
        with pytest.raises(DeclarationError, match=said):
            Job(function, isolation="process")
        Job(function)


def test_limits_are_in() -> None:
    Retry(attempts=1)
    Retry(attempts=101, base=0.001, cap=2_147_483.647)
    Job(fetch, timeout=0.001, lease=2_147_483, concurrency=64, isolation="process")
    Job(fetch, timeout=2_147_483.647, concurrency=1)


# -- payloads, events, rejections


def test_a_wrong_payload_fails_when_the_class_is_built() -> None:
    with pytest.raises(DeclarationError, match=r"^Line\.quantity: Expected `int`, got `str`"):

        class Line(Payload):
            quantity: int = "1"  # type: ignore[assignment]

    with pytest.raises(DeclarationError, match=r"^Other: "):

        class Other(Payload, colour="red"):  # type: ignore[call-arg]
            ...

    with pytest.raises(DeclarationError, match="needs a default or a default_factory"):

        class Empty(Payload):
            quantity: int = field()  # type: ignore[call-overload]


def test_a_wrong_event_fails_when_the_class_is_built() -> None:
    with pytest.raises(DeclarationError, match=r"^Happened: Fraction cannot be stored"):

        class Happened(Event):
            ratio: Fraction

    with pytest.raises(DeclarationError, match=r"^Lost: name 'Missing' is not defined"):

        class Lost(Event):
            value: Missing  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(DeclarationError, match=r"^Old: aliases is a list of names"):

        class Old(Event, aliases="Older"): ...

    with pytest.raises(DeclarationError, match=r"^Nameless: name holds ''"):

        class Nameless(Event, name=""): ...

    with pytest.raises(DeclarationError, match=r"^Moved: migrations is a list of functions"):

        class Moved(Event, migrations=[1]): ...  # type: ignore[list-item]


def test_a_wrong_rejection_fails_when_the_class_is_built() -> None:
    with pytest.raises(DeclarationError, match=r"^Refused\.ratio: .*|^Refused: Fraction cannot be stored"):

        class Refused(Rejection):
            ratio: Fraction

    with pytest.raises(DeclarationError, match=r"^Args\.args: every rejection has `args` already; name the field otherwise"):

        class Args(Rejection):
            args: str  # type: ignore[assignment]

    with pytest.raises(DeclarationError, match=r"^Fields\.fields: every rejection has `fields` already"):

        class Fields(Rejection):
            fields: int  # type: ignore[assignment]

    with pytest.raises(DeclarationError, match=r"^Hidden\._code: a field cannot start with an underscore"):

        class Hidden(Rejection):
            _code: int

    with pytest.raises(DeclarationError, match=r"^Built\.__init__: a rejection is rebuilt from its fields.*: annotate its fields"):

        class Built(Rejection):
            def __init__(self, message: str) -> None: ...

    with pytest.raises(DeclarationError, match=r"^Wrong\.code: Expected `int`, got `str`"):

        class Wrong(Rejection):
            code: int = "1"  # type: ignore[assignment]

    with pytest.raises(DeclarationError, match=r"^Old: aliases is a list of names"):

        class Old(Rejection, aliases="Older"): ...


def test_events_are_stored_under_their_name() -> None:
    class Placed(Event, name="order.placed", aliases=["OrderPlaced"], migrations=[dict]):
        order: str

    assert (Placed.event_name, Placed.event_aliases, Placed.event_migrations) == ("order.placed", ("OrderPlaced",), (dict,))
    assert Placed(order="o-1") == Placed(order="o-1")
    with pytest.raises(TypeError):
        Placed("o-1")  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Placed(order="o-1").order = "o-2"  # type: ignore[misc]


# -- what right declarations mean


class Base(Actor, access=lambda access: True, placement="tenant", max_state_bytes=1000, name="base", aliases=["older"]):
    count: int = 0
    seen: list[str] = []  # noqa: RUF012 - every actor gets its own
    fetch = Job(fetch)

    @command
    def go(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @command(creates=True, internal=True, timeout=2.5, aliases=["stop", "end"], sql=True)
    def halt(self) -> None: ...

    @query
    def value(self) -> int:
        return self.count

    @fetch.on_success
    def fetched(self, text: bytes) -> None: ...


class Sub(Base, name="sub"):
    count: int = 5
    colour: Literal["red", "blue"] = "red"

    @command
    def go(self, by: int = 2) -> int:
        return super().go(by)

    def fetched(self, text: bytes) -> None:
        super().fetched(text)


def test_the_options_are_what_the_class_says() -> None:
    found = definition(Base)
    assert (found.name, found.aliases, found.kind) == ("base", ("older",), Base)
    halt = found.members["halt"].mark
    assert (halt.creates, halt.internal, halt.timeout, halt.aliases, halt.sql) == (True, True, 2.5, ("stop", "end"), True)
    assert set(found.names) == {"go", "halt", "stop", "end", "value", "fetched"}
    assert found.names["end"] is found.members["halt"]
    assert found.creating
    assert found.members["fetched"].mark.route == "success"
    assert list(found.jobs) == ["fetch"]


def test_a_subclass_has_the_fields_commands_and_jobs_of_its_base() -> None:
    found = definition(Sub)
    assert found.fields == {"count", "seen", "colour"}
    assert found.fresh() == {"count": 5, "seen": [], "colour": "red"}
    assert definition(Base).fresh() == {"count": 0, "seen": []}
    assert set(found.members) == {"go", "halt", "value", "fetched"}
    assert found.members["go"].method is Sub.go
    assert Sub().go() == 7
    assert found.jobs["fetch"] is Base.fetch


def test_a_replaced_route_stays_a_route() -> None:
    assert definition(Sub).members["fetched"].mark.route == "success"
    assert definition(Sub).members["fetched"].method is Sub.fetched


def test_a_subclass_takes_over_what_says_who_and_where_but_no_stored_name() -> None:
    mine, base = definition(Sub).options, definition(Base).options
    assert (mine.access, mine.placement, mine.max_state_bytes) == (base.access, "tenant", 1000)
    assert (definition(Sub).name, definition(Sub).aliases, mine.singleton) == ("sub", (), False)

    class Open(Base, access=None, max_state_bytes=2000): ...

    assert (definition(Open).options.access, definition(Open).options.max_state_bytes) == (None, 2000)
    assert definition(Open).name == "Open"


def test_a_mixin_brings_fields_and_commands() -> None:
    class Named:
        label: str = "none"

        @command
        def rename(self, label: str) -> None:
            self.label = label

        def shout(self) -> str:
            return self.label.upper()

    class Thing(Named, Actor): ...

    thing = Thing(label="x")
    thing.rename("y")
    assert thing.shout() == "Y"
    assert definition(Thing).fields == {"label"}


def test_class_variables_and_plain_methods_are_no_state() -> None:
    class Thing(Actor):
        LIMIT: ClassVar[int] = 5
        other: ClassVar = object()
        plain = object()
        count: int = 0

        def helper(self) -> int:
            return self.LIMIT + self.count

        @staticmethod
        def tool() -> int:
            return 1

        @property
        def doubled(self) -> int:
            return self.count * 2

        @functools.cached_property
        def cached(self) -> int:
            return self.count * 3

    assert definition(Thing).fields == {"count"}
    thing = Thing(count=2)
    assert (thing.helper(), thing.tool(), thing.doubled, thing.cached) == (7, 1, 4, 6)
    assert definition(Thing).dump(vars(thing)) == b'{"count":2}', "what a cached property left is no state"


def test_defaults_are_not_shared() -> None:
    @dataclasses.dataclass
    class Point:
        x: list[int]

    class Tagged(Payload):
        tags: list[str] = ["new"]  # noqa: RUF012

    class Thing(Actor):
        names: list[str] = ["a"]  # noqa: RUF012
        deep: dict[str, list[int]] = {"x": [1]}  # noqa: RUF012
        pair: tuple[list[int], ...] = ([1],)
        tagged: Tagged = Tagged()
        made: list[str] = field(default_factory=lambda: ["m"])
        given: list[str] = field(default=["g"])

        @command
        def go(self, names: list[str] = ["a"], tagged: Tagged = Tagged()) -> list[str]:  # noqa: B006, B008
            names.append("b")
            tagged.tags.append("c")
            return names + tagged.tags

    one, other = Thing(), Thing()
    one.names.append("b")
    one.deep["x"].append(2)
    one.pair[0].append(2)
    one.tagged.tags.append("old")
    one.made.append("n")
    one.given.append("h")
    fresh = {"names": ["a"], "deep": {"x": [1]}, "pair": ([1],), "tagged": Tagged(), "made": ["m"], "given": ["g"]}
    assert {name: getattr(other, name) for name in fresh} == fresh
    assert definition(Thing).fresh() == fresh
    assert Tagged().tags == ["new"]
    go = definition(Thing).members["go"]
    for _ in range(2):
        assert go.call(Thing(), go.bind((), {})[1]) == ["a", "b", "new", "c"]


def test_a_class_may_be_defined_inside_a_function_with_types_of_that_function() -> None:
    class Inner(Payload):
        name: str

    class Outer(Payload):
        inner: Inner
        more: list[Inner] = []  # noqa: RUF012

    class Told(Event):
        inner: Inner

    class Refused(Rejection):
        inner: Inner

    def do(attempt: Attempt, inner: Inner) -> Outer:
        return Outer(inner=inner)

    def build() -> type[Actor]:
        class Thing(Actor):
            outer: Outer | None = None
            work = Job(do)

            @command
            def go(self, inner: Inner) -> Outer:
                self.emit(Told(inner=inner))
                self.enqueue(self.work, inner)
                return Outer(inner=inner)

            @work.on_success
            def worked(self, outer: Outer) -> None: ...

        return Thing

    thing: Any = build()()
    assert thing.go(Inner(name="x")) == Outer(inner=Inner(name="x"))
    assert Refused(inner=Inner(name="x")).inner == Inner(name="x")


def test_a_subclass_of_a_class_of_another_function_has_its_types() -> None:
    def base() -> type[Actor]:
        class Mine(Payload):
            value: int

        class Parent(Actor):
            mine: Mine | None = None

        return Parent

    class Mine(Payload):
        other: str

    class Child(base()):  # type: ignore[misc]
        ...

    assert definition(Child).load(b'{"mine":{"value":1}}', 0)["mine"].value == 1


def test_names_of_callers_do_not_stand_in_for_types() -> None:
    date = "a local text with the name of a type"
    assert date

    def build() -> None:
        module_level()

    build()


def module_level() -> None:
    class Thing(Actor):
        day: date = date(2024, 1, 1)

    assert definition(Thing).load(b'{"day":"2024-01-02"}', 0) == {"day": date(2024, 1, 2)}


def test_payloads_may_contain_themselves_and_what_comes_later() -> None:
    tree = Folder(name="a", folders=[Folder(name="b")], files=[File(size=1)])
    go = definition(Disk).members["go"]
    assert go.bind((tree,), {})[1].root == tree


class Folder(Payload):
    name: str
    folders: list[Folder] = []  # noqa: RUF012
    files: list[File] = []  # noqa: RUF012


class File(Payload):
    size: int


class Disk(Actor):
    @command
    def go(self, root: Folder) -> None: ...


def test_an_actor_class_may_be_abstract_or_generic() -> None:
    class Base(Actor, abc.ABC, Generic[T]):
        count: int = 0

        @abc.abstractmethod
        def step(self) -> int: ...

        @command
        def go(self) -> int:
            self.count += self.step()
            return self.count

    class Thing(Base[int]):
        def step(self) -> int:
            return 2

    assert Thing().go() == 2
    with pytest.raises(TypeError, match="abstract"):
        Base()


def test_a_generic_payload_may_be_an_argument() -> None:
    class Page(Payload, Generic[T]):
        items: list[T]

    globals()["Page"] = Page

    class Thing(Actor):
        @command
        def go(self, page: Page[int]) -> None: ...

    go = definition(Thing).members["go"]
    assert go.bind((Page(items=[1]),), {})[1].page.items == [1]


def test_decorators_that_keep_the_signature_are_fine() -> None:
    class Thing(Actor):
        count: int = 0

        @command
        @loose
        def inner(self, by: int) -> int:
            self.count += by
            return self.count

        @loose
        @command
        def outer(self, by: int, *, twice: bool = False) -> int:
            self.count += by
            return self.count

    assert set(definition(Thing).members) == {"inner", "outer"}
    outer = definition(Thing).members["outer"]
    assert outer.call(Thing(), outer.bind((3,), {"twice": True})[1]) == 3


def test_arguments_are_given_as_the_method_takes_them() -> None:
    class Thing(Actor):
        @command
        def go(self, a: int, /, b: int, c: int = 3, *, d: int, e: int = 5) -> list[int]:
            return [a, b, c, d, e]

    go = definition(Thing).members["go"]
    assert go.call(Thing(), go.bind((1, 2), {"d": 4})[1]) == [1, 2, 3, 4, 5]
    assert go.call(Thing(), go.bind((1,), {"d": 4, "b": 7, "e": 6, "c": 8})[1]) == [1, 7, 8, 4, 6]
    assert go.bind((1, 2), {"d": 4})[0] == b'{"a":1,"b":2,"c":3,"d":4,"e":5}'
    for args, kwargs, said in [
        ((1,), {"d": 1}, "Missing required argument 'b'"),
        ((1, 2), {}, "Missing required argument 'd'"),
        ((1, 2, 3, 4), {"d": 1}, "Extra positional arguments"),
        ((1, 2), {"d": 1, "x": 1}, "Unexpected keyword argument 'x'"),
        ((1, 2), {"d": 1, "a": 1}, "Argument 'a' given by name and position"),
    ]:
        with pytest.raises(TypeError, match=rf"Thing\.go\(\): {said}"):
            go.bind(args, kwargs)


def test_a_job_that_belongs_to_no_actor_cannot_be_asked_for() -> None:
    with pytest.raises(TypeError, match=r"this Job of fetch belongs to no actor yet: bind it in a class"):
        Job(fetch)(url="x")
