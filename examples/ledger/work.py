"""How a transfer is done, by threads of this process and by a worker process that may be killed at any time.

A transfer is two commands, each with an id made of the transfer's: whoever repeats one that was done gets the first answer. So a worker
that was killed is simply started again, from the beginning of its file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from akter import Akter
from akter.errors import AkterError
from akter.fault import Point, Subject

from .accounts import Account, InsufficientFunds, ledger
from .transfers import Opening, Transfer, read

T = TypeVar("T")

SCOPE = "ledger"
"""What keeps the ids of this file apart from other ids of one's own."""


class Desk:
    """Opens accounts and does transfers. `replayed` counts the answers that an earlier run had left, and `ran` the turns of this one."""

    def __init__(self, app: Akter) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._asked = self.ran = self.done = 0
        app.faults.watch(self._see)

    def open(self, opening: Opening) -> None:
        """Open an account."""
        self._ask(f"{opening.id}:open", lambda: self._app.actor(Account, opening.id).open(opening.holder, opening.balance))

    def transfer(self, transfer: Transfer) -> None:
        """Move the money; a debit that is refused ends the transfer."""
        try:
            self._ask(f"{transfer.id}:debit", lambda: self._app.actor(Account, transfer.debit).debit(transfer.amount))
            self._ask(f"{transfer.id}:credit", lambda: self._app.actor(Account, transfer.credit).credit(transfer.amount))
        except InsufficientFunds:
            pass
        with self._lock:
            self.done += 1

    @property
    def replayed(self) -> int:
        """How many answers were known."""
        return self._asked - self.ran

    def _ask(self, id: str, ask: Callable[[], object]) -> None:
        try:
            with self._app.command_id(id, scope=SCOPE):
                ask()
        finally:
            with self._lock:
                self._asked += 1

    def _see(self, point: Point, _: Subject) -> None:
        if point == "after_commit":
            with self._lock:
                self.ran += 1


def in_threads(threads: int, do: Callable[[T], None], work: Iterable[T]) -> None:
    """Do all the work with some threads; raises the first failure, and then does nothing more."""
    with ThreadPoolExecutor(threads, thread_name_prefix="ledger") as pool:
        try:
            for done in [pool.submit(do, piece) for piece in work]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class Worker:
    """A process that does the second half of the file's transfers, and what it has told of that; at the end of a block it is gone."""

    def __init__(self, data: str, file: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, data, str(file), str(threads)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.done = self.replayed = self.ran = 0
        self.first_turn: float | None = None
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, name="ledger-worker", daemon=True)
        self._listener.start()

    def wait(self, done: int, meanwhile: Callable[[], None]) -> None:
        """Wait until so many transfers are done; raises `AkterError` if it came to its end before."""
        while self.done < done and self._listener.is_alive():
            with self._changed:
                self._changed.wait(0.1)
            meanwhile()
        if self.done < done:
            raise AkterError(f"the worker process {self.pid} failed with status {self._process.wait()}, and said above why")

    def kill(self) -> bool:
        """End it as by `kill -9`; whether that was what ended it."""
        self._process.kill()
        self.end()
        return self._process.returncode < 0

    def end(self) -> None:
        """Wait for its end."""
        self._process.wait()
        self._listener.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.done, self.replayed, self.ran = json.loads(line)
                    if self.ran and self.first_turn is None:
                        self.first_turn = time.monotonic()
                    self._changed.notify_all()


def halves(work: list[T]) -> tuple[list[T], list[T]]:
    """What the main process does, and what the worker does."""
    return work[::2], work[1::2]


def main(data: str, file: str, threads: str) -> None:
    """Be the worker process: a line after each transfer tells how many are done, and of how many answers and turns."""
    lock = threading.Lock()
    with ledger(data) as app:
        desk = Desk(app)

        def do(transfer: Transfer) -> None:
            desk.transfer(transfer)
            with lock:
                print(json.dumps([desk.done, desk.replayed, desk.ran]), flush=True)

        in_threads(int(threads), do, halves(read(Path(file)).transfers)[1])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AkterError as problem:
        sys.exit(f"worker: {problem}")
    except BrokenPipeError:
        sys.exit(1)
