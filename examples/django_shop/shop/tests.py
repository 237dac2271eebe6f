"""How to test it: what a view commits, and what the relay makes of it."""

from __future__ import annotations

from django.db import connection
from django.test import TestCase, TransactionTestCase

from akter.testing import settle

from .actors import Stock, app
from .models import Order


class PlacingAnOrder(TestCase):
    """A TestCase rolls back what it did, messages too, and sees them in between."""

    def messages(self) -> list[tuple[str, str]]:
        """Who gets which command."""
        with connection.cursor() as cursor:
            cursor.execute(f'SELECT target_id, command FROM "{app.schema}".actor_outbox')
            return list(cursor.fetchall())

    def test_the_message_is_there_with_the_row(self) -> None:
        """Both are in the transaction of the request."""
        answer = self.client.post("/orders", {"customer": "ada", "sku": "kettle"})
        assert answer.status_code == 201
        assert Order.objects.get().status == "placed"
        assert self.messages() == [("kettle", "reserve")]

    def test_neither_is_there_when_the_view_refuses(self) -> None:
        """The request's savepoint takes both back."""
        answer = self.client.post("/orders", {"customer": "mallory", "sku": "kettle"})
        assert answer.status_code == 403
        assert Order.objects.count() == 0
        assert self.messages() == []


class ReservingTheStock(TransactionTestCase):
    """Turns run on connections of their own, so they need what is committed; each test has actors of its own."""

    def test_the_stock_decides(self) -> None:
        """The first order gets it, the second does not."""
        app.actor(Stock, "teapot").deliver(quantity=1)
        for customer in ("ada", "grace"):
            self.client.post("/orders", {"customer": customer, "sku": "teapot"})
            settle(app)
        assert list(Order.objects.order_by("id").values_list("status", flat=True)) == ["reserved", "sold out"]
        assert app.actor(Stock, "teapot").count() == 0
