"""An application that `akter run shop:app` is tried with; its database and schema come from the environment."""

from __future__ import annotations

import gc
import os
import time

from akter import Actor, Akter, command


class Parcel(Actor):
    """Moves, holds up whoever delivers it, or fails."""

    moves: int = 0

    @command
    def move(self) -> int:
        self.moves += 1
        return self.moves

    @command
    def hold(self, seconds: float) -> None:
        print("holding", flush=True)
        time.sleep(seconds)
        self.moves += 1

    @command
    def hold_until(self, path: str) -> None:
        print("holding", flush=True)
        while not os.path.exists(path):
            time.sleep(0.02)
        self.moves += 1

    @command(timeout=0.5)
    def hang(self) -> None:
        time.sleep(3600)

    @command
    def weigh(self) -> None:
        print(f"{gc.get_freeze_count()} frozen", flush=True)

    @command
    def fail(self) -> None:
        raise ValueError("the parcel is torn")

    @command
    def die(self) -> None:
        os._exit(9)


class Crate(Actor):
    """A second type."""

    moves: int = 0

    @command
    def move(self) -> int:
        self.moves += 1
        return self.moves


def made() -> Akter:
    return Akter(
        os.environ.get("AKTER_DATABASE_URL", "postgresql://nowhere.invalid/db"),
        actors=[Parcel, Crate],
        schema=os.environ.get("AKTER_SCHEMA", "akter"),
    )


def needy(url: str) -> Akter:
    return Akter(url, actors=[Parcel])


app = made()
nothing = 42
