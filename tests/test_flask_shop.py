"""The Flask example does what its page says, by the commands that it names."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

CLIENT = """
import time
from akter.examples.flask_shop import shop, web
client = web.test_client()
"""

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flask") is None, reason="Flask is not installed")


@pytest.fixture
def place(reachable: Callable[[], AbstractContextManager[Path]]) -> Iterator[Path]:
    """A directory with the shop's tables."""
    with reachable() as directory:
        made = run(directory, "-m", "flask", "--app", "akter.examples.flask_shop", "init")
        assert made.returncode == 0, made.stderr
        yield directory


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("AKTER_", "FLASK_"))}


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=100)


def said(place: Path, program: str) -> list[str]:
    ran = run(place, "-c", CLIENT + program)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_an_order_is_placed_in_a_request_and_decided_by_a_relay_in_a_process_of_its_own(place: Path) -> None:
    relay = subprocess.Popen(
        [sys.executable, "-m", "akter", "run", "akter.examples.flask_shop:shop"],
        cwd=place,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    program = """
client.post("/stock/kettle", data={"quantity": 5}, headers={"Idempotency-Key": "d-1"})
for customer in ("ada", "grace"):
    placed = client.post("/orders", data={"customer": customer, "sku": "kettle", "quantity": 3})
    print(placed.status_code, placed.json)
    end = time.monotonic() + 60
    while (status := client.get(f"/orders/{placed.json['id']}").json["status"]) == "placed" and time.monotonic() < end:
        time.sleep(0.02)
    print(status)
"""
    try:
        assert said(place, program) == ["201 {'id': 1, 'status': 'placed'}", "reserved", "201 {'id': 2, 'status': 'placed'}", "sold out"]
    finally:
        relay.send_signal(signal.SIGTERM)
        _, told = relay.communicate(timeout=60)
    assert relay.returncode == 0, told


def test_a_repeated_request_gets_the_first_answer(place: Path) -> None:
    program = """
for key in ("d-1", "d-1", "d-2"):
    print(client.post("/stock/cup", data={"quantity": 5}, headers={"Idempotency-Key": key}).json)
"""
    assert said(place, program) == ["{'left': 5}", "{'left': 5}", "{'left': 10}"]


def test_what_an_actor_refuses_is_an_answer(place: Path) -> None:
    program = """
def deliver(quantity, key):
    answer = client.post("/stock/cup", data={"quantity": quantity}, headers={"Idempotency-Key": key})
    print(answer.status_code, answer.json)

deliver(60, "d-1")
deliver(60, "d-2")
deliver(61, "d-1")
print(client.post("/stock/cup", data={"quantity": 1}).status_code)
"""
    assert said(place, program) == [
        "200 {'left': 60}",
        "409 {'error': 'ShelfIsFull', 'room': 40}",
        "422 {'error': \"the command id 'd-1' was used for deliver with other arguments: use a new id\"}",
        "400",
    ]
