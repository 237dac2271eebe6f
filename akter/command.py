"""`@command` and `@query`, and what a marked method is: a stored name, arguments and a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, TypeVar, overload

import msgspec

from akter import annotation
from akter.codec import Codec, Upcast, chain, check_defaults, upcast
from akter.digest import payload_hash
from akter.errors import DeclarationError
from akter.payload import default_of

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__akter_mark__"

MAX_SECONDS = 2_147_483.647
"""The longest time limit: PostgreSQL counts milliseconds in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What a decorator wrote on a method."""

    kind: Literal["command", "query", "subscription"] = "command"
    creates: bool = False
    internal: bool = False
    timeout: float | None = None
    aliases: tuple[str, ...] = ()
    sql: bool = False
    migrations: tuple[Upcast, ...] = ()
    route: str | None = None

    def build(self, owner: str, name: str, method: Callable[..., Any]) -> Command:
        """What the marked method is."""
        return Command(owner, name, method, self)

    @property
    def hidden(self) -> bool:
        """Whether only akter calls the method."""
        return self.route is not None or self.kind == "subscription"


@overload
def command(method: F, /) -> F: ...
@overload
def command(
    *,
    creates: bool = ...,
    internal: bool = ...,
    timeout: float | None = ...,
    aliases: Sequence[str] = ...,
    sql: bool = ...,
    migrations: Sequence[Upcast] = ...,
) -> Callable[[F], F]: ...
def command(
    method: Any = None,
    /,
    *,
    creates: bool = False,
    internal: bool = False,
    timeout: float | None = None,
    aliases: Sequence[str] = (),
    sql: bool = False,
    migrations: Sequence[Upcast] = (),
) -> Any:
    """Declare a method that changes its actor: one call is one turn, one transaction.

    `creates`: the actor exists only from this command's first success on. `internal`: only the deployment's own code may call it.
    `timeout`: the longest execution in seconds instead of the app's. `aliases`: earlier names of the method in stored messages.
    `sql`: it uses `self.connection` or `self.session`. `migrations`: functions that bring the arguments of messages that were sent by
    older code up to date, a mapping from names to values each.
    """
    mark = Mark(
        creates=creates,
        internal=internal,
        timeout=timeout,
        aliases=annotation.names(aliases, "@command"),
        sql=sql,
        migrations=chain(migrations, "@command"),
    )
    return _apply(mark, method)


@overload
def query(method: F, /) -> F: ...
@overload
def query(*, timeout: float | None = ..., sql: bool = ...) -> Callable[[F], F]: ...
def query(method: Any = None, /, *, timeout: float | None = None, sql: bool = False) -> Any:
    """Declare a method that only reads: it sees committed state, takes no lock and leaves no receipt.

    `timeout`: the longest execution in seconds instead of the app's. `sql`: it uses `self.connection` or `self.session`.
    """
    return _apply(Mark(kind="query", timeout=timeout, sql=sql), method)


def _apply(mark: Mark, method: Any) -> Any:
    def decorate(method: Any) -> Any:
        name = getattr(method, "__qualname__", repr(method))
        if not isinstance(method, FunctionType):
            raise DeclarationError(f"@{mark.kind} on {name}: it goes on a plain method with `self`")
        if hasattr(method, MARK):
            raise DeclarationError(f"{name} is already a {getattr(method, MARK).kind}: use one decorator")
        setattr(method, MARK, mark)
        return method

    return decorate if method is None else decorate(method)


def check_seconds(value: object, where: str, least: float = 0.001) -> None:
    """Refuse what is no number of seconds from `least` to 2147483; raises `DeclarationError`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MAX_SECONDS:
        raise DeclarationError(f"{where} is a number of seconds from {least:g} to 2147483, not {value!r}")


