"""`manage.py relay`: deliver messages until a signal comes. It is `manage.py akter run` with this project's app."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, call_command


class Command(BaseCommand):
    """Runs the relay of the shop."""

    help = "Deliver messages until a signal comes."

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until then; the exit codes are those of `akter run`."""
        call_command("akter", "run", "akter.examples.django_shop.shop.actors:app")
