"""The payment provider: a process of its own, with a ledger of its own, that is slow and does not always answer.

    python -m akter.examples.orders.provider LEDGER SEED

What it does with an order depends on the seed and the order alone. Like a real one it honours `Idempotency-Key`: a key that it has charged
under gets the first charge's id again, and never a second charge. It ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
import time
from bisect import bisect_right
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

SHARES = (
    ("busy", 0.04),
    ("late", 0.03),
    ("silent", 0.02),
    ("lost", 0.02),
    ("mute", 0.005),
    ("mute, charging", 0.005),
    ("refused", 0.06),
    ("prompt", 0.82),
)
"""How it treats which share of the orders. busy: 503 at first. late: charges, and answers when nobody waits. silent: charges, and does not
answer at first. lost: does nothing at first. mute: never answers, without or after charging. refused: 402. prompt: 201, slowly."""

LATE = 2.5
"""Seconds after which a late answer comes, and a connection without an answer is closed."""
SLOW = (0.05, 0.35)

TABLES = """
    CREATE TABLE charges (id TEXT PRIMARY KEY, key TEXT NOT NULL UNIQUE, order_id TEXT NOT NULL, customer TEXT NOT NULL,
                          amount INTEGER NOT NULL, at REAL NOT NULL);
    CREATE TABLE requests (number INTEGER PRIMARY KEY, key TEXT NOT NULL, order_id TEXT NOT NULL, worker INTEGER NOT NULL,
                           began REAL NOT NULL, answered REAL, status INTEGER);
"""


class Answer(NamedTuple):
    """An answer, `after` so many seconds; without a status there is none."""

    after: float
    status: int | None = None
    body: dict[str, str] | None = None


def treatment(seed: int, order: str) -> tuple[str, float]:
    """How an order is treated, and the seconds that an answer takes."""
    drawn = int.from_bytes(blake2b(f"{seed}:{order}".encode(), digest_size=8).digest())
    share, slow = (drawn >> 32) / 2**32, (drawn & 0xFFFFFFFF) / 2**32
    ends = list(accumulate(part for _, part in SHARES[:-1]))
    return SHARES[bisect_right(ends, share)][0], SLOW[0] + slow * (SLOW[1] - SLOW[0])


class Ledger:
    """What the provider has charged, and every request that it ever got."""

    def __init__(self, path: Path, seed: int) -> None:
        self._lock, self._seed = threading.Lock(), seed
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(TABLES)

    def take(self, key: str, order: str, customer: str, amount: int, worker: int) -> tuple[int, Answer]:
        """Take a request: its number, and what is to be answered."""
        how, slow = treatment(self._seed, order)
        with self._lock:
            (before,) = self._one("SELECT count(*) FROM requests WHERE key = ?", key)
            self._database.execute(
                "INSERT INTO requests (key, order_id, worker, began) VALUES (?, ?, ?, ?)", (key, order, worker, time.time())
            )
            (number,) = self._one("SELECT last_insert_rowid()")
            if how == "refused":
                return number, Answer(slow, 402, {"reason": "the card was declined"})
            if how == "busy" and not before:
                return number, Answer(slow, 503, {"reason": "the provider is busy"})
            if how == "mute" or (how == "lost" and not before):
                return number, Answer(LATE)
            charged = self._charge(key, order, customer, amount)
        if how == "mute, charging" or (how == "silent" and not before):
            return number, Answer(LATE)
        return number, Answer(LATE if how == "late" and not before else slow, 201, {"id": charged})

    def _charge(self, key: str, order: str, customer: str, amount: int) -> str:
        known = self._one("SELECT id FROM charges WHERE key = ?", key)
        if known is not None:
            return str(known[0])
        (number,) = self._one("SELECT count(*) FROM charges")
        id = f"ch_{number + 1:06}"
        self._database.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?)", (id, key, order, customer, amount, time.time()))
        return id

    def answered(self, number: int, status: int) -> None:
        """Note that a request was answered."""
        with self._lock:
            self._database.execute("UPDATE requests SET answered = ?, status = ? WHERE number = ?", (time.time(), status, number))

    def _one(self, statement: str, *values: object) -> Any:
        return self._database.execute(statement, values).fetchone()


def handler(ledger: Ledger) -> type[BaseHTTPRequestHandler]:
    """What answers the requests for a ledger."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number, answer = ledger.take(self.headers["Idempotency-Key"], **asked)
            time.sleep(answer.after)
            # Whoever asked may be gone: killed, or tired of waiting.
            with contextlib.suppress(OSError):
                if answer.status is not None:
                    body = json.dumps(answer.body).encode()
                    self.send_response(answer.status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                    ledger.answered(number, answer.status)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class Server(ThreadingHTTPServer):
    """A server with a thread for each request."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """A request that breaks off is no news."""


def main(ledger: str, seed: str) -> None:
    """Serve until standard input ends; the first line of the output is the address."""
    with Server(("127.0.0.1", 0), handler(Ledger(Path(ledger), int(seed)))) as server:
        threading.Thread(target=server.serve_forever, name="provider", daemon=True).start()
        print(f"127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
