"""A program that forks with an app in use, in ways its first argument names; it prints what happened as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from typing import Any

import sqlalchemy
from sqlalchemy import text

from akter import Actor, Akter, command

TURNS = 25
entered, release = threading.Event(), threading.Event()
apps: list[Akter] = []


class Account(Actor):
    """Money."""

    balance: int = 0

    @command
    def add(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @command(sql=True)
    def backend(self) -> int:
        return int(self.connection.execute(text("SELECT pg_backend_pid()")).scalar_one())

    @command
    def wait(self) -> int:
        entered.set()
        release.wait(30)
        self.balance += 1
        return self.balance

    @command
    def fork(self) -> int:
        self.balance += 1
        if (pid := os.fork()) == 0:
            # Its commit must fail before anything is sent, so that a retry begins; the parent waits meanwhile, its turn open.
            apps[0].faults.watch(lambda point, _: os._exit(0) if point == "before_delivery" else None)
            return 0
        return os.waitpid(pid, 0)[1]


def make(url: str, schema: str) -> Akter:
    return Akter(sqlalchemy.create_engine(url, pool_size=4, max_overflow=0), actors=[Account], schema=schema)


def work(app: Akter) -> int:
    """Use the app as a process does, and say on which backend."""
    for _ in range(TURNS):
        app.actor(Account, "hot").add(1)
    return app.actor(Account, "hot").backend()


def forked(app: Akter) -> dict[str, Any]:
    """Children of os.fork() that work while their parent does."""
    before = app.actor(Account, "hot").backend()
    readers, pids = [], []
    for _ in range(4):
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            status = 1
            try:
                os.write(writer, str(work(app)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        readers.append(reader)
        pids.append(pid)
    mine = work(app)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    children = [int(os.read(reader, 100) or b"0") for reader in readers]
    return {"backends": [before, *children], "statuses": statuses, "kept": mine == before == app.actor(Account, "hot").backend()}


def in_process(app: Akter | None, url: str, schema: str, queue: Any) -> None:
    queue.put(work(app or make(url, schema)))


def multiprocessed(app: Akter, url: str, method: str) -> dict[str, Any]:
    """Children of multiprocessing; only a fork inherits the app."""
    before = app.actor(Account, "hot").backend()
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    inherited = app if method == "fork" else None
    processes = [context.Process(target=in_process, args=(inherited, url, app.schema, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    mine = work(app)
    children = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    return {
        "backends": [before, *children],
        "statuses": [process.exitcode for process in processes],
        "kept": mine == before == app.actor(Account, "hot").backend(),
    }


def beside_a_turn(app: Akter) -> dict[str, Any]:
    """A fork while another thread is in the middle of a turn."""
    app.actor(Account, "hot").add(1)
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(app.actor(Account, "slow").wait()))
    thread.start()
    entered.wait(30)
    if (pid := os.fork()) == 0:
        status = 1
        try:
            work(app)
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(pid, 0)[1]
    release.set()
    thread.join(30)
    return {"statuses": [status], "answers": answers, "again": app.actor(Account, "slow").add(1)}


def in_a_turn(app: Akter) -> dict[str, Any]:
    """A fork in a handler, so that both processes come to its commit."""
    apps.append(app)
    parent = os.getpid()
    try:
        status = app.actor(Account, "hot").fork()
    finally:
        if os.getpid() != parent:
            os._exit(3)
    return {"statuses": [status], "again": app.actor(Account, "hot").add(1)}


if __name__ == "__main__":
    way, url, schema = sys.argv[1:]
    app = make(url, schema)
    if way == "os.fork":
        found = forked(app)
    elif way == "beside a turn":
        found = beside_a_turn(app)
    elif way == "in a turn":
        found = in_a_turn(app)
    else:
        found = multiprocessed(app, url, way)
    print(json.dumps(found))
