"""What the shop itself keeps: the orders."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """A customer's order; the stock decides its status, in its own transaction."""

    customer = models.CharField(max_length=100)
    sku = models.CharField(max_length=100)
    quantity = models.PositiveIntegerField()
    status = models.CharField(max_length=20, default="placed")
