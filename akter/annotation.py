"""Resolve a class's or function's annotations where they were written, also inside a function."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from akter.errors import DeclarationError

_KEPT = "__akter_hints__"


def hints(thing: type | Callable[..., Any], where: str, classes: Sequence[type] | None = None) -> dict[str, Any]:
    """The resolved annotations of a class, with those of its bases or of `classes`, or of a function.

    Raises `DeclarationError` naming `where` and the member when one cannot be resolved.
    """
    if not isinstance(thing, type):
        inner = inspect.unwrap(thing)
        return resolve(_written(thing, where), getattr(inner, "__globals__", {}), _around(inner), lambda name: f"{where}: `{name}`")
    found: dict[str, Any] = {}
    for base in reversed(thing.__mro__ if classes is None else classes):
        # A base that was made inside a function can be resolved only while that function runs, so its types are kept.
        known = vars(base).get(_KEPT)
        if known is None:
            module = getattr(sys.modules.get(base.__module__), "__dict__", {})
            known = resolve(_written(base, where), module, _around(base), lambda name: f"{where}.{name}")
            if base is thing:
                setattr(base, _KEPT, known)
        found.update(known)
    return found


def resolve(written: Mapping[str, Any], module: dict[str, Any], around: dict[str, Any], member: Callable[[str], str]) -> dict[str, Any]:
    """Resolve annotations one by one in the names of a module and of the functions around; `member` says whose it is."""
    found: dict[str, Any] = {}
    for name, hint in written.items():
        holder = type("holder", (), {"__annotations__": {name: hint}})
        try:
            found |= typing.get_type_hints(holder, module, around, include_extras=True)
        except NameError as problem:
            raise _unresolved(member(name), problem) from None
        except Exception as problem:
            raise DeclarationError(f"{member(name)}: its annotation cannot be read: {problem}") from problem
    return found


def resolve_locals(cls: type) -> None:
    """Let the annotations of a class that was made inside a function say types instead of names, as far as they are known now."""
    around = _around(cls)
    if not around:
        return
    module = getattr(sys.modules.get(cls.__module__), "__dict__", {})
    written = inspect.get_annotations(cls)
    for name, hint in written.items():
        if isinstance(hint, str):
            try:
                written[name] = resolve({name: hint}, module, {**around, cls.__name__: cls}, str)[name]
            except DeclarationError:
                continue
    cls.__annotations__ = written


def is_class_variable(hint: Any) -> bool:
    """Whether an annotation says `ClassVar`, which is no state."""
    return hint is typing.ClassVar or typing.get_origin(hint) is typing.ClassVar


def names(value: object, where: str, what: str = "aliases") -> tuple[str, ...]:
    """A sequence of names as a tuple; a single text is refused, because it would be taken apart into letters."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DeclarationError(f"{where}: {what} is a list of names, `{what}=[{value!r}]`")
    found = tuple(typing.cast("Iterable[object]", value))
    for name in found:
        check_stored_name(name, where, what)
    return typing.cast("tuple[str, ...]", found)


def check_stored_name(name: object, where: str, what: str = "name") -> None:
    """Refuse a name that cannot be a key in the database."""
    if not isinstance(name, str) or not 1 <= len(name) <= 128 or "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise DeclarationError(
            f"{where}: {what} holds {name!r}; a stored name is text of 1 to 128 characters without NUL or lone surrogates"
        )


def _written(thing: type | Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return inspect.get_annotations(thing)
    except NameError as problem:
        raise _unresolved(where, problem) from None


def _unresolved(where: str, problem: NameError) -> DeclarationError:
    return DeclarationError(
        f"{where}: {problem}. Types are resolved when the class is built, so import them at run time "
        "(not under TYPE_CHECKING) and define them above the class"
    )


def _around(thing: Any) -> dict[str, Any]:
    """The local names of the running functions that a class or function was written in, the outermost first."""
    path = getattr(thing, "__qualname__", "")
    scopes: list[dict[str, Any]] = []
    frame = sys._getframe(1) if "<locals>" in path else None
    while frame is not None:
        if path.startswith(f"{frame.f_code.co_qualname}.<locals>.") and frame.f_globals.get("__name__") == thing.__module__:
            scopes.append(frame.f_locals)
        frame = frame.f_back
    found: dict[str, Any] = {}
    for scope in reversed(scopes):
        found.update(scope)
    return found
