"""`manage.py demo`: three orders for five kettles, one of which its view refuses."""

from __future__ import annotations

from typing import Any

from django.core.management import BaseCommand, call_command
from django.test import Client

from akter import Runner

from ...actors import Stock, app
from ...models import Order


class Command(BaseCommand):
    """Does what users of the shop would do, and shows what became of it."""

    help = "Place three orders and show what became of them."

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate, deliver, order, and wait until the stock has decided."""
        call_command("migrate", verbosity=0)
        kettles = app.actor(Stock, "kettle")
        self.stdout.write(f"{kettles.deliver(quantity=5 - kettles.count())} kettles on the shelf")
        shop = Client()
        for customer, quantity in (("ada", 3), ("mallory", 2), ("grace", 3)):
            answer = shop.post("/orders", {"customer": customer, "sku": "kettle", "quantity": quantity})
            self.stdout.write(f"{customer} orders {quantity}: {answer.status_code}")
        with Runner(app) as runner:
            while Order.objects.filter(status="placed").exists():
                runner.wait(0.05)
        for order in Order.objects.order_by("id"):
            self.stdout.write(f"order {order.pk} of {order.customer} for {order.quantity}: {order.status}")
        self.stdout.write(f"{kettles.count()} kettles left")
        app.close()
