"""akter in a Django project: `"akter.contrib.django"` in INSTALLED_APPS.

It brings akter's schema as migrations, `manage.py akter`, an engine for a database of the settings, and a guard against queries of
Django's inside handlers. Messages are sent in a block of Django's own:

    with transaction.atomic():
        order.save()
        app.within(connection).send(app.actor(Order, str(order.pk)).place)

`AKTER_SCHEMA` in the settings names the PostgreSQL schema of akter's tables, "akter" unless given.
"""

from __future__ import annotations

from akter.contrib.django.database import engine, schema, url

__all__ = ["engine", "schema", "url"]
