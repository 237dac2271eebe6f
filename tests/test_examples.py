"""The examples run as a reader runs them, and the demo's audit tells when the database is not what the file says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
from akter.examples.ledger.transfers import BadFile, read

from akter.embedded import Server

HEADER = "kind,id,debit,credit,amount,reference\n"
FORTY = HEADER + "".join(
    [f"open,a-{n},,a-{n},{n}00,Größe {n}\n" for n in range(1, 6)]
    + [f"transfer,t-{n},a-{n % 4 + 2},a-1,2,\n" for n in range(40)]
    + ["transfer,never,a-1,a-2,1501,more than there is\n"]
)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Where there is no terminal, and no colour is asked for.
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE")}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env={**kept, "TMPDIR": str(cwd)}, capture_output=True, text=True)


def demo(place: Path, content: str | bytes, *options: str) -> subprocess.CompletedProcess[str]:
    (place / "mine.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return run("-m", "akter.examples.ledger", "--transfers", "mine.csv", *options, cwd=place)


@pytest.fixture(scope="module")
def finished(reachable: Callable[[], AbstractContextManager[Path]]) -> Iterator[Path]:
    """A place with the data of a demo that ended well."""
    with reachable() as directory:
        ran = demo(directory, FORTY, "--data", "data")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        yield directory


def rows(output: str) -> dict[str, list[str]]:
    """The audit's table."""
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if line.startswith("│")]
    return {cell[0]: cell[1:] for cell in cells}


def test_the_counter_goes_on_where_it_was(place: Path) -> None:
    counter = Path(sys.modules["akter"].__file__ or "").parent.parent / "examples" / "counter.py"
    for expected in ("2\n", "4\n"):
        ran = run(str(counter), cwd=place)
        assert (ran.stdout, ran.returncode) == (expected, 0), ran.stderr


def test_the_demo_kills_a_worker_and_finds_nothing_wrong(place: Path) -> None:
    ran = demo(place, FORTY)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stderr == ""
    assert "41 transfers between 5 accounts, as mine.csv has them\n" in ran.stdout
    assert re.search(r"the worker process \d+ was killed with SIGKILL after \d+ of its 20 transfers\n", ran.stdout)
    assert re.search(
        r"the worker process \d+ did them all again: [1-9]\d* answers? replayed, \d+ turns? new, .* \d+\.\d s after", ran.stdout
    )
    assert re.search(r"^81 turns in \d+\.\d s: [\d,]+ a second", ran.stdout, re.MULTILINE)
    assert " 100 %  41 of 41 transfers\n" in ran.stdout
    assert rows(ran.stdout) == {
        "accounts": ["5", "5", "right"],
        "receipts, one per command": ["86", "86", "right"],
        "transfers done, in whatever order": ["40", "40", "right"],
        "transfers refused, in whatever order": ["1", "1", "right"],
        "transfers that the order decides": ["0", "0", "right"],
        "balances as the transfers leave them": ["5", "5", "right"],
        "accounts below zero": ["0", "0", "right"],
        "money, in cents": ["1,500", "1,500", "right"],
    }
    assert ran.stdout.endswith("Nothing was lost, and nothing was doubled.\n")
    assert "\x1b" not in ran.stdout
    assert [path.name for path in place.iterdir()] == ["mine.csv"], "the database is thrown away"


