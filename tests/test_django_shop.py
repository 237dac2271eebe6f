"""The Django example does what its pages say, by the commands that they name."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MANAGE = ROOT / "examples" / "django_shop" / "manage.py"
ORDER = """
import time
from django.test import Client
from akter.examples.django_shop.shop.models import Order
from akter.examples.django_shop.shop.actors import Stock, app
app.actor(Stock, "cup").deliver(quantity=1)
Client().post("/orders", {"customer": "ada", "sku": "cup"})
end = time.monotonic() + 60
while (status := Order.objects.get(sku="cup").status) == "placed" and time.monotonic() < end:
    time.sleep(0.02)
print("the order is", status)
"""

pytestmark = pytest.mark.skipif(importlib.util.find_spec("django") is None, reason="Django is not installed")


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("AKTER_", "DJANGO_"))}


def manage(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MANAGE), *arguments], cwd=place, env=ENVIRONMENT, capture_output=True, text=True, timeout=100
    )


def test_a_row_and_its_message_commit_together_and_the_stock_decides(place: Path) -> None:
    ran = manage(place, "demo")
    assert (ran.returncode, ran.stdout) == (
        0,
        "5 kettles on the shelf\n"
        "ada orders 3: 201\n"
        "mallory orders 2: 403\n"
        "grace orders 3: 201\n"
        "order 1 of ada for 3: reserved\n"
        "order 3 of grace for 3: sold out\n"
        "2 kettles left\n",
    ), ran.stderr


def test_its_own_tests_pass(place: Path) -> None:
    ran = manage(place, "test", "akter.examples.django_shop.shop.tests")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Ran 3 tests" in ran.stderr
    ran = manage(place, "makemigrations", "--check", "--dry-run")
    assert (ran.returncode, ran.stdout) == (0, "No changes detected\n"), ran.stderr


def test_the_relay_delivers_in_a_process_of_its_own_until_it_is_asked_to_stop(place: Path) -> None:
    assert manage(place, "migrate").returncode == 0
    relay = subprocess.Popen([sys.executable, str(MANAGE), "relay"], cwd=place, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        ran = manage(place, "shell", "-c", ORDER)
        assert ran.returncode == 0, ran.stderr
        assert "the order is reserved\n" in ran.stdout
    finally:
        relay.send_signal(signal.SIGTERM)
        _, said = relay.communicate(timeout=60)
    assert relay.returncode == 0, said
    assert re.search(r"serves Stock\n", said)
    assert "akter: stopped; 1 delivered, 0 given back\n" in said
