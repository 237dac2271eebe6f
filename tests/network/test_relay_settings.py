"""Runners on databases whose defaults are not PostgreSQL's, and beside sessions that hold up who notifies."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from akter import Actor, Akter, Runner, command
from akter.operating import Operator
from akter.testing import inspect, settle


def _defaults() -> dict[str, dict[str, str]]:
    spec = importlib.util.spec_from_file_location("akter_tests_network_settings", Path(__file__).with_name("test_settings.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, dict[str, str]] = module.DEFAULTS
    return found


DEFAULTS = _defaults()


class Box(Actor):
    """Keeps letters and passes them on."""

    letters: list[str] = []  # noqa: RUF012 - a state field's default is copied

    @command
    def keep(self, letter: str) -> None:
        self.letters = [*self.letters, letter]

    @command
    def pass_on(self, letter: str, to: str) -> None:
        self.send(self.actor(Box, to).keep, letter)


@pytest.mark.parametrize("settings", DEFAULTS.values(), ids=DEFAULTS)
def test_runners_do_not_depend_on_the_databases_defaults(
    akter_app: Callable[..., Akter], make_engine: Callable[..., Any], akter_database: str, configure: Any, settings: dict[str, str]
) -> None:
    configure(settings)
    apps = [akter_app(Box, engine=make_engine(akter_database, pool_size=8)) for _ in range(2)]
    words = "\\ ' \" $1 %s ü 𝄞 \\x41 {} ,"
    with Runner(apps[0], poll=0.05), Runner(apps[1], poll=0.05) as runner:
        for number in range(20):
            apps[0].actor(Box, f"from-{number}").pass_on(words, f"to-{number}")
        with apps[0].engine.connect() as connection, connection.begin():
            # Of the application's own, so its defaults hold; where they forbid writing, it says so.
            connection.exec_driver_sql("SET TRANSACTION READ WRITE")
            apps[0].within(connection).send(apps[0].actor(Box, "lent").keep, words)
        runner.drain()
        assert Operator(apps[0].engine, schema=apps[0].schema).health().good
    settle(apps[1])
    boxes = [f"to-{number}" for number in range(20)] + ["lent"]
    kept = [inspect(apps[1], apps[1].actor(Box, box)).state for box in boxes]
    assert kept == [{"letters": [words]}] * 21
