"""Groups of overlapping actors from several processes in opposite orders, checked against a model.

`stress.py URL [--schema akter] [--seconds 600] [--processes 4] [--threads 12] [--actors 24]`. Every call adds one and is answered with the
sum. The model: of each actor the answers of all processes together are 1, 2, 3 and so on, each once, and the last is its state; there is
a receipt for each; PostgreSQL met no deadlock. Ends with 1 when it is otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from akter import Actor, Akter, command
from akter.group import Group


class Pile(Actor):
    """A number."""

    height: int = 0

    @command
    def add(self) -> int:
        self.height += 1
        return self.height


def work(options: argparse.Namespace) -> dict[str, Any]:
    """One process: each thread walks over the actors in the process's own direction, from wherever it likes."""
    answers: list[tuple[str, int]] = []
    problems: list[str] = []
    sizes: list[int] = []
    formed = Group.__init__

    def count(self: Group, callers: Any, *rest: Any, **more: Any) -> None:
        sizes.append(len(callers))
        formed(self, callers, *rest, **more)

    Group.__init__ = count  # type: ignore[method-assign]
    with Akter(options.url, actors=[Pile], schema=options.schema) as app:
        app.verify()
        end = time.monotonic() + options.seconds

        def walk(number: int) -> None:
            choose, step = random.Random(options.number * 1000 + number), 1 if options.number % 2 else -1
            while time.monotonic() < end:
                first = choose.randrange(options.actors)
                for place in range(6):
                    id = str((first + step * place) % options.actors)
                    try:
                        answers.append((id, app.actor(Pile, id).add()))
                    except Exception as problem:  # whatever it is, the model is told
                        problems.append(repr(problem))

        threads = [threading.Thread(target=walk, args=(number,)) for number in range(options.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"answers": answers, "problems": problems, "groups": len(sizes), "in groups": sum(sizes)}


def deadlocks(connection: Any) -> int:
    """The deadlocks that PostgreSQL has met in this database."""
    return int(connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()[0])


def check(found: list[dict[str, Any]], connection: Any, schema: str) -> list[str]:
    """What is not as the model says."""
    wrong = [problem for one in found for problem in one["problems"]]
    answers = Counter((id, answer) for one in found for id, answer in one["answers"])
    stored = dict(connection.execute(f"SELECT actor_id, (value->>'height')::int FROM \"{schema}\".actor_state WHERE actor_type = 'Pile'"))
    kept = dict(
        connection.execute(f"SELECT actor_id, count(*) FROM \"{schema}\".actor_receipts WHERE actor_type = 'Pile' GROUP BY actor_id")
    )
    for id, height in stored.items():
        given = sorted(answer for (one, answer), times in answers.items() for _ in range(times) if one == id)
        if given != list(range(1, height + 1)) or kept[id] != height:
            wrong.append(f"actor {id}: state {height}, {kept[id]} receipts, {len(given)} answers up to {max(given, default=0)}")
    return wrong if {id for id, _ in answers} == set(stored) else [*wrong, "some actors have answers and no state"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--schema", default="akter")
    for name, default in (("seconds", 600.0), ("processes", 4), ("threads", 12), ("actors", 24), ("number", -1)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    if options.number >= 0:
        json.dump(work(options), sys.stdout)
        return
    plain = make_url(options.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        before = deadlocks(connection)
        child = [sys.executable, __file__, *sys.argv[1:], "--number"]
        running = [subprocess.Popen([*child, str(number)], stdout=subprocess.PIPE, text=True) for number in range(options.processes)]
        found = [json.loads(process.communicate()[0]) for process in running]
        wrong = check(found, connection, options.schema)
        met = deadlocks(connection) - before
    turns = sum(len(one["answers"]) for one in found)
    print(
        f"{turns} turns, {sum(one['in groups'] for one in found)} of them in {sum(one['groups'] for one in found)} groups, {met} deadlocks"
    )
    print("\n".join(wrong[:50]))
    sys.exit(1 if wrong or met else 0)


if __name__ == "__main__":
    main()