class Command:
    """A built command, query or job function: validates arguments and results, and knows its stored name."""

    __slots__ = ("arguments", "codec", "keywords", "mark", "method", "name", "result", "where")

    def __init__(
        self,
        owner: str,
        name: str,
        method: Callable[..., Any],
        mark: Mark,
        *,
        what: str = "",
        arguments: type[msgspec.Struct] | None = None,
    ) -> None:
        self.name, self.method, self.mark, self.where = name, method, mark, f"{owner}.{name}"
        _check(self.where, name, method, mark, what or mark.kind)
        found = annotation.hints(method, self.where)
        self.arguments, self.keywords = (arguments, ()) if arguments is not None else _arguments(self.where, method, found)
        self.codec: Codec[Any] = Codec(self.arguments, f"{self.where}()")
        check_defaults(self.arguments, self.where)
        if "return" not in found:
            raise DeclarationError(f"{self.where}: annotate what it returns, `-> None` when nothing")
        self.result: Codec[Any] = Codec(found["return"], f"the result of {self.where}()")

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, Any]:
        """The stored bytes of a call's arguments and the validated arguments.

        Raises `TypeError` for wrong argument names and `PayloadInvalid` for wrong values.
        """
        try:
            given = self.arguments(*args, **kwargs)
        except TypeError as problem:
            raise TypeError(f"{self.where}(): {problem}") from None
        return self.codec.round_trip(given)

    @property
    def version(self) -> int:
        """What is stored beside arguments of this code: how many steps its migration chain has."""
        return len(self.mark.migrations)

    def load(self, raw: bytes, version: int) -> Any:
        """Arguments from their stored form of any version; raises `PayloadInvalid` for a newer version, or one that cannot be read."""
        return self.codec.decode(upcast(raw, version, self.mark.migrations, self.codec.where))

    def hash(self, arguments: msgspec.Struct) -> str:
        """What a second use of the same command id is compared by."""
        return payload_hash(arguments)

    def call(self, actor: Any, arguments: Any) -> Any:
        """Call the method with decoded arguments."""
        if not self.keywords:
            return self.method(actor, *msgspec.structs.astuple(arguments))
        values = msgspec.structs.asdict(arguments)
        named = {key: values.pop(key) for key in self.keywords}
        return self.method(actor, *values.values(), **named)


def _check(where: str, name: str, method: Callable[..., Any], mark: Mark, what: str) -> None:
    if name.startswith("_"):
        raise DeclarationError(f"{where}: a {what} has a public name, so it cannot start with an underscore")
    for function in (method, inspect.unwrap(method)):
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise DeclarationError(f"{where}: a {what} is a plain synchronous function, neither async nor a generator")
    if mark.timeout is not None:
        check_seconds(mark.timeout, f"{where}: timeout")


def _arguments(where: str, method: Callable[..., Any], found: dict[str, Any]) -> tuple[type[msgspec.Struct], tuple[str, ...]]:
    """A struct of the method's arguments, and the names of those that are passed by keyword."""
    positional: list[Any] = []
    keyword: list[Any] = []
    parameters = list(inspect.signature(method).parameters.values())
    if not parameters or parameters[0].kind not in (parameters[0].POSITIONAL_ONLY, parameters[0].POSITIONAL_OR_KEYWORD):
        raise DeclarationError(f"{where}: the first parameter is `self`, the actor")
    for parameter in parameters[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise DeclarationError(f"{where}: arguments are stored by name, so `{stars}{parameter.name}` cannot be used; name each one")
        if parameter.name not in found:
            raise DeclarationError(f"{where}: annotate the parameter `{parameter.name}` with its type")
        declared: Any = (parameter.name, found[parameter.name])
        if parameter.default is not parameter.empty:
            declared = (*declared, default_of(parameter.default))
        (keyword if parameter.kind is parameter.KEYWORD_ONLY else positional).append(declared)
    title, names = where.replace(".", "_"), tuple(declared[0] for declared in keyword)
    try:
        # An argument that newer code sends and this code does not take is refused, instead of being done without.
        arguments = msgspec.defstruct(title, positional, module=method.__module__, forbid_unknown_fields=True)
        if keyword:
            arguments = msgspec.defstruct(title, keyword, bases=(arguments,), kw_only=True, module=method.__module__)
    except TypeError as problem:
        raise DeclarationError(f"{where}: {problem}") from problem
    return arguments, names
