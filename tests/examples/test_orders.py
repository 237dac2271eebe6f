"""The demo: orders that are charged by a provider that cannot be trusted to answer, while a worker is killed; and its audit."""

from __future__ import annotations

import csv
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from akter.examples.orders import gateway, provider
from akter.examples.orders.audit import Found, audit, unknowns
from akter.examples.orders.book import BadFile, Placed, read
from akter.examples.orders.shop import Line

from akter import Attempt, NotApplied

ORDERS = Path(__file__).parent.parent.parent / "examples" / "orders"
HEADER = "order,customer,item,quantity,price\n"

# What the provider does with them under seed 1: answers, refuses, is busy, is late, does not answer at first, and never answers.
PROMPT = ("o-0001", "o-0003", "o-0004", "o-0005", "o-0006", "o-0007", "o-0008", "o-0009", "o-0010", "o-0011", "o-0012")
REFUSED, BUSY, LATE, SILENT, LOST = ("o-0002", "o-0017"), ("o-0019",), ("o-0058", "o-0072"), ("o-0022",), ("o-0043",)
MUTE, CHARGING = ("o-0247",), ("o-0061",)
ALL = (*MUTE, *CHARGING, *LATE, *SILENT, *LOST, *BUSY, *REFUSED, *PROMPT)
FEW = HEADER + "".join(f"{order},{'größe' if number % 2 else 'ada'},Tee 🍵,2,{50}\n" for number, order in enumerate(ALL))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the account of an embedded PostgreSQL can reach, too."""
    directory = Path(tempfile.mkdtemp(prefix="akter-test-", dir="/var/tmp"))
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory)


def demo(place: Path, content: str, *options: str) -> subprocess.CompletedProcess[str]:
    (place / "mine.csv").write_text(content, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE")}
    command = [sys.executable, "-m", "akter", "demo", "--orders", "mine.csv", *options]
    return subprocess.run(command, cwd=place, env={**kept, "TMPDIR": str(place)}, capture_output=True, text=True)


def rows(output: str) -> dict[str, list[str]]:
    """The audit's table."""
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if line.startswith("│")]
    return {cell[0]: cell[1:] for cell in cells}


@pytest.mark.timeout(300)  # lateness, silence and a lease take their time, on a busy machine even more
def test_the_demo_kills_a_worker_and_every_order_ends_well(place: Path) -> None:
    ran = demo(place, FEW)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert ran.stdout.startswith("20 orders of 2 customers, as mine.csv has them\n")
    assert re.search(r"^the worker process \d+ was killed with SIGKILL while it waited for \d+ charges?\n", ran.stdout, re.MULTILINE)
    assert re.search(r"^the worker process \d+ takes its place\n", ran.stdout, re.MULTILINE)
    assert re.search(r"^ 100 %  20 of 20 orders have ended; the provider: \d+ requests, 17 charges, \d+ without", ran.stdout, re.MULTILINE)
    assert re.search(r"^20 orders in \d+\.\d s: \d+ turns, \d+ requests to the provider, ", ran.stdout, re.MULTILINE)
    assert rows(ran.stdout) == {
        "orders that ended": ["20", "20", "right"],
        "… and were told of their payment once": ["20", "20", "right"],
        "orders shipped, and shipments sent": ["16", "16", "right"],
        "orders charged more than once": ["0", "0", "right"],
        "orders shipped, and charged as placed": ["16", "16", "right"],
        "orders unpaid, but charged": ["0", "0", "right"],
        "orders unknown, and ambiguous dead letters": ["2", "2", "right"],
        "money ordered, in cents": ["2,000", "2,000", "right"],
        "money shipped for, and charged for sure": ["1,600", "1,600", "right"],
        "customers' own accounts": ["2", "2", "right"],
        "messages and jobs left behind": ["0", "0", "right"],
    }
    told = r"  {}: a dead letter, ambiguous after 4 attempts \(.+\); the provider's ledger says it {}\n"
    assert re.search(told.format("o-0061", "was charged"), ran.stdout)
    assert re.search(told.format("o-0247", "was not charged"), ran.stdout)
    assert ran.stdout.endswith("Nothing was lost, nothing was charged twice, and what is unknown is said to be unknown.\n")
    assert "\x1b" not in ran.stdout
    assert [path.name for path in place.iterdir()] == ["mine.csv"], "the database and the ledger are thrown away"


