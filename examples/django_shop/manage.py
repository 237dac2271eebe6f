"""The project's commands: `python manage.py demo` shows all of it on a PostgreSQL of its own."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "akter.examples.django_shop.settings")
    execute_from_command_line(sys.argv)
