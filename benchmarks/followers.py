"""Followers: what a publisher's turn pays for them, and how fast events reach them: `python -m benchmarks.followers`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from akter import Actor, Akter, Event, Runner, command, subscription
from benchmarks import place
from benchmarks.measure import ratio, rounds, rows, said, save, spread
from benchmarks.turns import SCHEMA


class Said(Event):
    """A word was said."""

    word: int


class Speaker(Actor):
    """Publishes an event in each turn."""

    words: int = 0

    @command
    def say(self) -> None:
        self.words += 1
        self.emit(Said(word=self.words))

    @command
    def think(self) -> None:
        self.words += 1


class Listener(Actor):
    """Counts what it is told."""

    heard: int = 0

    @subscription(Said, source=Speaker)
    def told(self, said: Said) -> None:
        self.heard += 1

    @command
    def listen(self, speaker: str) -> None:
        self.subscribe(self.told, self.actor(Speaker, speaker))


class Followers:
    """Speakers in a database with so many listeners each, and one runner."""

    def __init__(self, app: Akter, seconds: float) -> None:
        self.app, self._seconds = app, seconds
        self.runner = Runner(app, listen=False)

    def follow(self, speaker: str, listeners: int) -> None:
        """Let this many listeners follow a speaker."""
        with self.app.engine.begin() as connection:
            told = [(self.app.actor(Listener, f"{speaker} {number}").listen, {"speaker": speaker}) for number in range(listeners)]
            if told:
                self.app.within(connection).send_many(told)
        self.runner.drain(600.0)

    def turns(self, speaker: str, *, silent: bool = False) -> Callable[[], float]:
        """Turns in a second by one thread; no relay works meanwhile, so the feed's row waits and is made due again by each."""

        def measured() -> float:
            act = self.app.actor(Speaker, speaker).think if silent else self.app.actor(Speaker, speaker).say
            act()
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < self._seconds:
                act()
                done += 1
            return done / (time.perf_counter() - began)

        return measured

    def fan_out(self, speaker: str, listeners: int) -> float:
        """Publish one event to listeners that are caught up; returns how many were told in a second, its spreading included."""
        self.app.actor(Speaker, speaker).say()
        before, began = self.runner.counts.delivered, time.perf_counter()
        self.runner.drain(600.0)
        took = time.perf_counter() - began
        if self.runner.counts.delivered - before != listeners:
            raise RuntimeError("not as many were told as follow")
        return listeners / took


def measure(url: str, most: int, pairs: int, seconds: float) -> dict[str, Any]:
    """Everything, on one database."""
    with Akter(url, actors=[Speaker, Listener], schema=SCHEMA, hint=False) as app:
        app.migrate()
        found = Followers(app, seconds)
        found.follow("crowd", most)
        found.fan_out("crowd", most)
        told = [found.fan_out("crowd", most) for _ in range(pairs)]
        numbers = {"nobody follows": 0, "10 follow": 10, f"{most} follow": most}
        for name, listeners in numbers.items():
            found.follow(f"an event, {name}", listeners)
        # Last, because nobody is told of all this any more.
        turns = {
            "no event": found.turns("silent", silent=True),
            **{f"an event, {name}": found.turns(f"an event, {name}") for name in numbers},
        }
        rates = rounds(turns, pairs)
        found.runner.stop()
    return {
        "rates": {name: spread(runs) for name, runs in rates.items()},
        "ratios": {name: ratio(runs, rates["an event, nobody follows"]) for name, runs in rates.items()},
        "fan-out": {"followers": most, "rate": spread(told)},
    }


def tables(found: dict[str, Any]) -> str:
    """The results."""
    lines = [(name, said(one, 0), said(found["ratios"][name])) for name, one in found["rates"].items()]
    told = found["fan-out"]
    return "\n\n".join(
        (
            rows(("a publisher's turns, one thread", "per s", "ratio to nobody follows"), lines),
            f"one event to {told['followers']} followers: {said(told['rate'], 0)} told a second",
        )
    )


def main() -> None:
    parser = place.parser("Followers: a publisher's turns with and without them, and how fast they are told.", pairs=5, seconds=2.0)
    parser.add_argument("--followers", type=int, default=1_000, help="followers of the most followed (default 1000)")
    options = parser.parse_args()
    with place.database(options) as url:
        found = measure(url, options.followers, options.pairs, options.seconds)
        found["machine"] = place.machine(url)
    print(tables(found))
    print()
    print(place.said(found["machine"]))
    print(f"{options.pairs} interleaved runs of about {options.seconds} s each; medians (quartiles), also of the ratios")
    print(f"written to {save('followers', options.json, found)}")


if __name__ == "__main__":
    main()