def placed(order: str, customer: str = "ada", price: int = 10) -> Placed:
    return Placed(order, customer, [Line(item="tea", quantity=1, price=price)])


BOOK = [placed("a"), placed("b"), placed("c", "bob", 30)]
GOOD = Found(
    status={"a": "shipped", "b": "unpaid", "c": "unknown"},
    total={"a": 10, "b": 10, "c": 30},
    charge={"a": "ch_1", "b": "", "c": ""},
    shipments={"a": "sent"},
    customers={"ada": {"ordered": 20, "paid": 10, "unpaid": 10, "unknown": 0}, "bob": {"ordered": 30, "unknown": 30}},
    routes={"a": 1, "b": 1, "c": 1},
    letters={"b": (False, 1, "declined"), "c": (True, 4, "timed out")},
    left=0,
    charges={"a": [("ch_1", "ada", 10)], "c": [("ch_2", "bob", 30)]},
)


def test_the_audit_finds_nothing_wrong_where_all_is_well() -> None:
    assert [problem for line in audit(BOOK, GOOD) for problem in line.wrong] == []
    (unknown,) = unknowns(GOOD)
    assert (unknown.order, unknown.attempts, unknown.cause, unknown.charged) == ("c", 4, "timed out", True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": {**GOOD.status, "b": "placed"}}, "b has not ended"),
        ({"routes": {**GOOD.routes, "a": 2}}, "a was not told once"),
        ({"shipments": {}}, "a has no shipment of its own"),
        ({"shipments": {"a": "packing"}}, "the shipment of a is packing"),
        ({"charges": {**GOOD.charges, "a": [("ch_1", "ada", 10), ("ch_3", "ada", 10)]}}, "a was charged 2 times"),
        ({"charges": {**GOOD.charges, "a": [("ch_1", "ada", 11)]}}, "a is wrong"),
        ({"charges": {**GOOD.charges, "b": [("ch_3", "ada", 10)]}}, "b was charged"),
        ({"letters": {"b": (True, 1, "x"), "c": (True, 4, "x")}}, "b does not match"),
        ({"total": {**GOOD.total, "c": 31}}, "there are 1 cents too many"),
        ({"charges": {"c": [("ch_2", "bob", 30)]}}, "there are 10 cents too few"),
        ({"customers": {"ada": GOOD.customers["ada"]}}, "bob's account says {'ordered': 0, 'paid': 0, 'unpaid': 0, 'unknown': 0}"),
        ({"left": 3}, "3 rows are left in the outbox"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_the_audit_says_what_is_wrong(changes: dict[str, Any], said: str) -> None:
    assert said in [problem for line in audit(BOOK, replace(GOOD, **changes)) for problem in line.wrong]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "mine.csv is empty: its first line names the columns order,customer,item,quantity,price"),
        ("order,item,quantity,price\n", "mine.csv, line 1: the column customer is missing; it takes order,customer,"),
        (HEADER, "mine.csv: there is no order in it"),
        (HEADER + ",ada,tea,1,5\n", "mine.csv, line 2: the order is missing, or longer than 200 characters"),
        (HEADER + "o,ada,tea,0,5\n", "mine.csv, line 2: the quantity is '0': it is a whole number from 1 to 10000"),
        (HEADER + "o,ada,tea,1,5.50\n", "mine.csv, line 2: the price is '5.50': it is a whole number from 1 to 1000000000 of cents"),
        (HEADER + "o,ada,tea,1,5\n\no,bob,tea,1,5\n", "mine.csv, line 4: the order 'o' was 'ada''s before: an order has one customer"),
        (HEADER + "o,ada,tea,1,5\n" * 101, "mine.csv, line 102: the order 'o' has more than 100 lines"),
        (HEADER + "o,ada,tea,1\n", "mine.csv, line 2: there are 1 values fewer than columns"),
        (HEADER + "o,ada,tea\0,1,5\n", "mine.csv, line 2: there is a NUL character in it"),
    ],
    ids=["empty", "a column", "no order", "no id", "quantity", "price", "customers", "lines", "values", "nul"],
)
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "mine.csv").write_text(content, encoding="utf-8")
    with pytest.raises(BadFile, match=re.escape(said)):
        read(tmp_path / "mine.csv")


