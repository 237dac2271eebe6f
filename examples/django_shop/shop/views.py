"""Place an order, and list the orders."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from .actors import Stock, app
from .models import Order

BLOCKED = {"mallory"}


@csrf_exempt
def orders(request: HttpRequest) -> JsonResponse:
    """The orders; a POST places one: its row and the message to the stock commit together, since ATOMIC_REQUESTS is on."""
    if request.method != "POST":
        return JsonResponse({"orders": list(Order.objects.order_by("id").values())})
    customer, sku, quantity = request.POST["customer"], request.POST["sku"], int(request.POST.get("quantity", "1"))
    order = Order.objects.create(customer=customer, sku=sku, quantity=quantity)
    app.within(connection).send(app.actor(Stock, sku).reserve, order=order.pk, quantity=quantity)
    if customer in BLOCKED:
        # However late: neither the row nor the message will have been there.
        raise PermissionDenied
    return JsonResponse({"id": order.pk, "status": order.status}, status=201)
