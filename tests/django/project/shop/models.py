"""A business row."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """One order."""

    customer = models.CharField(max_length=100)