def test_a_bad_file_ends_the_demo_before_anything_is_started(place: Path) -> None:
    ran = demo(place, HEADER + "o,ada,tea,x,5\no,ada,tea,1,-5\n")
    assert ran.stderr.splitlines() == [
        "Error: mine.csv, line 2: the quantity is 'x': it is a whole number from 1 to 10000",
        "mine.csv, line 3: the price is '-5': it is a whole number from 1 to 1000000000 of cents",
    ]
    assert (ran.stdout, ran.returncode) == ("", 1)


def test_the_committed_file_is_what_the_script_writes() -> None:
    script = runpy.run_path(str(ORDERS / "make.py"))
    assert (ORDERS / "orders.csv").read_bytes() == script["text"]().encode()
    with (ORDERS / "orders.csv").open(encoding="utf-8", newline="") as file:
        assert len({row["order"] for row in csv.DictReader(file)}) == 1_200
    assert len(read(ORDERS / "orders.csv")) == 1_200


@pytest.fixture
def ledger(tmp_path: Path) -> provider.Ledger:
    return provider.Ledger(tmp_path / "ledger.sqlite3", 1)


@pytest.mark.parametrize(
    ("order", "first", "second", "charges"),
    [
        (PROMPT[0], 201, 201, 1),
        (REFUSED[0], 402, 402, 0),
        (BUSY[0], 503, 201, 1),
        (LATE[0], 201, 201, 1),
        (SILENT[0], None, 201, 1),
        (LOST[0], None, 201, 1),
        (MUTE[0], None, None, 0),
        (CHARGING[0], None, None, 1),
    ],
    ids=["prompt", "refused", "busy", "late", "silent", "lost", "mute", "mute, charging"],
)
def test_the_provider_treats_an_order_as_its_seed_says_and_charges_a_key_once(
    ledger: provider.Ledger, order: str, first: int | None, second: int | None, charges: int
) -> None:
    answers = [ledger.take("key", order, "ada", 5, worker=1)[1] for _ in range(3)]
    assert [answer.status for answer in answers] == [first, second, second]
    assert ledger._one("SELECT count(*) FROM charges") == (charges,)
    if second == 201:
        assert answers[1].body == answers[2].body == {"id": "ch_000001"}
    assert (answers[0].after == provider.LATE) == (order in (*LATE, *SILENT, *LOST, *MUTE, *CHARGING))


@pytest.fixture
def serving(ledger: provider.Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    with provider.Server(("127.0.0.1", 0), provider.handler(ledger)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("SHOP_PROVIDER", f"127.0.0.1:{server.server_address[1]}")
        yield server
        server.shutdown()
        thread.join(10)


def test_a_charge_gets_the_first_charge_again_under_its_job_id(serving: ThreadingHTTPServer) -> None:
    answers = [gateway.charge_card(Attempt(job_id=job), PROMPT[0], "ada", 5) for job in ("one", "one", "two")]
    assert answers == ["ch_000001", "ch_000001", "ch_000002"]


def test_only_a_refusal_and_a_busy_provider_say_that_nothing_was_charged(
    serving: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "PATIENCE", 20.0)
    with pytest.raises(NotApplied, match="the card was declined") as refused:
        gateway.charge_card(Attempt(job_id="a"), REFUSED[0], "ada", 5)
    with pytest.raises(NotApplied, match="the provider is busy") as busy:
        gateway.charge_card(Attempt(job_id="b"), BUSY[0], "ada", 5)
    assert (refused.value.final, busy.value.final) == (True, False)
    monkeypatch.setattr(gateway, "PATIENCE", 0.1)
    with pytest.raises(TimeoutError):
        gateway.charge_card(Attempt(job_id="c"), MUTE[0], "ada", 5)


def test_a_request_that_is_no_charge_is_not_answered_with_one(serving: ThreadingHTTPServer) -> None:
    connection = HTTPConnection("127.0.0.1", serving.server_address[1], timeout=5)
    connection.request("GET", "/charges")
    assert connection.getresponse().status == 501
    connection.close()
