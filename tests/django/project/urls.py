"""Two views: one in a transaction of its request, and one that is not."""

from __future__ import annotations

from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from project.shop.actors import Customer, app
from project.shop.models import Order


def order(request: HttpRequest) -> HttpResponse:
    Order.objects.create(customer="ada")
    id = app.within(connection).send(app.actor(Customer, "ada").ordered)
    if "fail" in request.GET:
        raise RuntimeError("planted")
    return HttpResponse(id)


@transaction.non_atomic_requests
def loose(request: HttpRequest) -> HttpResponse:
    Order.objects.create(customer="ada")
    id = app.within(connections["orders"] if "orders" in request.GET else connection).send(app.actor(Customer, "ada").ordered)
    if "fail" in request.GET:
        raise RuntimeError("planted")
    return HttpResponse(id)


urlpatterns = [path("order", order), path("loose", loose)]
