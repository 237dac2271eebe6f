"""Keeps the processes running, and disturbs them as the plan says."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import psycopg

from akter.embedded import Server
from akter.embedded.watcher import lives, postmaster
from akter.testing import child
from soaking.plan import Action
from soaking.tables import plain
from soaking.working import Place, drive, run

BACKENDS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid"


class Supervisor:
    """The runners and the driver. `server` is None for a database that is not to be restarted."""

    def __init__(self, place: Place, server: Server | None, processes: int) -> None:
        self._place, self._server, self._started = place, server, 0
        self.runners = [self._runner(number) for number in range(processes)]
        self.driver = child(drive, place)
        self.did: Counter[str] = Counter()
        self.unasked: list[str] = []
        self._dying: set[child] = set()
        self._still: set[child] = set()
        self._timers: list[threading.Timer] = []

    def _runner(self, number: int) -> child:
        # Every other one starts the database by itself when it is gone.
        embedded = self._server is not None and number % 2 == 1
        target = f"embedded:{self._server.data}" if embedded and self._server is not None else self._place.url
        # Every other process but the first is deployed from an earlier release, so there are always both.
        self._started += 1
        return child(run, self._place, target, number, number == 0 or self._started % 2 == 0)

    def carry_out(self, action: Action) -> None:
        """Do one thing to them."""
        self.look_after()
        if action.what in ("kill", "end", "stop") and len(self.runners) > 1:
            # What is asked is whether work goes on elsewhere, so there must be an elsewhere, however long a process takes to start.
            until(lambda: any(self._at_work(number) for number in range(len(self.runners)) if number != action.who), 120.0)
        self.did[action.what] += 1
        runner = self.runners[action.who]
        if action.what == "kill":
            with self._place.path("killed").open("a") as file:
                file.write(f"{pid(runner)}\n")
            runner.kill()
            self._replace(action.who)
        elif action.what == "end":
            self._dying.add(runner)
            os.kill(pid(runner), signal.SIGTERM)
        elif action.what == "stop":
            self._stop(runner, action.seconds)
        elif action.what == "terminate":
            self._terminate(action)
        elif action.what == "kill driver":
            self.driver.kill()
            self._again()
        elif self._server is not None:
            self._restart(self._server, gently=action.what == "restart")

    def look_after(self) -> None:
        """Start again what ended."""
        for number, runner in enumerate(self.runners):
            if (status := runner._process.poll()) is None:
                continue
            # One that is asked to end before it is ready to hear of it ends by the signal.
            if runner not in self._dying or status not in (0, -signal.SIGTERM):
                self.unasked.append(f"runner-{number} ended with {status}: {runner.output[-2000:]}")
            self._dying.discard(runner)
            self._replace(number)
        if self.driver._process.poll():
            self.unasked.append(f"the driver ended with {self.driver._process.poll()}: {self.driver.output[-2000:]}")
            self._again()

    def _at_work(self, number: int) -> bool:
        self.look_after()
        runner = self.runners[number]
        return self._place.ready(pid(runner)).exists() and runner not in self._still and runner not in self._dying

    def _replace(self, number: int) -> None:
        self.runners[number].__exit__(None, None, None)
        self._dying.discard(self.runners[number])
        self.runners[number] = self._runner(number)

    def _again(self) -> None:
        self.driver.__exit__(None, None, None)
        self.driver = child(drive, self._place)

    def _stop(self, runner: child, seconds: float) -> None:
        """Stand still past the end of every lease; a thread lets it go on, whatever this one waits for."""
        number = pid(runner)
        os.kill(number, signal.SIGSTOP)
        self._still.add(runner)

        def go_on() -> None:
            if runner._process.poll() is None:
                os.kill(number, signal.SIGCONT)
            self._still.discard(runner)

        self._timers.append(threading.Timer(seconds, go_on))
        self._timers[-1].start()

    def _terminate(self, action: Action) -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(plain(self._place.url), autocommit=True) as connection:
            found = [row[0] for row in connection.execute(BACKENDS)]
            random = Random(action.seconds)
            for one in random.sample(found, min(len(found), random.choice((1, 3, 8, 100)))):
                connection.execute("SELECT pg_terminate_backend(%s)", [one])

    def _restart(self, server: Server, *, gently: bool) -> None:
        found = postmaster(server.data)
        if found is not None:
            # The processes of a server that is shut down fast are told to end, those of one that was killed find out.
            os.kill(found.pid, signal.SIGINT if gently else signal.SIGKILL)
            until(lambda: not lives(server.data, found), 60.0)
        server.start()

    def calm(self) -> None:
        """Disturb nobody any more."""
        self.look_after()
        for timer in self._timers:
            timer.join()

    @property
    def driven(self) -> bool:
        """Whether the driver has done everything."""
        return self.driver._process.poll() == 0

    def end(self) -> list[dict[str, Any]]:
        """Let the runners end, and return what each of them did."""
        self.look_after()
        self._place.path("stop").touch()
        return [runner.wait(30.0) for runner in self.runners]

    def close(self) -> None:
        """End everything at once."""
        for timer in self._timers:
            timer.cancel()
        for process in [*self.runners, self.driver]:
            process.__exit__(None, None, None)


def pid(process: child) -> int:
    """Its process id."""
    return process._process.pid


def until(so: Callable[[], bool], seconds: float) -> None:
    """Wait until something is so; raises `TimeoutError`."""
    end = time.monotonic() + seconds
    while not so():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} seconds")
        time.sleep(0.01)
