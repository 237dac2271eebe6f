"""The application that a Django project installs."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from django.apps import AppConfig


class AkterConfig(AppConfig):
    """It opens nothing and starts nothing: what runs messages is a Runner, `manage.py akter run`."""

    name = "akter.contrib.django"
    label = "akter"
    verbose_name = "akter"

    def ready(self) -> None:
        """Guard Django's connections against use inside handlers."""
        from akter.contrib.django import guard

        guard.install()
