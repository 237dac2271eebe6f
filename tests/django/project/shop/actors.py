"""The actors, and the app that runs them."""

from __future__ import annotations

from django.conf import settings
from sqlalchemy import NullPool

from akter import Actor, Akter, command, query
from akter.contrib.django import engine, schema
from akter.errors import InsideTurn
from project.shop.models import Order


class Customer(Actor, name="Customer"):
    """What a customer ordered."""

    orders: int = 0

    @command
    def ordered(self) -> int:
        self.orders += 1
        return self.orders

    @command(sql=True)
    def look(self, alias: str, how: str = "") -> int:
        """Use Django's ORM in a turn, as one should not."""
        from django.db import transaction

        self.orders += 1
        if how == "atomic":
            with transaction.atomic(using=alias):
                return Order.objects.using(alias).count()
        if how == "swallow":
            try:
                Order.objects.using(alias).create(customer="swallowed")
            except InsideTurn:
                return 0
        if how == "write":
            Order.objects.using(alias).create(customer="written")
        if how == "iterator":
            return len(list(Order.objects.using(alias).iterator()))
        if how == "raw":
            from django.db import connections

            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT 1")
        return Order.objects.using(alias).count()

    @query
    def count(self, alias: str) -> int:
        return Order.objects.using(alias).count()


# Django drops its test database in the end, and a connection that waits in a pool would keep it from that.
pool = {"poolclass": NullPool} if settings.TESTING else {"pool_size": 4}
app = Akter(engine(**pool), actors=[Customer], schema=schema(), hint=not settings.TESTING)
