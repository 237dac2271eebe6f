"""The application that a Django project installs."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from django.apps import AppConfig
from django.db import close_old_connections


class AkterConfig(AppConfig):
    """It opens nothing and starts nothing: what runs messages is a Runner, `manage.py akter run`."""

    name = "akter.contrib.django"
    label = "akter"
    verbose_name = "akter"

    def ready(self) -> None:
        """Guard Django's connections against use inside handlers, and close in a runner's threads what is broken or too old."""
        from akter.contrib.django import guard
        from akter.runner import lane

        guard.install()
        # There is no request whose end would do it. In a transaction, as of a TestCase, it closes nothing.
        if close_old_connections not in lane.after_work:
            lane.after_work.append(close_old_connections)
