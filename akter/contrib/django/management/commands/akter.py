"""`manage.py akter`: the command `akter`, on a database of the settings and with the project loaded."""

# pyright: reportMissingTypeStubs=false, reportIncompatibleVariableOverride=false

from __future__ import annotations

import argparse
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS

from akter.cli import main
from akter.contrib.django import database


class Command(BaseCommand):
    """Hands everything on; `manage.py akter migrate --help` is the help of `akter migrate`."""

    help = "The command `akter`, on a database of the settings: `manage.py akter status`, `manage.py akter run project.actors:app`."
    requires_system_checks: tuple[str, ...] = ()
    requires_migrations_checks = False

    def add_arguments(self, parser: Any) -> None:
        """What stands in front of akter's own command."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="The alias of a database in the settings.")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="A command of akter's and its arguments.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it; the exit code is akter's."""
        url = database.url(options["database"]).render_as_string(hide_password=False)
        # The environment reaches the processes of `run --processes`, and an application that names no database itself.
        with _environment(AKTER_DATABASE_URL=url, AKTER_SCHEMA=database.schema()):
            try:
                main(args=options["arguments"] or ["--help"], prog_name="manage.py akter")
            except SystemExit as end:
                if end.code:
                    raise


@contextmanager
def _environment(**values: str) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
