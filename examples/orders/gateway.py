"""How the shop charges a customer: one HTTP request, which may never be answered."""

from __future__ import annotations

import json
import os
from http.client import HTTPConnection

from akter import Attempt, NotApplied

PATIENCE = 1.5
"""Seconds that the provider gets to answer."""


def charge_card(attempt: Attempt, order: str, customer: str, amount: int) -> str:
    """Charge the customer, and return the charge's id. It may run more than once, so the job's id is the provider's idempotency key.

    A refusal and a "busy" say that nothing was charged. No answer says nothing, and is not caught here: so it counts as unknown.
    """
    asked = {"order": order, "customer": customer, "amount": amount, "worker": os.getpid()}
    host, _, port = os.environ["SHOP_PROVIDER"].partition(":")
    connection = HTTPConnection(host, int(port), timeout=max(0.001, min(PATIENCE, attempt.remaining())))
    try:
        connection.request("POST", "/charges", json.dumps(asked), {"Idempotency-Key": attempt.job_id})
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status == 201:
        return str(answer["id"])
    if response.status == 402:
        raise NotApplied(answer["reason"], final=True)
    if response.status == 503:
        raise NotApplied(answer["reason"])
    raise RuntimeError(f"the provider answered {response.status}")
