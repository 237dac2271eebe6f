"""Resolve a class's or function's annotations where they were written, also inside a function."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

from akter.errors import DeclarationError


def hints(thing: type | Callable[..., Any], where: str) -> dict[str, Any]:
    """The resolved annotations of a class (with its bases') or function.

    Raises `DeclarationError` naming `where` when a name cannot be resolved.
    """
    try:
        return typing.get_type_hints(thing, localns=_locals_of(thing.__module__), include_extras=True)
    except NameError as problem:
        raise DeclarationError(
            f"{where}: {problem}. Types are resolved when the class is built, so import them at run time "
            "(not under TYPE_CHECKING) and define them above the class"
        ) from None
    except TypeError as problem:
        raise DeclarationError(f"{where}: an annotation cannot be read: {problem}") from None


def own(cls: type) -> dict[str, Any]:
    """The names a class itself annotates, in order."""
    return inspect.get_annotations(cls)


def is_class_variable(hint: Any) -> bool:
    """Whether an annotation says `ClassVar`, which is no state."""
    return hint is typing.ClassVar or typing.get_origin(hint) is typing.ClassVar


def _locals_of(module: str) -> dict[str, Any]:
    """The local names around the class statement that runs now, so that classes inside functions work too."""
    names: list[dict[str, Any]] = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            names.append(dict(frame.f_locals))
        elif names:
            break
        frame = frame.f_back  # type: ignore[assignment]
    found: dict[str, Any] = {}
    for scope in reversed(names):
        found.update(scope)
    return found
