"""The application that a command works with, given as module:attribute."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from inspect import signature
from typing import Any

import click

from akter.app import Akter


def load(name: str) -> Akter:
    """The Akter at `module:attribute`, or what a function there returns; raises `click.UsageError` naming what is missing."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise click.UsageError(f"{name!r} is not module:attribute, such as shop.actors:app")
    found: Any = _module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = ", ".join(sorted(name for name, value in vars(found).items() if isinstance(value, Akter)))
            hint = f": there is {known}" if known else ""
            raise click.UsageError(f"{module} has no {attribute!r}{hint}")
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Akter | type):
        try:
            signature(found).bind()
        except TypeError:
            raise click.UsageError(f"{name} is a function with arguments: give one that takes none and returns an Akter") from None
        found = found()
    if not isinstance(found, Akter):
        said = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise click.UsageError(f"{name} is {said}, not an Akter: give the object that Akter(...) made, or a function that returns it")
    return found


def _module(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is not None and (name == problem.name or name.startswith(problem.name + ".")):
            raise click.UsageError(f"there is no module {name!r} here: run akter where your application is importable") from None
        raise
    except ValueError:
        raise click.UsageError(f"{name!r} is not the name of a module") from None
