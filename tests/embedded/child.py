"""A process that uses an embedded PostgreSQL as it is told: lines of JSON come in, and each is answered by one."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text

from akter.embedded import Server, engine, engine_server, stop, watcher


class Child:
    def start(self, data: str) -> int:
        self.server = Server(data) if data else Server.temporary()
        return self.server.start().pid

    def start_again(self) -> int:
        return self.server.start().pid

    def stop(self) -> None:
        self.server.stop()

    def pid(self) -> int:
        return self.server.pid

    def data(self) -> str:
        return str(self.server.data)

    def sql(self, statement: str) -> Any:
        with psycopg.connect(self.server.url(driver=""), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

    def engine(self, target: str) -> str:
        self.opened = engine(target)
        self.server = engine_server(self.opened)
        return str(self.server.data)

    def query(self, statement: str) -> Any:
        with self.opened.begin() as connection:
            result = connection.execute(text(statement))
            return [list(row) for row in result] if result.returns_rows else None

    def query_in_threads(self, statement: str) -> list[Any]:
        answers: list[Any] = []
        threads = [threading.Thread(target=lambda: answers.append(self.query(statement))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    def stop_engine(self) -> None:
        stop(self.opened)

    def fork(self) -> list[Any]:
        """The forked process answers and goes on from here; the original does when that one has ended, and answers then."""
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return ["parent" if child else "child", os.getpid()]

    def hold(self, data: str) -> int:
        """Take the lock under which a server is started, and keep it."""
        self.held = watcher.alone(Path(data), create=True)
        self.held.__enter__()
        return os.getpid()

    def leave(self, way: str) -> None:
        if way == "_exit":
            os._exit(3)
        sys.exit()


def obey(child: Child) -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(child, name)(*arguments)), flush=True)


if __name__ == "__main__":
    obey(Child())