def test_a_second_run_on_the_same_data_is_answered_from_the_first(finished: Path, place: Path) -> None:
    shutil.copytree(finished / "data", place / "data")
    ran = demo(place, FORTY, "--data", "data", "--threads", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 accounts opened, 5 accounts open since before\n" in ran.stdout
    assert "40 answers replayed, 0 turns new" in ran.stdout
    assert "\n0 turns in " in ran.stdout
    other = demo(place, HEADER + "open,b,,b,1,\n", "--data", "data")
    assert (other.returncode, other.stderr) == (1, "Error: data holds the accounts and transfers of another file: name a new directory\n")
    other = demo(place, FORTY.replace("a-1,2,", "a-1,3,"), "--data", "data")
    assert (other.returncode, other.stderr) == (1, "Error: data holds the accounts and transfers of another file: name a new directory\n")


def test_what_the_order_decides_is_audited_too(place: Path) -> None:
    crowd = "".join(f"transfer,{n},x,y,60,\n" for n in range(8)) + "transfer,self,y,y,1,\n"
    ran = demo(place, HEADER + "open,x,,x,100,\nopen,y,,y,0,\n" + crowd)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert rows(ran.stdout)["transfers that the order decides"] == ["9", "9", "right"]


@pytest.mark.parametrize(
    ("statement", "wrong", "said"),
    [
        (
            """UPDATE actor_state SET value = jsonb_set(value::jsonb, '{balance}', '521') WHERE actor_id = 'a-5'""",
            {"balances as the transfers leave them", "money, in cents"},
            "a-5 has 521 instead of 480",
        ),
        (
            """DELETE FROM actor_receipts WHERE command_id LIKE '%:t-3:debit'""",
            {"balances as the transfers leave them", "money, in cents"},
            "a-5 has 478 instead of 480",
        ),
        (
            """DELETE FROM actor_receipts WHERE command_id LIKE '%:t-3:credit'""",
            {"balances as the transfers leave them", "money, in cents"},
            "a-1 has 182 instead of 180",
        ),
        (
            """INSERT INTO actor_receipts SELECT bucket, routing_key, tenant_id, actor_type, actor_id, 'u:ledger:t-99:debit', command,
               payload_hash, caller_key, outcome, expires_at_ms, started_at_ms, committed_at_ms
               FROM actor_receipts WHERE command_id LIKE '%:t-3:debit'""",
            {"receipts, one per command"},
            "t-99:debit has a receipt and is not in the file",
        ),
        (
            """UPDATE actor_receipts SET outcome = (SELECT outcome FROM actor_receipts WHERE command_id LIKE '%:never:debit')
               WHERE command_id LIKE '%:t-3:debit'""",
            {"receipts, one per command", "transfers done, in whatever order", "balances as the transfers leave them"},
            "t-3 was not done",
        ),
    ],
    ids=["a balance", "a debit done twice", "a credit done twice", "a foreign receipt", "a refusal without reason"],
)
def test_the_audit_does_not_lie(finished: Path, place: Path, statement: str, wrong: set[str], said: str) -> None:
    shutil.copytree(finished / "data", place / "data")
    with Server(place / "data") as server, psycopg.connect(server.url("akter", driver="")) as connection:
        connection.execute("SET search_path TO akter")
        assert connection.execute(statement.encode()).rowcount == 1
    ran = demo(place, FORTY, "--data", "data")
    assert {what for what, cells in rows(ran.stdout).items() if cells[-1] == "WRONG"} == wrong, ran.stdout + ran.stderr
    assert f"  {said}\n" in ran.stdout
    assert ran.stdout.endswith("The database is not what the file says.\n")
    assert ran.returncode == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "mine.csv is empty: its first line names the columns kind,id,debit,credit,amount,reference"),
        ("kind,id,debit,credit,reference\n", "mine.csv, line 1: the column amount is missing; it takes kind,id,"),
        ("kind;id;debit;credit;amount;reference\n", "mine.csv, line 1: the column kind is missing; it takes kind,id,"),
        (HEADER, "mine.csv: no account is opened"),
        (HEADER + "open,a,,a,-1,\n", "mine.csv, line 2: the amount is '-1': it is a whole number of cents, from 0 to"),
        (HEADER + "open,a,,a,1,\ntransfer,t,a,a,0,\n", "mine.csv, line 3: the amount is '0': it is a whole number of cents, from 1 to"),
        (HEADER + "open,a,,a,1.50,\n", "mine.csv, line 2: the amount is '1.50'"),
        (HEADER + "open,a,,a," + "9" * 5000 + ",\n", "mine.csv, line 2: the amount is '999"),
        (HEADER + "open,a,,a,1,\n\ntransfer,t,a,b,1,\n", "mine.csv, line 4: the account 'b' is unknown: no row opens it"),
        (HEADER + "open,a,,a,1,\nopen,a,,a,1,\n", "mine.csv, line 3: the account 'a' was in line 2 already"),
        (HEADER + "open,a,,a,1,\ntransfer,t,a,a,1,\ntransfer,t,a,a,1,\n", "mine.csv, line 4: the transfer 't' was in line 3 already"),
        (HEADER + "move,a,,a,1,\n", "mine.csv, line 2: the kind is 'move': it is open or transfer"),
        (HEADER + "open,a,,a,1\n", "mine.csv, line 2: there are 1 values fewer than columns"),
        (HEADER + 'open,a,,a,1,"\n', "mine.csv, line 2: unexpected end of data"),
        (HEADER + "open,a,,a,1,\0\n", "mine.csv, line 2: there is a NUL character in it"),
        ((HEADER + "open,a,,a,1,Grün\n").encode("latin-1"), "mine.csv, line 2: this is not UTF-8; save the file as UTF-8"),
        (HEADER + "open,,,,1,\n" * 12, "and 3 more"),
    ],
)
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, content: str | bytes, said: str) -> None:
    (tmp_path / "mine.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadFile, match=re.escape(said)):
        read(tmp_path / "mine.csv")


def test_a_bad_file_ends_the_demo_before_anything_is_started(place: Path) -> None:
    ran = demo(place, HEADER + "open,a,,a,1,\ntransfer,t,a,b,1,\ntransfer,t,a,a,-1,\n")
    assert ran.stderr.splitlines() == [
        "Error: mine.csv, line 3: the account 'b' is unknown: no row opens it",
        "mine.csv, line 4: the amount is '-1': it is a whole number of cents, from 1 to 1000000000000000",
        "mine.csv, line 4: the transfer 't' was in line 3 already",
    ]
    assert (ran.stdout, ran.returncode) == ("", 1)
    missing = run("-m", "akter.examples.ledger", "--transfers", "nowhere.csv", cwd=place)
    assert (missing.stdout, missing.returncode) == ("", 2)
    assert "File 'nowhere.csv' does not exist" in missing.stderr


def test_a_byte_order_mark_and_more_columns_do_no_harm(place: Path) -> None:
    ran = demo(place, b"\xef\xbb\xbf" + b"note,kind,id,debit,credit,amount,reference\r\n,open,a,,a,5,\r\n,transfer,t,a,a,5,\r\n")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_missing_extra_is_named(place: Path) -> None:
    hidden = "import sys; sys.modules['rich'] = None; from akter.cli import main; main(['demo'])"
    ran = run("-c", hidden, cwd=place)
    assert (ran.returncode, ran.stderr) == (1, "Error: the demo prints with rich, which is not installed: pip install 'akter[embedded]'\n")


def test_a_message_and_a_timer_arrive_and_a_second_run_gets_the_first_refusal(place: Path) -> None:
    script = str(Path(__file__).parent.parent / "examples" / "shipping.py")
    first, second = run(script, cwd=place), run(script, cwd=place)
    ended = "o-1 is paid and ready for ada; o-2 is expired\n"
    assert (first.stdout, first.returncode) == (ended, 0), first.stderr
    assert (second.stdout, second.returncode) == (
        "The order was placed before. (order='o-1')\nThe order was placed before. (order='o-2')\n" + ended,
        0,
    ), second.stderr
